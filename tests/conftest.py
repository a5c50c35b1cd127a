"""Tiny graphs shared by the tests. Nothing here needs a file or the network."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings
from torch_geometric.data import Data

# The same examples in every run, so that a failure is about the change at hand.
# HYPOTHESIS_PROFILE=search looks for new ones (`make test-all` does).
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def tiny_graph(nodes: int, seed: int, channels: int = 4, classes: int = 3) -> Data:
    """A random graph with a graph label, in double precision; some nodes may be isolated."""
    generator = torch.Generator().manual_seed(seed)
    edges = (torch.rand(nodes, nodes, generator=generator) < 0.4).triu(1)
    edges = (edges | edges.T).nonzero().T.contiguous()
    x = torch.randn(nodes, channels, generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (1,), generator=generator)
    return Data(x=x, edge_index=edges, y=y)


@pytest.fixture
def graphs() -> list[Data]:
    """Seven labelled graphs of 1 to 7 nodes, 4 features, 3 classes, float64."""
    return [tiny_graph(nodes, seed) for seed, nodes in enumerate((3, 5, 1, 4, 7, 2, 6))]


@pytest.fixture
def node_graph() -> Data:
    """One graph of 9 nodes with a label each (4 features, 3 classes, float64)."""
    graph = tiny_graph(9, seed=11)
    graph.y = torch.arange(9) % 3
    return graph
