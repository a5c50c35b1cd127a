"""Models made of several: every member counts as it should, and nothing outside is touched."""

from __future__ import annotations

import copy
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


def gnn(seed: int, dropout: float = 0.0) -> GNN:
    torch.manual_seed(seed)
    return GNN(4, 8, 3, num_layers=2, conv="gin", head="mlp", dropout=dropout).double()


def anchored(net: GNN, data: list[Data]) -> gduq.Anchored:
    model = gduq.anchor(net, at=1, init="random", num_anchors=4).double()
    return model.fit_anchors(data).eval()


# -- weights -------------------------------------------------------------------------------------


def test_every_member_of_an_ensemble_counts_the_same() -> None:
    data = noisy(12, 0)
    one, four = gduq.Network(gnn(0)).eval(), anchored(gnn(1), data)
    p = gduq.predict(Ensemble([one, four]).eval(), data)
    assert p.weights.tolist() == pytest.approx([0.5, *[0.125] * 4])
    parts = [gduq.predict(member, data).probs for member in (one, four)]
    assert torch.allclose(p.probs, (parts[0] + parts[1]) / 2)
    assert gduq.predict(Ensemble([gnn(0), gnn(1)]).eval(), data).weights is None


def test_an_ensemble_and_dropout_keep_the_weights_of_a_mixture() -> None:
    data = noisy(12, 0)
    stack = Stack([gduq.Network(gnn(0, 0.3)), gduq.Network(gnn(1, 0.3))], [0.9, 0.1]).eval()
    p = gduq.predict(Ensemble([stack, gduq.Network(gnn(2))]).eval(), data)
    assert p.weights.tolist() == pytest.approx([0.45, 0.05, 0.5])
    dropped = gduq.predict(MCDropout(stack, num_samples=2).eval(), data)
    assert dropped.weights.tolist() == pytest.approx([0.45, 0.05, 0.45, 0.05])
    plain = MCDropout(anchored(gnn(1, 0.3), data), num_samples=2).eval()
    assert gduq.predict(plain, data).weights is None


# -- fresh weights -------------------------------------------------------------------------------


class Attending(nn.Module):
    """Attention, whose weights are drawn by `_reset_parameters`, and perhaps a bare weight."""

    def __init__(self, bare: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.bare = nn.Parameter(torch.randn(4)) if bare else None
        self.flat = nn.Parameter(torch.zeros(4))  # a constant says nothing


def test_attention_is_drawn_anew_and_a_bare_weight_is_refused() -> None:
    torch.manual_seed(0)
    net = Attending(bare=False)
    before = net.attention.in_proj_weight.detach().clone()
    redraw(net)
    assert not torch.equal(net.attention.in_proj_weight, before)
    with pytest.raises(InputError, match="bare"):
        redraw(Attending(bare=True))


class Scaled(nn.Module):
    """A network with a weight that nothing can draw anew."""

    def __init__(self) -> None:
        super().__init__()
        self.net = gnn(0)
        self.scale = nn.Parameter(torch.tensor([1.0, 1.1, 0.9, 1.2], dtype=torch.float64))

    def forward(self, data: Data) -> Tensor:
        data = copy.copy(data)
        data.x = data.x * self.scale
        return self.net(data)  # type: ignore[no-any-return]


# -- fits leave nothing behind -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LastLayerLaplace, HeadEnsemble, Neighbours])
def test_torchs_random_state_stays(kind: Any) -> None:
    nets, data, val = (gnn(0), Scaled()), noisy(30, 1), noisy(30, 2)
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


def test_the_learning_rate_of_a_head_falls_at_milestones() -> None:
    data, fitted = noisy(30, 1), {}
    for gamma in (1.0, 0.1, 1e-9):
        model = gduq.anchor(gnn(0))
        options = {"lr": 0.02, "milestones": [1, 2], "progress": False}
        history = gduq.fit(model, data, epochs=4, gamma=gamma, **options)  # type: ignore[arg-type]
        rates = [record.lr for record in history.records]
        assert rates == pytest.approx([0.02, 0.02 * gamma, *[0.02 * gamma**2] * 2])
        fitted[gamma] = history.records[-1].loss
    assert len(set(fitted.values())) == 3


# -- warnings ------------------------------------------------------------------------------------


def test_hypotheses_that_hardly_disagree_are_said_at_the_users_line() -> None:
    model, data, val = gduq.anchor(gnn(0)), noisy(60, 1), noisy(60, 2)
    with pytest.warns(UserWarning, match="hardly disagree") as caught:
        gduq.fit(model, data, val, epochs=1, lr=1e-6, progress=False)
    assert [Path(w.filename).name for w in caught] == ["test_members.py"]
    p = gduq.predict(model, val)
    assert 0 < p.epistemic.mean() < 1e-4


def test_hypotheses_that_disagree_and_one_alone_are_no_reason_to_warn() -> None:
    data, val = noisy(60, 1), noisy(60, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = gduq.anchor(gnn(0), mask=0.2)
        gduq.fit(model, data, val, epochs=20, lr=0.02, progress=False)
        gduq.fit(gduq.anchor(gnn(0), num_anchors=1), data, val, epochs=1, progress=False)
    assert gduq.predict(model, val).epistemic.mean() > 1e-4
