"""Models made of several: every member counts as it should, and nothing outside is touched."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

import gduq
from gduq import Ensemble, MCDropout, Stack
from gduq.nn import GNN
from tests.test_calibrated_fit import noisy


def gnn(seed: int, dropout: float = 0.0) -> GNN:
    torch.manual_seed(seed)
    return GNN(4, 8, 3, num_layers=2, conv="gin", head="mlp", dropout=dropout).double()


def anchored(net: GNN, data: list[Data]) -> gduq.Anchored:
    model = gduq.anchor(net, at=1, init="random", num_anchors=4).double()
    return model.fit_bank(data).eval()


# -- weights -------------------------------------------------------------------------------------


def test_every_member_of_an_ensemble_counts_the_same() -> None:
    data = noisy(12, 0)
    one, four = gduq.Network(gnn(0)).eval(), anchored(gnn(1), data)
    p = gduq.predict(Ensemble([one, four]).eval(), data)
    assert p.weights is not None
    assert p.weights.tolist() == pytest.approx([0.5, *[0.125] * 4])
    parts = [gduq.predict(member, data).probs for member in (one, four)]
    assert torch.allclose(p.probs, (parts[0] + parts[1]) / 2)
    assert gduq.predict(Ensemble([gnn(0), gnn(1)]).eval(), data).weights is None


def test_an_ensemble_and_dropout_keep_the_weights_of_a_mixture() -> None:
    data = noisy(12, 0)
    stack = Stack([gduq.Network(gnn(0, 0.3)), gduq.Network(gnn(1, 0.3))], [0.9, 0.1]).eval()
    p = gduq.predict(Ensemble([stack, gduq.Network(gnn(2))]).eval(), data)
    assert p.weights is not None
    assert p.weights.tolist() == pytest.approx([0.45, 0.05, 0.5])
    dropped = gduq.predict(MCDropout(stack, num_samples=2).eval(), data)
    assert dropped.weights is not None
    assert dropped.weights.tolist() == pytest.approx([0.45, 0.05, 0.45, 0.05])
    plain = MCDropout(anchored(gnn(1, 0.3), data), num_samples=2).eval()
    assert gduq.predict(plain, data).weights is None
