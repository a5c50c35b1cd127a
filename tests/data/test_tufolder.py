"""A folder in TU text format: the same graphs as PyG makes, and every bad line found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.io import read_tu_data

from gduq.data.rejected_rows import Reject
from gduq.data.tufolder import TUFolder
from gduq.errors import InputError

needs_data = pytest.mark.skipif("GDUQ_DATA" not in os.environ, reason="GDUQ_DATA is not set")

# Three graphs of 3, 2 and 2 nodes; a self-loop and a double edge to be removed.
FILES = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n2, 3\n3, 3\n4, 5\n5, 4\n6, 7\n7, 6\n",
    "graph_indicator": "1\n1\n1\n2\n2\n3\n3\n",
    "graph_labels": "-1\n1\n1\n",
    "node_labels": "3\n4\n5\n3\n3\n4\n4\n",
    "node_attributes": "0.5, 1\n1.5, 2\n2.5, 3\n3.5, 4\n4.5, 5\n5.5, 6\n6.5, 7\n",
    "edge_labels": "1\n1\n0\n0\n1\n0\n1\n1\n0\n0\n",
}


def write(folder: Path, **changes: str | None) -> Path:
    for part, text in {**FILES, **changes}.items():
        if text is not None:
            (folder / f"TOY_{part}.txt").write_text(text)
    return folder


def graphs(folder: Path) -> list[Data | Reject]:
    return [item for _, item in TUFolder(folder)]


def same_as_pyg(folder: Path, name: str) -> None:
    data, slices, _ = read_tu_data(str(folder), name)
    for i, graph in enumerate(graphs(folder)):
        assert isinstance(graph, Data)
        for key, ptr in slices.items():
            part = slice(int(ptr[i]), int(ptr[i + 1]))
            expected = data[key][:, part] if key == "edge_index" else data[key][part]
            assert torch.equal(graph[key], expected), (i, key)


def test_a_sound_folder_gives_what_pyg_gives(tmp_path: Path) -> None:
    same_as_pyg(write(tmp_path), "TOY")
    folder = TUFolder(tmp_path)
    assert (len(folder), folder.class_names) == (3, ("-1", "1"))


def test_graphs_without_any_label_or_feature(tmp_path: Path) -> None:
    bare = dict.fromkeys(("graph_labels", "node_labels", "node_attributes", "edge_labels"))
    first = graphs(write(tmp_path, **bare))[0]
    assert TUFolder(tmp_path).class_names == ()
    assert TUFolder(tmp_path, ("no", "yes")).class_names == ("no", "yes")
    assert first.num_nodes == 3
    assert set(first.keys()) == {"edge_index", "num_nodes"}


def test_nodes_in_any_order(tmp_path: Path) -> None:
    """Nodes need not be sorted by graph: here the second graph comes first."""
    folder = write(
        tmp_path,
        A="1, 2\n2, 1\n3, 4\n",
        graph_indicator="2\n2\n1\n1\n",
        graph_labels="0\n1\n",
        node_labels=None,
        node_attributes="1\n2\n3\n4\n",
        edge_labels=None,
    )
    first, second = graphs(folder)
    assert first.x.flatten().tolist() == [3, 4]
    assert first.edge_index.tolist() == [[0], [1]]
    assert second.x.flatten().tolist() == [1, 2]
    assert second.edge_index.tolist() == [[0, 1], [1, 0]]


def test_regression_targets(tmp_path: Path) -> None:
    folder = write(tmp_path, graph_attributes="0.5\n1.5\n-2\n", graph_labels=None)
    assert [g.y.tolist() for g in graphs(folder) if isinstance(g, Data)] == [[0.5], [1.5], [-2.0]]


def test_files_may_be_in_raw(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    write(tmp_path / "raw")
    assert len(TUFolder(tmp_path)) == 3


def test_labels_of_many_digits_stay_apart(tmp_path: Path) -> None:
    folder = TUFolder(write(tmp_path, graph_labels="12345678\n12345679\n0.5\n"))
    assert folder.class_names == ("0.5", "12345678", "12345679")
    assert [g.y.item() for _, g in folder if isinstance(g, Data)] == [1, 2, 0]


def test_class_names_of_the_training_set(tmp_path: Path) -> None:
    folder = TUFolder(write(tmp_path, graph_labels="1\n1\n2\n"), class_names=("-1", "1"))
    items = [item for _, item in folder]
    assert items[0].y.tolist() == [1]
    assert "2 is none of the classes" in items[2].reason


@pytest.mark.parametrize(
    ("part", "text", "graph", "line", "reason"),
    [
        ("node_attributes", FILES["node_attributes"].replace("3.5, 4", "x, 4"), 1, 4, "no list"),
        ("node_attributes", FILES["node_attributes"].replace("3.5, 4", "3.5"), 1, 4, "1 numbers"),
        ("node_attributes", FILES["node_attributes"].replace("3.5, 4", "nan, 4"), 1, 4, "finite"),
        ("node_attributes", FILES["node_attributes"].replace("3.5, 4", ""), 1, 4, "no list"),
        ("node_labels", "3\n4\n5\n3\n3\n4\n4.5\n", 2, 7, "whole number"),
        ("edge_labels", FILES["edge_labels"].replace("1\n1\n0\n", "1\n?\n0\n", 1), 0, 2, "no list"),
        ("graph_labels", "-1\n1\nlots\n", 2, 3, "no list"),
        ("A", FILES["A"] + "7, 99\n", 2, 11, "above 7"),
        ("A", FILES["A"] + "7, 1\n", 0, 11, "between two graphs"),
        ("graph_labels", FILES["graph_labels"] + "1\n", 3, 4, "no nodes"),
    ],
)
def test_a_bad_line_takes_its_graph_with_it(
    tmp_path: Path, part: str, text: str, graph: int, line: int, reason: str
) -> None:
    extra = {"edge_labels": None} if part == "A" else {}
    items = graphs(write(tmp_path, **{**extra, part: text}))
    bad = items[graph]
    assert (bad.file, bad.line) == (f"TOY_{part}.txt", line)
    assert reason in bad.reason
    others = [i for i, item in enumerate(items) if isinstance(item, Reject)]
    assert others == ([0, 2] if "two graphs" in reason else [graph])


@pytest.mark.parametrize(
    ("part", "text", "message"),
    [
        ("graph_indicator", None, r"the file .*TOY_graph_indicator.txt, got none"),
        ("node_labels", "3\n4\n", r"7 lines in .*TOY_node_labels.txt, one a node, got 2"),
        ("edge_labels", "1\n", r"10 lines in .*TOY_edge_labels.txt, one an edge, got 1"),
        ("graph_labels", "1\n", r"3 lines in .*TOY_graph_labels.txt, one a graph, got 1"),
        ("A", "1, 2\n2; 1\n", r"whole numbers in line 2 of .*TOY_A.txt"),
        ("A", "1, 2\n1.5, 2\n", r"whole numbers in line 2 of .*TOY_A.txt"),
        ("A", "1, 2, 3\n", r"2 numbers a line in .*TOY_A.txt"),
        ("A", "98, 99\n", r"node numbers from 1 to 7 in line 1"),
        (
            "graph_labels",
            "1, 1\n1, 2\n2, 2\n",
            r"one label a line in .*TOY_graph_labels.txt, got 2",
        ),
        ("graph_indicator", "0\n1\n", "graph numbers from 1"),
        ("graph_indicator", "", "graph numbers from 1"),
    ],
)
def test_a_folder_that_cannot_be_read(
    tmp_path: Path, part: str, text: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        TUFolder(write(tmp_path, **{part: text}))


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"NAME_A.txt in the folder .* got nothing"):
        TUFolder(tmp_path)
    write(tmp_path)
    (tmp_path / "MORE_A.txt").write_text("1, 2\n")
    with pytest.raises(InputError, match="one data set in the folder"):
        TUFolder(tmp_path)


@needs_data
def test_a_real_folder_gives_what_pyg_gives() -> None:
    same_as_pyg(Path(os.environ["GDUQ_DATA"]) / "MUTAG" / "raw", "MUTAG")


@pytest.mark.parametrize(
    "files",
    [
        {"graph_indicator": "1\n1\n1\n2\n2\n3\n4000000000\n"},
        {"graph_indicator": "1\n1\n1\n2\n2\n3\n1e30\n"},
        {"A": "1, 2\n1e30, 1\n"},
        {"node_labels": "3\n4\n5\n3\n3\n4\n4000000000\n"},
        {"edge_labels": "1\n1\n0\n0\n1\n0\n1\n1\n0\n4000000000\n"},
    ],
)
def test_numbers_far_beyond_the_lines_are_refused(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        TUFolder(write(tmp_path, **files))
    assert "\n" not in str(error.value)


def test_a_label_too_large_to_be_whole_takes_its_graph_with_it(tmp_path: Path) -> None:
    found = graphs(write(tmp_path, node_labels="3\n4\n5\n3\n3\n4\n1e30\n"))
    assert [isinstance(item, Reject) for item in found] == [False, False, True]
