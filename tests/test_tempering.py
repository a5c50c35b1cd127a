"""Less confidence far from the anchors: who gets it, by how much, and what stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_mean_pool

import gduq
from gduq.nn import GNN
from gduq.tempering import NEAR, reach_of, tempered


def graphs(count: int = 40, scale: float = 1.0) -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    ring = torch.arange(5)
    edges = torch.stack([ring, ring.roll(1)])
    features = scale * torch.randn(count, 5, 3, generator=generator)
    return [Data(x=x, edge_index=edges, y=torch.tensor(i % 2)) for i, x in enumerate(features)]


def net(**options: object) -> GNN:
    torch.manual_seed(0)
    return GNN(3, 8, 2, num_layers=2, head="mlp", **options)


def model(**options: object) -> gduq.Anchored:
    return gduq.anchor(net(), freeze=True, num_anchors=4, **options).fit_bank(graphs())


def test_it_is_the_default_of_a_head_on_a_frozen_network() -> None:
    assert model().temper
    assert not model(temper=False).temper
    assert not gduq.anchor(net(), freeze=True, at=1).temper  # nodes there, graphs in the answer
    assert not gduq.anchor(net()).temper  # equation (1) as it stands


def test_nearly_all_training_rows_are_within_reach() -> None:
    found = model()
    h = torch.cat([found.represent(graph) for graph in graphs()])
    distance = torch.cdist(h, found.bank).mean(1)
    assert (distance <= found.reach).float().mean() == pytest.approx(NEAR, abs=0.03)


def test_logits_shrink_with_the_distance_and_keep_their_order() -> None:
    found, plain = model(), model(temper=False)
    plain.load_state_dict(found.state_dict())
    for scale in (1.0, 30.0):
        for graph in graphs(10, scale):
            with torch.no_grad():
                far = torch.cdist(found.represent(graph), found.bank).mean() / found.reach
                ours, theirs = found.sample(graph), plain.sample(graph)
            torch.testing.assert_close(ours, theirs / far.clamp_min(1.0))
            assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
    assert far > 2  # the last ones were far away


def test_training_does_not_see_it() -> None:
    found, plain = model().train(), model(temper=False).train()
    graph = graphs(1, scale=100.0)[0]
    passes = []
    for one in (found, plain):
        torch.manual_seed(3)
        passes.append(one(graph))
    assert torch.equal(*passes)


def test_a_bank_of_given_anchors_has_a_reach_too() -> None:
    found = gduq.anchor(net(), freeze=True, anchors=torch.zeros(10, 8)).fit_bank(graphs())
    h = torch.cat([found.represent(graph) for graph in graphs()])
    assert float(found.reach) == pytest.approx(float(h.norm(dim=1).quantile(NEAR)), rel=1e-5)


def test_weights_of_before_have_no_reach(tmp_path) -> None:
    found = model()
    old = {k: v for k, v in found.state_dict().items() if k != "reach"}
    fresh = gduq.anchor(net(), freeze=True, num_anchors=4)
    fresh.load_state_dict(old)
    graph = graphs(1, scale=100.0)[0]
    fresh.eval()
    assert torch.isinf(fresh.reach)
    plain = model(temper=False)
    plain.load_state_dict(found.state_dict())
    with torch.no_grad():
        assert torch.equal(fresh.sample(graph), plain.sample(graph))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_any_precision(dtype: torch.dtype) -> None:
    found = gduq.anchor(net().to(dtype), freeze=True, num_anchors=4)
    found.fit_bank(graphs()).eval()
    with torch.no_grad():
        near, far = (found.sample(graphs(1, scale)[0]) for scale in (1.0, 1e3))
    assert near.dtype == far.dtype == dtype
    assert far.isfinite().all()


def test_a_bundle_keeps_it(tmp_path) -> None:
    found = model()
    gduq.save(found, tmp_path / "bundle")
    loaded, _ = gduq.load(tmp_path / "bundle")
    graph = graphs(1, scale=50.0)[0]
    assert loaded.temper
    with torch.no_grad():
        assert torch.equal(loaded.sample(graph), found.sample(graph))


class Pooled(nn.Module):
    """Somebody else's network: a layer on nodes, one on graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.on_nodes, self.on_graphs = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return self.on_graphs(global_mean_pool(self.on_nodes(x).relu(), batch))


def test_other_modules_can_have_it_where_rows_are_answers() -> None:
    behind = gduq.anchor(Pooled(), at="on_graphs", num_anchors=4, temper=True).fit_bank(graphs())
    before = gduq.anchor(Pooled(), at="on_nodes", num_anchors=4, temper=True).fit_bank(graphs())
    far, near = (Batch.from_data_list(graphs(2, scale)) for scale in (100.0, 1.0))
    with torch.no_grad():
        assert behind.eval().sample(far).shape == (4, 2, 2)
        with pytest.raises(gduq.InputError, match="one representation for every answer"):
            before.eval().sample(near)


def test_without_rows_nothing_is_out_of_reach() -> None:
    assert reach_of(None, torch.zeros(2, 3)) == torch.inf
    logits, h = torch.ones(2, 3, 4), 1e6 * torch.ones(3, 5)
    assert torch.equal(tempered(logits, h, torch.zeros(2, 5), torch.tensor(torch.inf)), logits)
