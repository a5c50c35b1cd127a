"""Order-invariant calibration: order, names of classes, equation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq.calibration import OrderInvariantCalibration, TemperatureScaling
from tests.calibration.battery import nll, overconfident

P = overconfident(rows=300, samples=1)
CAL = OrderInvariantCalibration(prior=1.0).fit(P)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_the_order_of_all_classes_stays(seed):
    z = 4 * torch.randn(20, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    new = CAL(P[:20].with_samples(z[None])).logits
    assert torch.equal(new.argsort(dim=1), z.argsort(dim=1))


def test_names_of_classes_and_shifts_play_no_role():
    order = torch.tensor([2, 0, 3, 1])
    permuted = P.with_samples(P.samples[:, :, order])
    torch.testing.assert_close(CAL(permuted).samples, CAL(P).samples[:, :, order])
    shifted = P.with_samples(P.samples + 7.0)
    torch.testing.assert_close(CAL(shifted).samples, CAL(P).samples + 7.0)


def test_equation_by_hand():
    """One row, with plain loops over the definition."""
    state = CAL.state()
    z, order = (P.logits[5] * state["scale"]).sort(descending=True)
    z = z - z.mean()
    hidden = (state["0.weight"] @ z + state["0.bias"]).relu()
    steps = F.softplus(
        state["2.weight"] @ hidden + state["2.bias"] + torch.tensor(1.0).expm1().log()
    )
    expected = torch.zeros(4, dtype=torch.float64)
    for i in range(4):
        expected[order[i]] = sum(steps[j] * (z[j] - z[j + 1]) for j in range(i, 3))
    found = CAL(P).logits[5]
    constant = P.logits[5].logsumexp(0) - expected.logsumexp(0)  # the energy stays
    torch.testing.assert_close(found, expected + constant, rtol=1e-6, atol=1e-9)


def test_more_than_temperature_where_it_matters():
    """Logits bent by a power: no single temperature undoes it."""
    p, other = (overconfident(rows=3000, samples=1, seed=s) for s in (0, 1))
    bend = [q.with_samples(q.samples.sign() * q.samples.abs() ** 2 / 3) for q in (p, other)]
    flexible, plain = (c.fit(bend[0]) for c in (OrderInvariantCalibration(), TemperatureScaling()))
    assert nll(flexible(bend[1])) < nll(plain(bend[1])) - 0.005


def test_hidden_width_and_seed():
    small = OrderInvariantCalibration(hidden=2, seed=3).fit(P)
    assert small.state()["0.weight"].shape == (2, 4)
    assert small.config() == {"hidden": 2, "prior": 0.2, "steps": 50, "seed": 3}
