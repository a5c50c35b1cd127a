"""Graphs for the tests of this room."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

few = settings(deadline=None, max_examples=40)


seeds = st.integers(0, 10_000)


@st.composite
def sound(draw: st.DrawFn, max_nodes: int = 6) -> Data:
    """Any graph that must pass: no edges, isolated nodes, loops and double edges are fine."""
    nodes, width = draw(st.integers(1, max_nodes)), draw(st.integers(1, 4))
    node = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=8))
    edges = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
    x = torch.randn(nodes, width, generator=torch.Generator().manual_seed(draw(seeds)))
    x = x.to_sparse_csr() if draw(st.booleans()) else x
    graph = Data(x=x, edge_index=edges)
    if draw(st.booleans()):
        graph.edge_attr = torch.rand(len(pairs), 2)
    if draw(st.booleans()):
        graph.edge_weight = torch.rand(len(pairs))
    return graph


def judged(nodes: int = 4) -> Data:
    """As many nodes as edges to be judged, so that counts tell nothing."""
    ends = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    graph = Data(x=torch.ones(nodes, 2), edge_index=ends[:, :2], y=torch.arange(nodes))
    graph.edge_label_index, graph.edge_label = ends, torch.tensor([1.0, 0.0, 1.0, 1.0])
    return graph


def hetero(papers: int = 3, authors: int = 2) -> HeteroData:
    graph = HeteroData()
    graph["paper"].x, graph["paper"].y = torch.ones(papers, 4), torch.arange(papers)
    graph["author"].x = torch.ones(authors, 2)
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [0, 1, 2]])
    return ToUndirected()(graph)
