"""Models made of several: every member counts as it should, and nothing outside is touched."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import gduq
from gduq import Ensemble, HeadEnsemble, InputError, LastLayerLaplace, MCDropout, Neighbours, Stack
from gduq.nn import GNN
from gduq.tracing.call import redraw
from tests.training.test_calibrated_fit import noisy


def gnn(seed: int, dropout: float = 0.0, kind: type[GNN] = GNN) -> GNN:
    torch.manual_seed(seed)
    return kind(4, 8, 3, num_layers=2, conv="gin", head="mlp", dropout=dropout).double()


def anchored(net: GNN, data: list[Data]) -> gduq.Anchored:
    model = gduq.anchor(net, at=1, init="random", num_anchors=4).double()
    return model.fit_anchors(data).eval()


# -- weights -------------------------------------------------------------------------------------


def test_every_member_counts_the_same_and_keeps_the_weights_of_its_mixture() -> None:
    data = noisy(12, 0)
    one, four = gduq.Network(gnn(0)).eval(), anchored(gnn(1), data)
    p = gduq.predict(Ensemble([one, four]).eval(), data)
    assert p.weights.tolist() == pytest.approx([0.5, *[0.125] * 4])
    assert gduq.predict(Ensemble([gnn(0), gnn(1)]).eval(), data).weights is None
    stack = Stack([gduq.Network(gnn(0, 0.3)), gduq.Network(gnn(1, 0.3))], [0.9, 0.1]).eval()
    p = gduq.predict(Ensemble([stack, gduq.Network(gnn(2))]).eval(), data)
    assert p.weights.tolist() == pytest.approx([0.45, 0.05, 0.5])
    dropped = gduq.predict(MCDropout(stack, num_samples=2).eval(), data)
    assert dropped.weights.tolist() == pytest.approx([0.45, 0.05, 0.45, 0.05])
    plain = MCDropout(anchored(gnn(1, 0.3), data), num_samples=2).eval()
    assert gduq.predict(plain, data).weights is None


# -- fresh weights -------------------------------------------------------------------------------


class Attending(nn.Module):
    """Attention, whose weights are drawn by `_reset_parameters`, and a weight that nobody draws."""

    def __init__(self, bare: Tensor) -> None:
        super().__init__()
        self.attention, self.bare = nn.MultiheadAttention(4, 2), nn.Parameter(bare)


def test_attention_is_drawn_anew_and_a_bare_weight_is_refused() -> None:
    net = Attending(torch.zeros(4))  # a constant says nothing
    before = net.attention.in_proj_weight.detach().clone()
    assert not torch.equal(redraw(net).attention.in_proj_weight, before)
    with pytest.raises(InputError, match="bare"):
        redraw(Attending(torch.arange(4.0)))


class Waiting(GNN):
    """A network whose head a first graph shows."""

    def forward(self, graph: Data) -> Tensor:
        return super().forward(graph)


# -- fits leave nothing behind -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LastLayerLaplace, HeadEnsemble, Neighbours])
def test_torchs_random_state_stays(kind: Any) -> None:
    nets, data, val = (gnn(0), gnn(0, kind=Waiting)), noisy(30, 1), noisy(30, 2)
    state = torch.get_rng_state()
    for own in nets:
        gduq.fit(kind(own), data, val, progress=False)
        assert torch.equal(state, torch.get_rng_state())


def test_a_gaussian_head_forgets_the_rows_of_an_earlier_fit() -> None:
    far = noisy(30, 5)
    for graph in far:
        graph.x = graph.x + 100
    models = [gduq.anchor(gnn(0), anchors="gaussian") for _ in range(2)]
    gduq.fit(models[1], far, noisy(30, 2), progress=False)
    means = []
    for model in models:
        gduq.fit(model, noisy(30, 1), noisy(30, 2), progress=False)
        means.append(model.source.mean)  # type: ignore[union-attr]
    assert torch.equal(*means)


# -- warnings ------------------------------------------------------------------------------------


def test_only_hypotheses_that_hardly_disagree_are_a_reason_to_warn() -> None:
    model, data, val = gduq.anchor(gnn(0)), noisy(60, 1), noisy(60, 2)
    with pytest.warns(UserWarning, match="hardly disagree") as caught:
        gduq.fit(model, data, val, epochs=1, lr=1e-6, progress=False)
    assert [Path(w.filename).name for w in caught] == ["test_members.py"]
    assert 0 < gduq.predict(model, val).epistemic.mean() < 1e-4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = gduq.anchor(gnn(0), mask=0.2)
        gduq.fit(model, data, val, epochs=20, lr=0.02, progress=False)
        gduq.fit(gduq.anchor(gnn(0), num_anchors=1), data, val, epochs=1, progress=False)
    assert gduq.predict(model, val).epistemic.mean() > 1e-4
