"""Shifted copies: which features they may change, and how little they copy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data

from gduq.data import View
from gduq.errors import InputError
from gduq.graphs.packed import try_pack
from gduq.shifts import feature_mask, feature_noise
from gduq.shifts.corruptions import category_columns, shifted_copies

ATOMS = torch.tensor([[6.0, 0.0, 1.0], [8.0, 0.0, 0.0], [7.0, 2.0, 1.0], [6.0, 1.0, 0.0]])


def graphs(x: Tensor, count: int = 3) -> list[Data]:
    ring = torch.arange(x.size(0))
    edges = torch.stack([ring, ring.roll(1)])
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    return [Data(x=x.clone(), edge_index=edges, y=torch.tensor([i % 2])) for i in range(count)]


@pytest.mark.parametrize("count", [1, 3])
def test_numbers_of_categories_stay(count: int) -> None:
    """Stored as floats, as `from_smiles(...).x.float()` has them."""
    copies = list(shifted_copies(View(graphs(ATOMS, count))))
    assert len(copies) == 4  # of edges only
    for copy in copies:
        for graph in copy.graphs:
            torch.testing.assert_close(graph.x, ATOMS, rtol=0, atol=0)


@pytest.mark.parametrize("change", [feature_noise, feature_mask])
@pytest.mark.parametrize("count", [1, 3])
def test_columns_beside_categories_change(change, count: int) -> None:
    x = torch.cat([ATOMS, torch.rand(4, 2) + 0.1], dim=1)
    view = View(graphs(x, count))
    for graph in change(view, 5).graphs:
        torch.testing.assert_close(graph.x[:, :3], ATOMS, rtol=0, atol=0)
    assert any(not torch.equal(graph.x[:, 3:], x[:, 3:]) for graph in change(view, 5).graphs)
    with pytest.raises(InputError):
        change(View(graphs(ATOMS, count)), 5)


def test_what_numbers_categories() -> None:
    words = torch.randint(0, 4, (50, 200)).float()  # counts of words are no categories
    assert not category_columns(words).any()
    assert category_columns(ATOMS).all()
    assert category_columns(ATOMS.long()).all()
    assert not category_columns(ATOMS[:, 2:]).any()  # flags or one-hot features
    assert not category_columns(ATOMS + 0.5).any()
    assert category_columns(ATOMS - 6.0).all()  # charges, for one
    assert not category_columns(words.to_sparse_csr()).any()


def test_what_is_hidden_of_a_packed_set_does_not_count() -> None:
    """Fractions of other graphs do not make category numbers of these ones features to noise."""
    packed = try_pack([*graphs(ATOMS + 0.5, 1), *graphs(ATOMS, 3)])
    assert packed is not None
    assert len(list(shifted_copies(View(packed).take(torch.tensor([1, 2, 3]))))) == 4


def test_sparse_features_without_an_entry_have_copies() -> None:
    (one,) = graphs(ATOMS, 1)
    one.x = torch.zeros(4, 3).to_sparse_csr()
    assert len(list(shifted_copies(View(one)))) == 8


class _Largest(TorchDispatchMode):
    """Notes how many entries new float tensors have in all."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        given = [a.data_ptr() for a in args if isinstance(a, Tensor)]
        if isinstance(found, Tensor) and found.is_floating_point():
            self.made += found.numel() * (found.data_ptr() not in given)
        return found


def test_one_wide_graph_is_not_copied_more_than_once() -> None:
    x = torch.rand(40, 500)
    view = View(graphs(x, 1))
    seen = []
    copies = shifted_copies(view)
    while True:
        with _Largest() as mode:
            copy = next(copies, None)
        if copy is None:
            break
        shared = copy.graphs[0].x.data_ptr() == view.graphs[0].x.data_ptr()
        seen.append((shared, mode.made < 0.1 * x.numel(), mode.made < 1.2 * x.numel()))
    assert seen == [(True, True, True)] * 4 + [(False, False, True)] * 4


def test_dense_features_too_large_to_copy_are_shared(monkeypatch) -> None:
    ring = torch.arange(20)
    graph = Data(x=torch.rand(20, 100), edge_index=torch.stack([ring, ring.roll(1)]), y=ring)
    assert any(copy.graphs[0].x is not graph.x for copy in shifted_copies(View(graph)))
    monkeypatch.setattr("gduq.shifts.corruptions._MOST_ENTRIES", 1999)
    copies = list(shifted_copies(View(graph)))
    assert copies
    assert all(copy.graphs[0].x.data_ptr() == graph.x.data_ptr() for copy in copies)
    assert all(copy.graphs[0].edge_index is not graph.edge_index for copy in copies)
