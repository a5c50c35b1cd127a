"""One safetensors file of graphs: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch_geometric.data import Data

from gduq.data.graphfile import FORMAT, read_graphs, write_graphs, write_parts
from gduq.data.packed import Packed
from gduq.errors import InputError
from tests.sealing import rewritten


def graph(nodes: int, seed: int = 0, edges: int = 4) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(nodes, 2, generator=generator, dtype=torch.float64),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        edge_attr=torch.randn(edges, 1, generator=generator),
        y=torch.tensor([seed % 3]),
        smiles="C" * seed,
    )


def assert_same(found: Packed, expected: list[Data]) -> None:
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        assert set(one.keys()) == set(two.keys())
        for key, value in two.items():
            same = torch.equal(one[key], value) if torch.is_tensor(value) else one[key] == value
            assert same, key
            assert not torch.is_tensor(value) or one[key].dtype == value.dtype


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8), part=st.integers(1, 4))
def test_out_comes_what_went_in(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], part: int
) -> None:
    """In one go and in parts: the same graphs, and the same file to the byte."""
    folder = tmp_path_factory.mktemp("graphs")
    graphs = [graph(size, seed, edges=seed % 3) for seed, size in enumerate(sizes)]
    write_graphs(folder / "whole", graphs, ("a", "b", "c"))
    pieces = (graphs[i : i + part] for i in range(0, len(graphs), part))
    assert write_parts(folder / "parts", pieces, ("a", "b", "c")) == len(graphs)
    for name in ("whole", "parts"):
        packed = read_graphs(folder / name)
        class_names = packed.class_names
        assert_same(packed, graphs)
        assert class_names == ("a", "b", "c")
    assert sorted(path.name for path in folder.iterdir()) == ["parts", "whole"]


def test_parts_of_different_layout_join(tmp_path: Path) -> None:
    """Nodes and edges are equally many in one part only, so only that part shares offsets."""
    ring = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
    path = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))
    write_parts(tmp_path / "g", [[ring], [path, ring]])
    assert_same(read_graphs(tmp_path / "g"), [ring, path, ring])


def test_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    from safetensors import safe_open

    write_graphs(tmp_path / "g", [graph(3), graph(2, 1)])
    with safe_open(tmp_path / "g", framework="pt") as file:
        assert file.metadata()["format"] == FORMAT
        assert file.get_tensor("data/x").shape == (5, 2)
        assert file.get_tensor("ptr/node").tolist() == [0, 3, 5]


def test_a_selection_is_written_alone(tmp_path: Path) -> None:
    graphs = [graph(3, seed) for seed in range(5)]
    write_graphs(tmp_path / "g", Packed.pack(graphs)[[4, 1]])
    assert_same(read_graphs(tmp_path / "g"), [graphs[4], graphs[1]])


def test_parts_that_differ_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    other = graph(2)
    other.x = other.x.float()
    with pytest.raises(InputError, match=r"'x' of torch.float64 \[2\] in all graphs"):
        write_parts(tmp_path / "g", [[graph(3)], [other]])
    with pytest.raises(InputError, match="at least one readable graph"):
        write_parts(tmp_path / "g", [])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"edge_index": torch.tensor([[0], [3]])}, "from 0 to 2 in the edges of graph 1"),
        ({"edge_index": torch.tensor([[-1], [0]])}, "from 0 to 2 in the edges of graph 1"),
        ({"x": torch.ones(0, 2, dtype=torch.float64)}, "at least one node"),
    ],
)
def test_unsound_graphs_are_not_written(
    tmp_path: Path, broken: dict[str, torch.Tensor], message: str
) -> None:
    graphs = [graph(2, edges=1), graph(3, edges=1)]
    for key, value in broken.items():
        graphs[1][key] = value
    with pytest.raises(InputError, match=message):
        write_graphs(tmp_path / "g", graphs)
    assert not list(tmp_path.iterdir())


def test_graphs_without_edges_attribute(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="graphs with edge_index"):
        write_graphs(tmp_path / "g", [Data(x=torch.ones(2, 1))])


# -- files of others, and damaged ones -----------------------------------------------------------


def changed(path: Path, changes: dict[str, object]) -> Path:
    """The file with some tensors or texts replaced, and a seal that fits."""

    def words(texts: dict[str, str]) -> None:
        for name, value in changes.items():
            if value is None:
                del texts[name]
            elif isinstance(value, str):
                texts[name] = value

    tensors = {k.replace("__", "/"): v for k, v in changes.items() if isinstance(v, torch.Tensor)}
    return rewritten(path, path.read_bytes(), words, lambda found: found.update(tensors))


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    write_graphs(tmp_path / "g", [graph(3), graph(2, 1)])
    return tmp_path / "g"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "other 3 instead of gduq.graphs 3"),
        ({"version": "4"}, "gduq.graphs 4 instead of gduq.graphs 3"),
        ({"version": "2"}, "gduq.graphs 2 instead of gduq.graphs 3"),
        ({"ptr__node": torch.tensor([0, 4, 3])}, "offsets 'node'"),
        ({"ptr__node": torch.tensor([1, 3, 5])}, "offsets 'node'"),
        ({"ptr__node": torch.tensor([0.0, 3, 5])}, "offsets 'node'"),
        ({"ptr__node": torch.tensor([0, 3, 6])}, "6 rows of 'x'"),
        ({"ptr__node": torch.tensor([0])}, "at least one graph"),
        ({"data__x": torch.ones(4, 2)}, "5 rows of 'x'"),
        ({"data__x": torch.ones(5)}, "one row per node"),
        ({"data__edge_index": torch.full((2, 8), 4)}, "in the edges of graph 0"),
        ({"data__edge_index": torch.zeros(2, 8)}, "an integer edge_index"),
        ({"data__edge_index": torch.zeros(3, 8).long()}, "an integer edge_index"),
        ({"layout": "{}", "deliver": "{}"}, "graphs with edge_index"),
        ({"layout": '{"z": "node"}'}, "data/z"),
        ({"layout": "{"}, "a sound file of graphs"),
        ({"layout": None}, "a sound file of graphs"),
        ({"deliver": '{"x": "system"}'}, "delivered as one of"),
        ({"deliver": '{"z": "int64"}'}, "delivered as one of"),
        ({"deliver": '{"x": "text"}'}, "UTF-8 bytes as 'x'"),
        ({"class_names": "3"}, "a sound file of graphs"),
    ],
)
def test_hand_made_files_are_checked(sound: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_graphs(changed(sound, changes))


def test_every_flipped_byte_is_seen(sound: Path) -> None:
    whole = sound.read_bytes()
    for place in range(0, len(whole), 3):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        sound.write_bytes(content)
        with pytest.raises(InputError, match="a sound file of graphs"):
            read_graphs(sound)


def test_a_file_cut_off_is_seen(sound: Path) -> None:
    sound.write_bytes(sound.read_bytes()[:-9])
    with pytest.raises(InputError, match="a sound file of graphs"):
        read_graphs(sound)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="gduq did not write"):
        read_graphs(tmp_path / "model.safetensors")
    torch.save({"x": 1}, tmp_path / "model.pt")
    with pytest.raises(InputError, match=r"a pickle or torch.save file"):
        read_graphs(tmp_path / "model.pt")
    (tmp_path / "note.txt").write_text(json.dumps({"x": 1}))
    with pytest.raises(InputError, match="a sound file of graphs"):
        read_graphs(tmp_path / "note.txt")


def test_half_precision_is_kept_and_delivered_full(tmp_path: Path) -> None:
    packed = Packed.pack([graph(3), graph(2, 1)])
    half = {**packed.tensors, "x": packed.tensors["x"].half()}
    write_graphs(tmp_path / "g", replace(packed, tensors=half, deliver={"x": "float64"}))
    found = read_graphs(tmp_path / "g")
    assert found.tensors["x"].dtype == torch.float16
    assert found[0].x.dtype == torch.float64


def test_a_header_length_that_looks_like_a_pickle(tmp_path: Path) -> None:
    """A header of such a length starts the file with the byte a pickle starts with."""
    starts = set()
    for extra in range(0, 300, 8):  # as headers are filled up
        path = tmp_path / f"{extra}.safetensors"
        write_graphs(path, [graph(3)], class_names=["x" * extra])
        starts.add(path.read_bytes()[0])
        read_graphs(path)
    assert 0x80 in starts
