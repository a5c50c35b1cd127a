"""Spline calibration, against a spline built from another basis."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq.calibration import SplineCalibration
from gduq.calibration.spline import _spline_slope, replace_top
from gduq.errors import InputError
from gduq.prediction import Prediction
from tests.calibration.battery import overconfident


def natural_basis(t, knots):
    """Truncated powers, combined so that the ends are straight."""

    def d(k):
        cube = np.maximum(t - knots[k], 0) ** 3 - np.maximum(t - knots[-1], 0) ** 3
        return cube / (knots[-1] - knots[k])

    last = d(len(knots) - 2)
    return np.stack([np.ones_like(t), t, *(d(k) - last for k in range(len(knots) - 2))], axis=1)


def test_the_slope_is_that_of_another_basis():
    generator = np.random.default_rng(0)
    t = np.sort(generator.random(300))
    h = np.sin(3 * t) + 0.1 * generator.standard_normal(300)
    knots = np.linspace(0, 1, 7)
    values, *_ = np.linalg.lstsq(natural_basis(t, knots), h, rcond=None)
    step = 1e-6
    ahead, behind = natural_basis(t + step, knots), natural_basis(t - step, knots)
    expected = (ahead - behind) @ values / (2 * step)
    np.testing.assert_allclose(_spline_slope(t, h, 7), expected, atol=1e-5)


def test_confidence_becomes_accuracy():
    p, other = overconfident(rows=4000, samples=1), overconfident(rows=4000, samples=1, seed=1)
    cal = SplineCalibration().fit(p)
    for part in (p, other):
        q = cal(part)
        sure = q.confidence > q.confidence.median()
        for half in (sure, ~sure):
            gap = q.confidence[half].mean() - q.correct[half].double().mean()
            assert abs(float(gap)) < 0.03
        assert abs(float(part.confidence.mean() - part.correct.double().mean())) > 0.15


def test_rows_of_equal_confidence_are_pooled():
    """Many rows share a confidence: order among them must not matter."""
    z = torch.linspace(0.5, 4, 10).repeat_interleave(20)[:, None] * torch.tensor([1.0, 0.0])
    target = (torch.arange(200) % 20 >= 14).long()  # 70 % right at every confidence
    p = Prediction(z.double(), target)
    flipped = Prediction(z.double(), target.view(10, 20).flip(1).flatten())
    once = SplineCalibration().fit(p)
    torch.testing.assert_close(once(p).samples, SplineCalibration().fit(flipped)(p).samples)
    assert len(once.state()["confidence"]) == 10


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 6), st.floats(0.0, 1.0))
def test_replace_top(seed, classes, share):
    generator = torch.Generator().manual_seed(seed)
    logs = (3 * torch.randn(20, classes, generator=generator)).double().log_softmax(dim=1)
    new = torch.full((20,), 1 / classes + share * (0.999 - 1 / classes)).double()
    probs = replace_top(logs, new).exp()
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(20).double())
    top = probs.gather(1, logs.argmax(dim=1, keepdim=True)).squeeze(1)
    torch.testing.assert_close(top, new)
    assert (probs <= top[:, None] + 1e-9).all()
    rest = probs.gather(1, logs.argsort(dim=1))[:, :-1]
    assert (rest.diff(dim=1) >= -1e-12).all()  # the others keep their order


def test_replace_top_with_itself_is_the_identity():
    logs = torch.tensor([[0.0, -800.0, -900.0], [0.5, 0.4, 0.3]]).double().log_softmax(dim=1)
    torch.testing.assert_close(replace_top(logs, logs.amax(dim=1).exp()), logs)


def test_mistakes():
    with pytest.raises(InputError, match="distinct confidences as knots, 7, got 5"):
        SplineCalibration().fit(overconfident(rows=5, samples=1))
    with pytest.raises(InputError, match="got 1"):
        SplineCalibration().fit(Prediction(torch.ones(9, 2), torch.zeros(9)))
    with pytest.raises(InputError, match="knots >= 3"):
        SplineCalibration(knots=2)
