"""Isotonic, histogram and spline calibration, against scikit-learn, netcal and another basis."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq.calibration import HistogramBinning, IsotonicCalibration, SplineCalibration
from gduq.calibration.probabilities import _isotonic, _spline_slope, replace_top
from gduq.errors import InputError
from gduq.prediction import Prediction
from tests.calibration.battery import overconfident


@pytest.mark.parametrize("decimals", [1, 2, 12])
def test_the_function_is_scikit_learns(decimals):
    """Also with many equal inputs, inside and outside the range seen."""
    from sklearn.isotonic import IsotonicRegression

    generator = np.random.default_rng(0)
    x = generator.random(500).round(decimals) * 0.8 + 0.1
    hit = generator.random(500) < x**2
    theirs = IsotonicRegression(out_of_bounds="clip").fit(x, hit)
    ours = _isotonic(x, hit)
    grid = np.linspace(0, 1, 1001)
    np.testing.assert_allclose(np.interp(grid, *ours), theirs.predict(grid), atol=1e-9)


def test_calibrated_probabilities_are_the_normalised_fit():
    from sklearn.isotonic import IsotonicRegression

    p = overconfident(rows=400, samples=1)
    hit = torch.nn.functional.one_hot(p.target, 4).flatten().numpy()
    theirs = IsotonicRegression(out_of_bounds="clip").fit(p.probs.flatten().numpy(), hit)
    raw = theirs.predict(p.probs.flatten().numpy()).reshape(-1, 4) + 1e-9 * p.probs.numpy()
    expected = raw / raw.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(IsotonicCalibration().fit(p)(p).probs, expected, atol=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_the_order_of_all_classes_stays(seed):
    p = overconfident(rows=100, samples=1, seed=seed)
    new = IsotonicCalibration().fit(p)(p).logits
    ordered = new.gather(1, p.logits.argsort(dim=1))
    assert (ordered.diff(dim=1) >= 0).all()


def test_one_row_is_enough_for_a_function():
    p = Prediction(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert IsotonicCalibration().fit(p)(p).label.tolist() == [0]


def test_histogram_equals_netcals():
    binning = pytest.importorskip("netcal.binning", reason="netcal is not installed")
    p = overconfident(rows=2000, samples=1)
    theirs = binning.HistogramBinning(bins=5)
    theirs.fit(p.probs.numpy(), p.target.numpy())
    ours = HistogramBinning(bins=5).fit(p)
    assert ours.state()["filled"].all()  # netcal fills empty bins with their middle
    np.testing.assert_allclose(ours(p).probs, theirs.transform(p.probs.numpy()), atol=2e-6)


def test_histogram_by_hand():
    """Two bins, two classes: 3 of 4 right above one half."""
    z = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4)
    p = Prediction(z, torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]))
    q = HistogramBinning(bins=2).fit(p)(p)
    torch.testing.assert_close(q.probs[0], torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(q.probs[4], torch.tensor([0.0, 1.0]), atol=2e-6, rtol=0)


def test_bins_of_equal_mass_hold_equally_many():
    p = overconfident(rows=1000, samples=1)
    edges = HistogramBinning(bins=10, scheme="mass").fit(p).state()["edges"]
    for c in range(4):
        inside = torch.bucketize(p.probs[:, c].contiguous(), edges[c].contiguous())
        assert torch.bincount(inside, minlength=10).tolist() == [100] * 10


def test_an_empty_bin_changes_nothing():
    sure = Prediction(torch.tensor([[9.0, 0.0], [0.0, 9.0]] * 5), torch.arange(10) % 2)
    cal = HistogramBinning(bins=4).fit(sure)
    unsure = Prediction(torch.tensor([[0.5, 0.0]]))
    torch.testing.assert_close(cal(unsure).probs, unsure.probs)


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


def test_too_few_rows():
    with pytest.raises(InputError, match=r"as many rows as bins, 10, got 9.*fewer bins"):
        HistogramBinning().fit(overconfident(rows=9, samples=1))
    with pytest.raises(InputError, match="distinct confidences as knots, 7, got 5"):
        SplineCalibration().fit(overconfident(rows=5, samples=1))
    with pytest.raises(InputError, match="got 1"):
        SplineCalibration().fit(Prediction(torch.ones(9, 2), torch.zeros(9)))
