"""Structure goes all the way: what `fit` notes of it, `predict` answers by, whatever the model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import SAGEConv

import gduq
from gduq.data import View
from gduq.nn import GNN
from tests.training.test_calibrated_fit import MODELS, citation, fit, models, noisy


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


def test_mates_and_names_change_nothing() -> None:
    model, val = MODELS["head"](), noisy(50, 2)
    fit(model, noisy(60, 1), val)
    mixed = [*val, *(grown(graph, 2) for graph in val)]
    whole = novelty(model, mixed)
    assert torch.equal(novelty(model, mixed, batch_size=1), whole)
    assert torch.equal(novelty(model, mixed[::-1]), whole.flip(0))
    renamed = []
    for graph in mixed:
        order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))
        edges = order.argsort()[graph.edge_index]
        renamed.append(Data(x=graph.x[order], edge_index=edges, y=graph.y))
    assert torch.equal(novelty(model, renamed), whole)


def crowded(view: View, node: int, ends: int) -> View:
    """The same nodes, and so many more edges to one of them, from nodes like it."""
    graph = copy.copy(view.graphs[0])
    like = (graph.y == graph.y[node]).nonzero().flatten()
    sources = like[torch.arange(ends) % len(like)]
    more = torch.stack([sources, torch.full((ends,), node)])
    graph.edge_index = torch.cat([graph.edge_index, more], dim=1)
    return View(graph, view.rows)


def node_model(train: View, val: View) -> GNN:
    torch.manual_seed(0)
    model = GNN(6, 16, 3, num_layers=2, conv="gcn", head="mlp", task="node")
    fit(model, train, val, epochs=20)
    return model


def test_a_degree_never_seen_is_novel() -> None:
    train, val, test = citation()
    model = node_model(train, val)
    node = int(test.numbers[0])
    before, after = (novelty(model, view) for view in (test, crowded(test, node, 60)))
    assert after[0] >= 0.999
    assert before[0] < 0.95
    assert 0.3 < before.mean() < 0.7
    at = test.numbers
    far = ~torch.isin(at, test.graphs[0].edge_index)  # without neighbours, so far from the change
    assert far.sum() > 3
    assert torch.equal(before[far], after[far])


def sampled(graph: Data, seeds: int) -> Data:
    found = copy.copy(graph)
    found.batch_size = seeds
    return found


def test_samples_of_neighbours_have_no_structure() -> None:
    """Their degrees are those of the sample, so they neither teach nor judge."""
    train, val, _ = citation()
    graph = val.graphs[0]
    model = node_model(train, val)
    assert known(model).novelty.reads_structure
    part = sampled(graph, 100)
    rows = gduq.predict(model, part, features=True).features
    assert torch.equal(novelty(model, part), known(model).novelty(rows))
    torch.manual_seed(0)
    other = GNN(6, 16, 3, num_layers=2, conv="gcn", head="mlp", task="node")
    loader = DataLoader([sampled(graph, 80)], batch_size=None)
    fit(other, loader, val, epochs=2)
    assert known(other).novelty.fitted
    assert not known(other).novelty.reads_structure


def test_a_bundle_says_the_same(tmp_path: Path) -> None:
    model, val = MODELS["head"](), noisy(50, 2)
    fit(model, noisy(60, 1), val)
    again, _ = gduq.load(gduq.save(model, tmp_path / "m"))
    mixed = [*val, *(grown(graph, 2) for graph in val)]
    assert torch.equal(novelty(again, mixed), novelty(model, mixed))
    assert again.novelty.reads_structure


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
