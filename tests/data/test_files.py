"""Own data by path: every format, streams, rejects, conversion."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gduq.data.files import read, save, stream
from gduq.data.outputs import Reject
from gduq.errors import InputError
from gduq.graphs.packed import Packed
from gduq.graphs.view import View


def graph(i: int, nodes: int = 3) -> Data:
    edges = torch.tensor([[0, 1], [1, 0]])
    return Data(x=torch.full((nodes, 2), float(i)), edge_index=edges, y=torch.tensor([i % 2]))


def tu_folder(folder: Path, bad: int = 0, count: int = 10) -> Path:
    """``count`` graphs of two nodes; the first ``bad`` of them have unreadable attributes."""
    folder.mkdir(parents=True)
    lines = {
        "A": [f"{2 * i + 1}, {2 * i + 2}" for i in range(count)],
        "graph_indicator": [str(i + 1) for i in range(count) for _ in range(2)],
        "graph_labels": [str(i % 2) for i in range(count)],
        "node_attributes": ["?" if i < bad else str(i) for i in range(count) for _ in range(2)],
    }
    for part, content in lines.items():
        (folder / f"TOY_{part}.txt").write_text("\n".join(content) + "\n")
    return folder


def rejects_in(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- save and read -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "iterator", "packed", "subclass"])
def test_save_takes_any_graphs(tmp_path: Path, kind: str) -> None:
    class Special(Data):
        pass

    graphs = [graph(i) for i in range(3)]
    given = {
        "list": graphs,
        "iterator": iter(graphs),
        "packed": Packed.pack(graphs),
        "subclass": [Special.from_dict(g.to_dict()) for g in graphs],
    }[kind]
    path = save(given, tmp_path / "g.safetensors", class_names=("no", "yes"))
    found = read(path)
    assert [g.x[0, 0].item() for g in found] == [0, 1, 2]
    assert stream(path).class_names == ("no", "yes")
    assert len(View(found)) == 3


def test_save_replaces_and_keeps_the_old_file_on_failure(tmp_path: Path) -> None:
    path = save([graph(0)], tmp_path / "g.safetensors")
    save([graph(1), graph(2)], path)
    assert len(read(path)) == 2
    with pytest.raises(InputError):
        save([graph(1), Data(x=torch.ones(1, 1))], path)
    assert len(read(path)) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["g.safetensors"]


def test_save_refuses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in .safetensors"):
        save([graph(0)], tmp_path / "g.pt")
    with pytest.raises(InputError, match="a folder that exists"):
        save([graph(0)], tmp_path / "no" / "g.safetensors")
    with pytest.raises(InputError, match="a list of graphs"):
        save(graph(0), tmp_path / "g.safetensors")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Data objects"):
        save([1], tmp_path / "g.safetensors")  # type: ignore[list-item]
    with pytest.raises(InputError, match="at least one graph"):
        save([], tmp_path / "g.safetensors")


def test_read_every_format(tmp_path: Path) -> None:
    assert len(read(tu_folder(tmp_path / "tu"))) == 10
    assert len(read(save([graph(0)], tmp_path / "g.safetensors"))) == 1
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    (tmp_path / "m.csv").write_text("smiles,y\nCC,1\nCCO,0\n")
    molecules = read(tmp_path / "m.csv", targets=["y"])
    assert [g.smiles for g in molecules] == ["CC", "CCO"]
    assert View(molecules).target.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "message"),
    [("no.csv", "does not exist"), ("g.pt", "pickle"), ("g.xyz", "a .csv or .tsv table")],
)
def test_unknown_sources(tmp_path: Path, name: str, message: str) -> None:
    if name != "no.csv":
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=message):
        read(tmp_path / name)


def test_other_classes_than_asked_for(tmp_path: Path) -> None:
    path = save([graph(0)], tmp_path / "g.safetensors", class_names=("no", "yes"))
    with pytest.raises(InputError, match="the classes"):
        stream(path, class_names=("yes", "no"))
    plain = save([graph(0)], tmp_path / "h.safetensors")
    assert stream(plain, class_names=("yes", "no")).class_names == ("yes", "no")


# -- rejects -------------------------------------------------------------------------------------


def molecules(folder: Path, bad: int, count: int = 10) -> Path:
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    path = folder / f"{bad}.csv"
    rows = ["?,0" if i < bad else f"{'C' * (i + 1)},{i % 2}" for i in range(count)]
    path.write_text("\n".join(["smiles,y", *rows]))
    return path


def test_read_lists_what_it_leaves_out(tmp_path: Path) -> None:
    path = molecules(tmp_path, bad=1)
    with pytest.warns(UserWarning, match=r"1 of 10 rows are left out, first 1.csv, line 2"):
        assert len(read(path, targets=["y"])) == 9
    listed = tmp_path / "rejects.csv"
    assert len(read(path, targets=["y"], rejects=listed)) == 9
    (row,) = rejects_in(listed)
    assert (row["file"], row["line"], row["row"]) == ("1.csv", "2", "0")
    assert "no valid SMILES" in row["reason"]
    read(molecules(tmp_path, bad=0), rejects=listed)
    assert rejects_in(listed) == [], "a list of an earlier run misleads"
    mine = tmp_path / "mine.csv"
    mine.write_text("a,b\n")
    for taken in (mine, path):
        with pytest.raises(InputError):
            read(path, targets=["y"], rejects=taken)
    assert mine.read_text() == "a,b\n"


def test_too_many_rejects_stop_but_are_listed(tmp_path: Path) -> None:
    path, listed = molecules(tmp_path, bad=2), tmp_path / "rejects.csv"
    with pytest.raises(InputError, match="2 of 10"):
        read(path, rejects=listed)
    assert len(rejects_in(listed)) == 2
    assert len(read(path, rejects=listed, max_rejects=0.2)) == 8
    with pytest.raises(InputError, match="max_rejects from 0 to 1"):
        read(path, max_rejects=20)


# -- TU folders ----------------------------------------------------------------------------------


def test_a_tu_folder_is_that_of_pyg(tmp_path: Path) -> None:
    from torch_geometric.datasets import TUDataset

    folder = tu_folder(tmp_path / "TOY" / "raw")
    (folder / "TOY_node_labels.txt").write_text("".join(f"{i % 3}\n" for i in range(20)))
    (folder / "TOY_graph_labels.txt").write_text("".join(f"{3 - 4 * (i % 2)}\n" for i in range(10)))
    wanted = TUDataset(str(tmp_path), "TOY", use_node_attr=True, force_reload=True)
    found = stream(folder.parent)
    assert found.class_names == ("-1", "3")
    for one, other in zip(found.graphs, wanted, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.y, other.y)
    named = stream(folder, class_names=("3", "7", "-1"))
    assert [int(graph.y) for graph in named.graphs[:2]] == [0, 2]


@pytest.mark.parametrize("content", ["1\n2", "one\n" * 20, ""])
def test_damaged_tu_folders(tmp_path: Path, content: str) -> None:
    folder = tu_folder(tmp_path / "tu")
    (folder / "TOY_graph_indicator.txt").write_text(content)
    with pytest.raises(InputError, match="a sound TU folder"):
        read(folder)
    with pytest.raises(InputError, match="one NAME_A"):
        read(tmp_path)


# -- stream --------------------------------------------------------------------------------------


def test_stream_counts_every_row(tmp_path: Path) -> None:
    items = list(stream(molecules(tmp_path, bad=2)))
    assert [index for index, _ in items] == list(range(10))
    assert [isinstance(item, Reject) for _, item in items] == [True, True] + [False] * 8


def test_stream_errors_come_before_the_first_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        stream(tmp_path / "no.csv")
