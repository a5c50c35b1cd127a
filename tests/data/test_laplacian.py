"""Laplacian encodings against PyG, by hand, and on awkward graphs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE
from torch_geometric.utils import to_undirected

from gduq.data.laplacian import add_laplacian, laplacian_encoding
from gduq.errors import InputError
from gduq.graphs.packed import Packed


def connected(nodes, extra, seed):
    """A random connected graph."""
    generator = torch.Generator().manual_seed(seed)
    parent = [int(torch.randint(0, i, (), generator=generator)) for i in range(1, nodes)]
    tree = torch.stack([torch.arange(1, nodes), torch.tensor(parent)])
    more = torch.randint(0, nodes, (2, extra), generator=generator)
    return to_undirected(torch.cat([tree, more[:, more[0] != more[1]]], 1), num_nodes=nodes)


def normalised(edges, nodes):
    adjacency = torch.zeros(nodes, nodes, dtype=torch.float64)
    adjacency[edges[0], edges[1]] = 1.0
    scale = adjacency.sum(1).clamp(min=1) ** -0.5
    return torch.eye(nodes, dtype=torch.float64) - scale[:, None] * adjacency * scale


@pytest.mark.parametrize(("nodes", "extra"), [(7, 3), (25, 30), (600, 900)])
def test_equal_to_pyg_up_to_sign(nodes, extra):
    """Small components are decomposed densely, the last one by Lanczos."""
    edges = connected(nodes, extra, seed=1)
    mine = laplacian_encoding(edges, nodes, k=3)
    data = AddLaplacianEigenvectorPE(3, attr_name="pe", is_undirected=True)(
        Data(edge_index=edges, num_nodes=nodes)
    )
    sign = (mine * data.pe).sum(0).sign()
    assert torch.allclose(mine, data.pe * sign, atol=2e-4)


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 12), st.integers(0, 8), st.integers(1, 6), st.integers(0, 10**6))
def test_columns_are_eigenvectors_of_ascending_eigenvalues(nodes, extra, k, seed):
    edges = connected(nodes, extra, seed)
    pe = laplacian_encoding(edges, nodes, k).double()
    laplacian = normalised(edges, nodes)
    expected = torch.linalg.eigvalsh(laplacian)[1 : k + 1]
    real = min(k, nodes - 1)
    assert (pe.gather(0, pe.abs().argmax(dim=0)[None])[0, :real] > -1e-5).all()
    assert torch.allclose(laplacian @ pe[:, :real], pe[:, :real] * expected, atol=1e-5)
    gram = pe[:, :real].t() @ pe[:, :real]
    assert torch.allclose(gram, torch.eye(real, dtype=torch.float64), atol=1e-5)
    assert not pe[:, real:].any()


def test_fewer_nodes_than_eigenvectors_are_padded_with_zeros():
    pe = laplacian_encoding(torch.tensor([[0, 1], [1, 0]]), 2, k=4)
    assert torch.allclose(pe.abs(), torch.tensor([[0.5**0.5, 0.0, 0.0, 0.0]] * 2))
    assert laplacian_encoding(torch.zeros(2, 0).long(), 3, k=2).tolist() == [[0, 0]] * 3
    assert laplacian_encoding(torch.zeros(2, 0).long(), 0, k=2).shape == (0, 2)


def test_components_are_encoded_on_their_own():
    """Also when their nodes are interleaved, and whatever the edges' directions and repeats."""
    one, two = connected(9, 5, seed=2), connected(9, 8, seed=3)
    apart = [laplacian_encoding(e, 9) for e in (one, two)]
    half, loops = two[:, two[0] < two[1]], torch.stack([torch.arange(9)] * 2)
    messy = torch.cat([half, half, loops], 1)
    together = laplacian_encoding(torch.cat([2 * one, 2 * messy + 1], 1), 18)
    assert torch.allclose(together[0::2], apart[0], atol=1e-6)
    assert torch.allclose(together[1::2], apart[1], atol=1e-6)


def test_repeated_eigenvalues_span_the_same_space_whatever_the_numbering():
    ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])  # each eigenvalue twice
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    one = laplacian_encoding(ring, 6, k=2)
    two = laplacian_encoding(order[ring], 6, k=2)[order]
    assert torch.allclose(one @ one.t(), two @ two.t(), atol=1e-6)
    assert torch.equal(one, laplacian_encoding(ring, 6, k=2))  # and is the same every time


def test_many_graphs_at_once():
    graphs = [
        Data(x=torch.ones(n, 1), edge_index=connected(n, 2, seed=n), y=0) for n in (3, 9, 3, 5, 2)
    ]
    packed = add_laplacian(Packed.pack(graphs), k=3)
    for graph, plain in zip(packed, graphs, strict=True):
        alone = laplacian_encoding(plain.edge_index, plain.num_nodes, k=3)
        assert torch.allclose(graph.pe, alone, atol=1e-6)
        assert torch.equal(graph.edge_index, plain.edge_index)
    assert [g.num_nodes for g in add_laplacian(Packed.pack(graphs)[[1, 4]], k=3)] == [9, 2]


def test_a_long_path_has_its_known_eigenvectors():
    """L of a path: eigenvector j is sqrt(degree) * cos(pi j i / (n - 1))."""
    n = 3000
    path = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    found = laplacian_encoding(path, n, k=3).double()
    place = torch.arange(n, dtype=torch.float64)
    degree = torch.full((n,), 2.0, dtype=torch.float64)
    degree[[0, -1]] = 1.0
    for j in range(3):
        known = degree.sqrt() * torch.cos(torch.pi * (j + 1) * place / (n - 1))
        known = known / known.norm()
        assert abs(float(known @ found[:, j])) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("edges", "k"), [([[0], [3]], 4), ([[-1], [0]], 4), ([[0], [1]], 0)])
def test_edges_and_numbers_out_of_range(edges, k):
    with pytest.raises(InputError):
        laplacian_encoding(torch.tensor(edges), 3, k)
