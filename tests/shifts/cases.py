"""Tiny graphs for the tests of shifts."""

import torch
from torch_geometric.data import Data

NO_EDGES = torch.zeros(2, 0).long()


def dots(sizes, labels=None):
    """Graphs without edges."""
    labels = labels if labels is not None else [i % 2 for i in range(len(sizes))]
    return [
        Data(x=torch.full((n, 1), float(i)), edge_index=NO_EDGES, y=torch.tensor([y]))
        for i, (n, y) in enumerate(zip(sizes, labels, strict=True))
    ]


def assert_partition(cut, n):
    rows = torch.cat([torch.as_tensor(r) for r in cut.values()])
    assert torch.equal(rows.sort().values, torch.arange(n))
