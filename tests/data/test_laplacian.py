"""Laplacian encodings by hand, and on awkward graphs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from gduq.data.generated import add_laplacian
from gduq.errors import InputError
from gduq.graphs.packed import Packed


def connected(nodes, extra, seed):
    """A random connected graph."""
    generator = torch.Generator().manual_seed(seed)
    parent = [int(torch.randint(0, i, (), generator=generator)) for i in range(1, nodes)]
    tree = torch.stack([torch.arange(1, nodes), torch.tensor(parent)])
    more = torch.randint(0, nodes, (2, extra), generator=generator)
    return to_undirected(torch.cat([tree, more[:, more[0] != more[1]]], 1), num_nodes=nodes)


def encoding(edges, nodes, k=4):
    """The encoding of one graph."""
    packed = Packed.pack([Data(x=torch.ones(nodes, 1), edge_index=edges)])
    return add_laplacian(packed, k).tensors["pe"]


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 12), st.integers(0, 8), st.integers(1, 6), st.integers(0, 10**6))
def test_columns_are_eigenvectors_of_ascending_eigenvalues(nodes, extra, k, seed):
    edges = connected(nodes, extra, seed)
    pe, real = encoding(edges, nodes, k).double(), min(k, nodes - 1)
    adjacency = torch.zeros(nodes, nodes, dtype=torch.float64)
    adjacency[edges[0], edges[1]] = 1.0
    scale = adjacency.sum(1).clamp(min=1) ** -0.5
    laplacian = torch.eye(nodes, dtype=torch.float64) - scale[:, None] * adjacency * scale
    expected = torch.linalg.eigvalsh(laplacian)[1 : k + 1]
    assert (pe.gather(0, pe.abs().argmax(dim=0)[None])[0, :real] > -1e-5).all()
    assert torch.allclose(laplacian @ pe[:, :real], pe[:, :real] * expected, atol=1e-5)
    gram = pe[:, :real].t() @ pe[:, :real]
    assert torch.allclose(gram, torch.eye(real, dtype=torch.float64), atol=1e-5)
    assert not pe[:, real:].any()


def test_fewer_nodes_than_eigenvectors_are_padded_with_zeros():
    pe = encoding(torch.tensor([[0, 1], [1, 0]]), 2)
    assert torch.allclose(pe.abs(), torch.tensor([[0.5**0.5, 0.0, 0.0, 0.0]] * 2))
    assert encoding(torch.zeros(2, 0).long(), 1, k=2).tolist() == [[0, 0]]


def test_directions_repeats_and_loops_do_not_matter():
    two = connected(9, 8, seed=3)
    half, loops = two[:, two[0] < two[1]], torch.stack([torch.arange(9)] * 2)
    assert torch.equal(encoding(torch.cat([half, half, loops], 1), 9), encoding(two, 9))


def test_repeated_eigenvalues_span_the_same_space_whatever_the_numbering():
    ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])  # each eigenvalue twice
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    one = encoding(ring, 6, k=2)
    two = encoding(order[ring], 6, k=2)[order]
    assert torch.allclose(one @ one.t(), two @ two.t(), atol=1e-6)
    assert torch.equal(one, encoding(ring, 6, k=2))  # and is the same every time


def test_many_graphs_at_once(monkeypatch):
    monkeypatch.setattr("gduq.data.generated._ENTRIES", 10)  # a few at a time
    graphs = [
        Data(x=torch.ones(n, 1), edge_index=connected(n, 2, seed=n), y=0) for n in (3, 9, 3, 5, 2)
    ]
    packed = add_laplacian(Packed.pack(graphs), k=3)
    for graph, plain in zip(packed, graphs, strict=True):
        alone = encoding(plain.edge_index, plain.num_nodes, k=3)
        assert torch.allclose(graph.pe, alone, atol=1e-6)
        assert torch.equal(graph.edge_index, plain.edge_index)
    assert [g.num_nodes for g in add_laplacian(Packed.pack(graphs)[[1, 4]], k=3)] == [9, 2]
    with pytest.raises(InputError):
        add_laplacian(packed, 0)
