"""Structure goes all the way: what `fit` notes of it, `predict` answers by, whatever the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import SAGEConv

import gduq
from tests.training.test_calibrated_fit import MODELS, fit, models, noisy


def grown(graph: Data, times: int) -> Data:
    """So many copies side by side: every mean over its nodes is what it was."""
    nodes = graph.num_nodes
    edges = [graph.edge_index + i * nodes for i in range(times)]
    return Data(x=graph.x.repeat(times, 1), edge_index=torch.cat(edges, dim=1), y=graph.y)


def known(model: nn.Module) -> Any:
    return gduq.models.as_predictor(model)


def novelty(model: nn.Module, data: Any, **options: Any) -> Tensor:
    found = gduq.predict(model, data, **options).novelty
    assert found is not None
    return found


@models("plain", "thawed")
def test_every_model_sees_a_graph_that_is_too_large(case: str) -> None:
    model, val = MODELS[case](), noisy(50, 2)
    fit(model, noisy(60, 1), val)
    assert known(model).novelty.reads_structure
    large = [grown(graph, 3) for graph in val]
    assert (novelty(model, large) >= 0.999).all()
    assert abs(float(novelty(model, val).mean()) - 0.5) < 0.02
    alone = known(model).novelty(gduq.predict(model, large, features=True).features)
    if case != "thawed":  # there the rows are those of a layer, which sees more
        assert alone.mean() < 0.6  # a mean over its nodes does not show it


class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = SAGEConv(3, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(x, edge_index).relu())


def test_parts_of_a_graph_do_not_teach_degrees() -> None:
    """In a random tenth of the nodes hardly any edge is left; the whole graph is not strange."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    x = nn.functional.one_hot(y, 3) + 0.5 * torch.randn(300, 3, generator=generator)
    data = Data(x=x, edge_index=torch.randint(300, (2, 3000), generator=generator), y=y)
    torch.manual_seed(0)
    net, loader = Sage(), RandomNodeLoader(data, num_parts=5)
    gduq.fit(net, loader, RandomNodeLoader(data, num_parts=5), epochs=3, progress=False)
    assert not known(net).novelty.reads_structure
    assert novelty(net, data).mean() < 0.8
