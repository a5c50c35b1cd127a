"""Own data by path: every format, streams, rejects, conversion."""

from __future__ import annotations

import csv
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gduq.data import files
from gduq.data.files import Reject, convert, open_source, read, save, stream
from gduq.data.packed import Packed
from gduq.data.rejected_rows import RejectLog
from gduq.data.view import View
from gduq.errors import InputError


def graph(i: int, nodes: int = 3) -> Data:
    edges = torch.tensor([[0, 1], [1, 0]])
    return Data(x=torch.full((nodes, 2), float(i)), edge_index=edges, y=torch.tensor([i % 2]))


def tu_folder(folder: Path, bad: int = 0, count: int = 10) -> Path:
    """``count`` graphs of two nodes; the first ``bad`` of them have unreadable attributes."""
    folder.mkdir()
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
    assert open_source(path).class_names == ("no", "yes")
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
    with pytest.raises(InputError, match="a folder that can be written"):
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
    [("no.csv", "does not exist"), ("g.pt", "a pickle"), ("g.xyz", "a TU folder, a .csv")],
)
def test_unknown_sources(tmp_path: Path, name: str, message: str) -> None:
    if name != "no.csv":
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=message):
        read(tmp_path / name)


def test_other_classes_than_asked_for(tmp_path: Path) -> None:
    path = save([graph(0)], tmp_path / "g.safetensors", class_names=("no", "yes"))
    with pytest.raises(InputError, match="the classes"):
        open_source(path, class_names=("yes", "no"))
    plain = save([graph(0)], tmp_path / "h.safetensors")
    assert open_source(plain, class_names=("yes", "no")).class_names == ("yes", "no")


# -- rejects -------------------------------------------------------------------------------------


def test_read_lists_what_it_leaves_out(tmp_path: Path) -> None:
    folder = tu_folder(tmp_path / "tu", bad=1)
    with pytest.warns(UserWarning, match=r"1 of 10 rows are left out, first TOY_node_attributes"):
        assert len(read(folder)) == 9
    listed = tmp_path / "rejects.csv"
    assert len(read(folder, rejects=listed)) == 9
    (row,) = rejects_in(listed)
    assert (row["file"], row["line"]) == ("TOY_node_attributes.txt", "1")
    assert "no list of numbers" in row["reason"]
    read(tu_folder(tmp_path / "good"), rejects=listed)
    assert rejects_in(listed) == [], "a list of an earlier run misleads"


def test_too_many_rejects_stop_but_are_listed(tmp_path: Path) -> None:
    folder, listed = tu_folder(tmp_path / "tu", bad=2), tmp_path / "rejects.csv"
    with pytest.raises(InputError, match=r"at most 10% .* 2 of 10; the first: TOY_node_attr"):
        read(folder, rejects=listed)
    assert len(rejects_in(listed)) == 2
    assert len(read(folder, rejects=listed, max_rejects=0.2)) == 8
    with pytest.raises(InputError, match="max_rejects from 0 to 1"):
        read(folder, max_rejects=20)


def test_a_share_of_zero_takes_no_reject() -> None:
    log = RejectLog(None, 0.0)
    with pytest.raises(InputError, match="1 of 2"):
        list(log.good([(0, graph(0)), (1, Reject("f", 2, "why"))]))


# -- convert -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_convert_a_folder(tmp_path: Path, chunk: int) -> None:
    target = tmp_path / "g.safetensors"
    done = convert(tu_folder(tmp_path / "tu", bad=1), target, chunk=chunk)
    assert (done.graphs, done.rejected, done.class_names) == (9, 1, ("0", "1"))
    assert done.rejects == Path(f"{target}.rejects.csv")
    assert len(rejects_in(done.rejects)) == 1
    assert [g.x[0, 0].item() for g in read(target)] == list(range(1, 10))
    assert open_source(target).class_names == ("0", "1")


def test_convert_refuses_and_leaves_nothing_half(tmp_path: Path) -> None:
    folder, target = tu_folder(tmp_path / "tu", bad=5), tmp_path / "g.safetensors"
    with pytest.raises(InputError, match="5 of 10"):
        convert(folder, target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.safetensors.rejects.csv", "tu"]
    good = tu_folder(tmp_path / "good")
    assert convert(good, target).rejects is None
    assert rejects_in(Path(f"{target}.rejects.csv")) == []
    with pytest.raises(InputError, match="which exists"):
        convert(good, target)
    assert convert(good, target, overwrite=True).graphs == 10
    with pytest.raises(InputError, match="chunk >= 1"):
        convert(good, tmp_path / "h.safetensors", chunk=0)


def test_convert_a_table(tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    (tmp_path / "m.csv").write_text("mol,act\nCC,yes\nC1C,no\nCCO,no\nC,yes\n")
    done = convert(
        tmp_path / "m.csv",
        tmp_path / "m.safetensors",
        smiles="mol",
        targets=["act"],
        max_rejects=0.5,
    )
    assert (done.graphs, done.rejected, done.class_names) == (3, 1, ("no", "yes"))
    assert [(g.smiles, g.y.item()) for g in read(done.path)] == [("CC", 1), ("CCO", 0), ("C", 1)]


# -- stream --------------------------------------------------------------------------------------


def test_stream_counts_every_row(tmp_path: Path) -> None:
    items = list(stream(tu_folder(tmp_path / "tu", bad=2)))
    assert [index for index, _ in items] == list(range(10))
    assert [isinstance(item, Reject) for _, item in items] == [True, True] + [False] * 8


def test_stream_errors_come_before_the_first_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        stream(tmp_path / "no.csv")


def test_a_stream_holds_one_graph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[weakref.ref[Data]] = []

    class Endless:
        class_names = ()

        def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
            for i in range(100):
                item = graph(i)
                made.append(weakref.ref(item))
                yield i, item

    monkeypatch.setattr(files, "open_source", lambda *_, **__: Endless())
    alive = [sum(ref() is not None for ref in made) for _ in stream(tmp_path)]
    assert len(alive) == 100
    assert max(alive) <= 2  # the one in hand, and the next


def test_convert_holds_a_chunk_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def peak(count: int) -> int:
        class Many:
            class_names = ()
            target_names = ()

            def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
                for i in range(count):
                    yield i, graph(i)

        monkeypatch.setattr(files, "open_source", lambda *_, **__: Many())
        tracemalloc.start()
        convert(tmp_path, tmp_path / f"{count}.safetensors", chunk=50)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(50)  # imports and caches of the first call
    assert peak(1000) < 2 * peak(200)
