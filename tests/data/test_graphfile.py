"""One safetensors file of graphs: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch_geometric.data import Data

from gduq.data import read, save
from gduq.errors import InputError
from gduq.graphs.packed import Packed
from tests.tampering import rewritten


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
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_out_comes_what_went_in(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    path = tmp_path_factory.mktemp("graphs") / "g.safetensors"
    graphs = [graph(size, seed, edges=seed % 3) for seed, size in enumerate(sizes)]
    save(graphs, path, ("a", "b", "c"))
    packed = read(path)
    assert_same(packed, graphs)
    assert packed.class_names == ("a", "b", "c")


def test_a_selection_is_written_alone(tmp_path: Path) -> None:
    graphs = [graph(3, seed) for seed in range(5)]
    save(Packed.pack(graphs)[[4, 1]], tmp_path / "g.safetensors")
    assert_same(read(tmp_path / "g.safetensors"), [graphs[4], graphs[1]])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"edge_index": torch.tensor([[0], [3]])}, "node numbers"),
        ({"edge_index": torch.tensor([[-1], [0]])}, "node numbers"),
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
        save(graphs, tmp_path / "g.safetensors")
    assert not list(tmp_path.iterdir())


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
    save([graph(3), graph(2, 1)], tmp_path / "g.safetensors")
    return tmp_path / "g.safetensors"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "other instead of gduq.graphs"),
        ({"format": "gduq.graphs 3"}, "gduq.graphs 3 instead of gduq.graphs 5"),
        ({"nodes": torch.tensor([0, 4, 3])}, "offsets"),
        ({"nodes": torch.tensor([1, 3, 5])}, "offsets"),
        ({"nodes": torch.tensor([0.0, 3, 5])}, "offsets"),
        ({"nodes": torch.tensor([0, 3, 6])}, "x of shape"),
        ({"nodes": torch.tensor([0])}, "at least one graph"),
        ({"data__x": torch.ones(4, 2)}, "5 rows of 'x'"),
        ({"data__x": torch.ones(5)}, "one row per node"),
        ({"data__edge_index": torch.full((2, 8), 4)}, "node numbers"),
        ({"data__edge_index": torch.zeros(2, 8)}, "int64"),
        ({"data__edge_index": torch.zeros(3, 8).long()}, "shape"),
        ({"text__smiles": torch.full((1,), 255, dtype=torch.uint8)}, "a sound file of graphs"),
        ({"target_names": None}, "a sound file of graphs"),
        ({"class_names": "3"}, "a sound file of graphs"),
    ],
)
def test_hand_made_files_are_checked(sound: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(changed(sound, changes))


def test_a_file_cut_off_is_seen(sound: Path) -> None:
    sound.write_bytes(sound.read_bytes()[:-9])
    with pytest.raises(InputError, match="a sound file of graphs"):
        read(sound)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="did not write"):
        read(tmp_path / "model.safetensors")
    torch.save({"x": 1}, tmp_path / "pickle.safetensors")
    with pytest.raises(InputError, match=r"a pickle or torch.save file"):
        read(tmp_path / "pickle.safetensors")
    (tmp_path / "note.safetensors").write_text(json.dumps({"x": 1}))
    with pytest.raises(InputError, match="a sound file of graphs"):
        read(tmp_path / "note.safetensors")


def test_a_header_length_that_looks_like_a_pickle(tmp_path: Path) -> None:
    """A header of such a length starts the file with the byte a pickle starts with."""
    starts = set()
    for extra in range(0, 300, 8):  # as headers are filled up
        path = tmp_path / f"{extra}.safetensors"
        save([graph(3)], path, class_names=["x" * extra])
        starts.add(path.read_bytes()[0])
        read(path)
    assert 0x80 in starts
