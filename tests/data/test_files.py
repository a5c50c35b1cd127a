"""Graphs of one's own by path: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch_geometric.data import Data

from gduq.data import read, save, stream
from gduq.data.outputs import Reject
from gduq.errors import InputError
from gduq.graphs import Packed, View
from tests.tampering import rewritten


def graph(nodes: int = 3, seed: int = 0, edges: int = 4) -> Data:
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


# -- save and read ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_out_comes_what_went_in(tmp_path_factory, sizes):
    path = tmp_path_factory.mktemp("graphs") / "g.safetensors"
    graphs = [graph(size, seed, edges=seed % 3) for seed, size in enumerate(sizes)]
    packed = read(save(graphs, path, ("a", "b", "c")))
    assert_same(packed, graphs)
    assert packed.class_names == ("a", "b", "c")
    assert stream(path).class_names == ("a", "b", "c")
    assert len(View(packed)) == len(sizes)


@pytest.mark.parametrize("kind", ["iterator", "selection", "subclass"])
def test_save_takes_any_graphs(tmp_path, kind):
    class Special(Data):
        pass

    graphs = [graph(3, seed) for seed in range(5)]
    given = {
        "iterator": iter(graphs),
        "selection": Packed.pack(graphs[::-1])[[4, 3, 2, 1, 0]],
        "subclass": [Special.from_dict(g.to_dict()) for g in graphs],
    }[kind]
    assert_same(read(save(given, tmp_path / "g.safetensors")), graphs)


def test_save_replaces_and_keeps_the_old_file_on_failure(tmp_path):
    path = save([graph()], tmp_path / "g.safetensors")
    save([graph(), graph(2)], path)
    with pytest.raises(InputError):
        save([graph(), Data(x=torch.ones(1, 1))], path)
    assert len(read(path)) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["g.safetensors"]


def edged(**values) -> list[Data]:
    """Two graphs, the second with other values."""
    graphs = [graph(2, edges=1), graph(3, edges=1)]
    graphs[1].update(values)
    return graphs


@pytest.mark.parametrize(
    ("graphs", "name"),
    [
        ([graph()], "g.pt"),
        ([graph()], "no/g.safetensors"),
        (graph(), "g.safetensors"),
        ([1], "g.safetensors"),
        ([], "g.safetensors"),
        (edged(edge_index=torch.tensor([[0], [3]])), "g.safetensors"),
        (edged(edge_index=torch.tensor([[-1], [0]])), "g.safetensors"),
        (edged(x=torch.ones(0, 2, dtype=torch.float64)), "g.safetensors"),
    ],
)
def test_save_refuses(tmp_path, graphs, name):
    with pytest.raises(InputError):
        save(graphs, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["no.csv", "g.pt", "g.xyz", "t.xlsx", "folder"])
def test_sources_that_are_not_read(tmp_path, name):
    if name == "folder":
        (tmp_path / name).mkdir()
    elif name != "no.csv":
        (tmp_path / name).write_text("x")
    for function in (read, stream):  # before the first row
        with pytest.raises(InputError):
            function(tmp_path / name)


def test_other_classes_than_asked_for(tmp_path):
    path = save([graph()], tmp_path / "g.safetensors", class_names=("no", "yes"))
    with pytest.raises(InputError):
        stream(path, class_names=("yes", "no"))
    plain = save([graph()], tmp_path / "h.safetensors")
    assert stream(plain, class_names=("yes", "no")).class_names == ("yes", "no")


def test_rows_that_are_left_out(tmp_path):
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    path = tmp_path / "m.csv"
    path.write_text("smiles,y\n?,0\n" + "".join(f"{'C' * (i + 1)},{i % 2}\n" for i in range(9)))
    with pytest.warns(UserWarning, match=r"1 of 10 rows .* m.csv, line 2"):
        found = read(path, targets=["y"])
    assert View(found).target.tolist() == [0, 1] * 4 + [0]
    with pytest.raises(InputError):
        read(path, max_rejects=0.05)
    rows = list(stream(path))
    assert [index for index, _ in rows] == list(range(10))
    assert [isinstance(item, Reject) for _, item in rows] == [True] + [False] * 9


# -- files of others, and damaged ones -------------------------------------------------------------


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
def sound(tmp_path):
    return save([graph(3), graph(2, 1)], tmp_path / "g.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"format": "gduq.graphs 3"},
        {"nodes": torch.tensor([0, 4, 3])},
        {"nodes": torch.tensor([1, 3, 5])},
        {"nodes": torch.tensor([0.0, 3, 5])},
        {"nodes": torch.tensor([0, 3, 6])},
        {"nodes": torch.tensor([0])},
        {"data__x": torch.ones(4, 2)},
        {"data__x": torch.ones(5)},
        {"data__edge_index": torch.full((2, 8), 4)},
        {"data__edge_index": torch.zeros(2, 8)},
        {"data__edge_index": torch.zeros(3, 8).long()},
        {"text__smiles": torch.full((1,), 255, dtype=torch.uint8)},
        {"target_names": None},
        {"class_names": "3"},
    ],
)
def test_hand_made_files_are_checked(sound, changes):
    with pytest.raises(InputError):
        read(changed(sound, changes))


def test_foreign_files_are_refused(tmp_path, sound):
    sound.write_bytes(sound.read_bytes()[:-9])
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    torch.save({"x": 1}, tmp_path / "pickle.safetensors")
    (tmp_path / "note.safetensors").write_text(json.dumps({"x": 1}))
    for path in tmp_path.iterdir():
        with pytest.raises(InputError):
            read(path)
