"""Networks and data of the tests of training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv, global_mean_pool

import gduq
from gduq.anchoring.anchors import Anchors
from gduq.data import View


class Net(nn.Module):
    """Two layers without BatchNorm and dropout."""

    def __init__(self, classes: int = 3, node_task: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = GraphConv(4, 8)
        self.head = nn.Linear(8, classes)
        self.node_task = node_task
        self.double()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.conv(x, edge_index).tanh()
        return self.head(h if self.node_task else global_mean_pool(h, batch))


def graphs(count: int, classes: int = 3, seed: int = 0) -> list[Data]:
    """Random graphs whose features tell their class."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        nodes = 3 + i % 4
        x = torch.randn(nodes, 4, generator=generator, dtype=torch.float64) + i % classes
        edges = torch.randint(nodes, (2, 2 * nodes), generator=generator)
        found.append(Data(x=x, edge_index=edges, y=torch.tensor([i % classes])))
    return found


def node_view(nodes: int = 41, marked: int = 25, classes: int = 3) -> View:
    """One graph, some of whose nodes are labelled."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(nodes, 4, generator=generator, dtype=torch.float64)
    edges = torch.randint(nodes, (2, 3 * nodes), generator=generator)
    y = torch.arange(nodes) ** 2 % classes
    return View(Data(x=x, edge_index=edges, y=y), torch.arange(marked))


class OneAnchor(Anchors):
    """Always the same anchor."""

    def draw(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.full_like(rows[:1], 0.3).expand(count, -1)

    def bank(self, stream: Iterable[Tensor], k: int, generator: torch.Generator) -> Tensor:
        return self.draw(next(iter(stream)), k)


def anchored(draws: int = 1) -> gduq.Anchored:
    """One fixed anchor."""
    recipe = gduq.Recipe.paper("graph", num_anchors=1, draws=draws)
    model = gduq.anchor(Net(), recipe=recipe, like=graphs(1)[0]).double()
    model.source = OneAnchor()
    return model
