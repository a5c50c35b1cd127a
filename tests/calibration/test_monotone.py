"""Isotonic, spline and order-invariant calibration, against scikit-learn and equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from gduq.calibration import IsotonicCalibration, OrderInvariantCalibration, SplineCalibration
from gduq.calibration.monotone import replace_top
from gduq.errors import InputError
from gduq.prediction import ClassPrediction
from tests.calibration.kinds import overconfident

P = overconfident(rows=300, samples=1)
CAL = OrderInvariantCalibration().fit(P)


def test_calibrated_probabilities_are_the_normalised_fit():
    p = overconfident(rows=400, samples=1)
    hit = F.one_hot(p.target, 4).flatten().numpy()
    theirs = IsotonicRegression(out_of_bounds="clip").fit(p.probs.flatten().numpy(), hit)
    raw = theirs.predict(p.probs.flatten().numpy()).reshape(-1, 4) + 1e-9 * p.probs.numpy()
    expected = raw / raw.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(IsotonicCalibration().fit(p)(p).probs, expected, atol=1e-9)


@pytest.mark.parametrize("cal", [IsotonicCalibration().fit(P), CAL])
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_the_order_of_classes_stays(cal, seed):
    z = 4 * torch.randn(20, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    new = cal(P[:20].with_samples(z[None])).logits
    assert (new.gather(1, z.argsort(dim=1)).diff(dim=1) >= 0).all()


def natural_basis(t, knots):
    """Truncated powers, combined so that the ends are straight."""

    def d(k):
        cube = np.maximum(t - knots[k], 0) ** 3 - np.maximum(t - knots[-1], 0) ** 3
        return cube / (knots[-1] - knots[k])

    last = d(len(knots) - 2)
    return np.stack([np.ones_like(t), t, *(d(k) - last for k in range(len(knots) - 2))], axis=1)


def test_the_correction_is_the_slope_in_another_basis():
    p = overconfident(rows=300, samples=1)
    state = SplineCalibration().fit(p).state()
    order = p.confidence.argsort()
    gap = (p.correct.double() - p.confidence)[order].numpy()
    t, h, knots = np.arange(1, 301) / 300, gap.cumsum() / 300, np.linspace(0, 1, 7)
    values, *_ = np.linalg.lstsq(natural_basis(t, knots), h, rcond=None)
    step = 1e-6
    ahead, behind = natural_basis(t + step, knots), natural_basis(t - step, knots)
    expected = (ahead - behind) @ values / (2 * step)
    np.testing.assert_allclose(state["correction"], expected, atol=1e-5)


def test_rows_of_equal_confidence_are_pooled():
    """Many rows share a confidence: order among them must not matter."""
    z = torch.linspace(0.5, 4, 10).repeat_interleave(20)[:, None] * torch.tensor([1.0, 0.0])
    target = (torch.arange(200) % 20 >= 14).long()  # 70 % right at every confidence
    p = ClassPrediction(z.double(), target)
    flipped = ClassPrediction(z.double(), target.view(10, 20).flip(1).flatten())
    once = SplineCalibration().fit(p)
    torch.testing.assert_close(once(p).samples, SplineCalibration().fit(flipped)(p).samples)
    assert len(once.state()["confidence"]) == 10


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 6), st.floats(0.0, 0.999))
def test_replace_top(seed, classes, share):
    generator = torch.Generator().manual_seed(seed)
    logs = (3 * torch.randn(20, classes, generator=generator)).double().log_softmax(dim=1)
    probs = replace_top(logs, torch.full((20,), share, dtype=torch.float64)).exp()
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(20).double())
    top = probs.gather(1, logs.argmax(dim=1, keepdim=True)).squeeze(1)
    assert (probs <= top[:, None] + 1e-9).all()
    rest, before = (x.gather(1, logs.argsort(dim=1))[:, :-1] for x in (probs, logs.exp()))
    raised = (rest[:, -1] - top).abs() < 1e-9  # the second class is as probable
    assert (raised | ((top - share).abs() < 1e-9)).all()
    torch.testing.assert_close(rest / rest.sum(1, True), before / before.sum(1, True))


def test_too_few_rows():
    for p in (overconfident(5, samples=1), ClassPrediction(torch.ones(9, 2), torch.zeros(9))):
        with pytest.raises(InputError):
            SplineCalibration().fit(p)


def test_equation_by_hand():
    """One row, with plain loops over the definition."""
    state = CAL.state()
    z, order = (P.logits[5] * state["scale"]).sort(descending=True)
    z = z - z.mean()
    hidden = (state["0.weight"] @ z + state["0.bias"]).relu()
    out = state["2.weight"] @ hidden + state["2.bias"]
    steps = F.softplus(out + torch.tensor(1.0).expm1().log())
    expected = torch.zeros(4, dtype=torch.float64)
    for i in range(4):
        expected[order[i]] = sum(steps[j] * (z[j] - z[j + 1]) for j in range(i, 3))
    found = CAL(P).logits[5]
    constant = P.logits[5].logsumexp(0) - expected.logsumexp(0)  # the energy stays
    torch.testing.assert_close(found, expected + constant, rtol=1e-6, atol=1e-9)
