"""Metrics of values against uncertainty-toolbox, scikit-learn, scipy and numeric integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from gduq import metrics
from gduq.errors import InputError
from gduq.metrics.rows import METRICS, ValueRows, read_one
from gduq.prediction import ValuePrediction


def make(m=300, k=4, seed=0, noise=1.5, ties=False, **options) -> ValuePrediction:
    """Over-confident float64 mixtures: true deviations are ``noise`` times the predicted ones."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    centre, logs = 3 * normal(1, m, 1), normal(1, m, 1) - 1
    if ties:
        centre, logs = centre.round(), logs.round()
    apart = 0.3 * float(k > 1)
    means, logs = centre + apart * normal(k, 1, 1), logs + apart * normal(k, 1, 1)
    target = centre[0, :, 0] + noise * logs[0, :, 0].mul(0.5).exp() * normal(m)
    if ties:
        target = target.round()
    return ValuePrediction(torch.cat([means, logs], dim=2), target, **options)


def weighted(k: int = 4) -> torch.Tensor:
    return torch.arange(1, k + 1, dtype=torch.float64) / sum(range(1, k + 1))


def integral(p: ValuePrediction, i: int) -> float:
    """The CRPS of row i from its definition, left and right of the truth."""
    one, points = p[i], 100_001
    y, reach = float(one.target), 12 * float(one.variances.max().sqrt())
    low, high = min(float(one.means.min()), y) - reach, max(float(one.means.max()), y) + reach
    same = p[torch.full((points,), i)]
    total = 0.0
    for start, end, side in ((low, y, 0.0), (y, high, 1.0)):
        x = torch.linspace(start, end, points, dtype=torch.float64)
        total += integrate.simpson((same.cdf(x) - side).square().numpy(), x=x.numpy())
    return total


def test_errors_equal_scikit_learn():
    p = make()
    y, mean = p.target.numpy(), p.mean.numpy()
    assert metrics.rmse(p) == pytest.approx(root_mean_squared_error(y, mean))
    assert metrics.mae(p) == pytest.approx(mean_absolute_error(y, mean))
    assert metrics.r2(p) == pytest.approx(r2_score(y, mean))


def test_r2_of_equal_values_and_of_large_ones_close_together():
    p = make(m=50)
    assert math.isnan(metrics.r2(ValuePrediction(p.samples, torch.full((50,), 7.3))))
    assert math.isnan(metrics.r2(p[0]))
    far = torch.tensor([1e6, 0.0], dtype=torch.float64)
    moved = ValuePrediction(p.samples + far, p.target + 1e6)
    assert metrics.r2(moved) == pytest.approx(metrics.r2(p), abs=1e-6)


@pytest.mark.parametrize("weights", [None, weighted()])
def test_nll_equals_scipy(weights):
    p = make(weights=weights)
    share = np.full(4, 0.25) if weights is None else weights.numpy()
    density = stats.norm.pdf(p.target.numpy(), p.means[..., 0], p.variances[..., 0].sqrt())
    assert metrics.nll(p) == pytest.approx(-np.log(share @ density).mean())


def test_crps_of_gaussians_equals_uncertainty_toolbox():
    toolbox = pytest.importorskip("uncertainty_toolbox", reason="the oracle is not installed")
    p = make(k=1)
    expected = toolbox.crps_gaussian(p.mean.numpy(), p.std.numpy(), p.target.numpy())
    assert metrics.crps(p) == pytest.approx(expected)


@pytest.mark.parametrize("weights", [None, weighted()])
def test_crps_of_mixtures_equals_the_integral(weights):
    p = make(m=12, weights=weights)
    expected = [integral(p, i) for i in range(12)]
    assert read_one(p, ValueRows).crps.numpy() == pytest.approx(np.array(expected), abs=1e-7)
    assert metrics.crps(p) == pytest.approx(np.mean(expected))


def test_crps_of_certainty_is_the_absolute_error():
    samples = torch.tensor([[[2.0, -60.0]], [[2.0, -60.0]]], dtype=torch.float64)
    assert metrics.crps(ValuePrediction(samples, torch.tensor([5.0]))) == pytest.approx(3.0)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_coverage_and_width_are_those_of_the_intervals(level):
    p = make(weights=weighted())
    low, high = p.interval(level)
    inside = (low <= p.target) & (p.target <= high)
    assert metrics.coverage(p, level) == pytest.approx(float(inside.double().mean()))
    assert metrics.width(p, level) == pytest.approx(float((high - low).mean()))


def test_coverage_of_a_calibrated_model_is_its_level():
    p = make(m=5000, k=1, noise=1.0)
    for level in (0.5, 0.8, 0.9, 0.95):
        error = math.sqrt(level * (1 - level) / 5000)
        assert abs(metrics.coverage(p, level) - level) < 3 * error
    assert metrics.miscalibration_area(p) < 0.015
    assert metrics.ence(p) < 0.06


@pytest.mark.parametrize("noise", [0.4, 1.0, 2.0])
def test_calibration_equals_uncertainty_toolbox(noise):
    toolbox = pytest.importorskip("uncertainty_toolbox", reason="the oracle is not installed")
    p = make(k=1, noise=noise)
    given = p.mean.numpy(), p.std.numpy(), p.target.numpy()
    expected = toolbox.miscalibration_area(*given)
    assert metrics.miscalibration_area(p) == pytest.approx(expected, abs=1e-12)
    levels, shares = toolbox.get_proportion_lists_vectorized(*given)
    curve = metrics.calibration_curve(p)
    assert curve.level.numpy() == pytest.approx(levels)
    assert curve.share.numpy() == pytest.approx(shares)
    assert metrics.sharpness(p) == pytest.approx(toolbox.sharpness(p.std.numpy()))


def test_calibration_curve_of_a_mixture_is_its_coverage():
    p = make()
    curve = metrics.calibration_curve(p)
    for level, share in zip(curve.level[1:-1:9].tolist(), curve.share[1:-1:9], strict=True):
        assert metrics.coverage(p, level) == pytest.approx(float(share))
    right = stats.binomtest(round(float(curve.share[5]) * 300), 300)
    expected = right.proportion_ci(0.95, method="wilson")
    assert (curve.low[5].item(), curve.high[5].item()) == pytest.approx(tuple(expected))
    assert curve.share[-1] == 1


def test_ence_equals_its_formula():
    p = make(m=103)
    order = np.argsort(p.std.numpy())
    variance, loss = (p.std**2).numpy()[order], ((p.target - p.mean) ** 2).numpy()[order]
    terms = []
    for part in np.array_split(np.arange(103), 10):
        deviation, error = math.sqrt(variance[part].mean()), math.sqrt(loss[part].mean())
        terms.append(abs(deviation - error) / deviation)
    assert metrics.ence(p) == pytest.approx(np.mean(terms))


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_equals_scipy(ties):
    p = make(k=1, ties=ties)
    error = (p.target - p.mean).abs().numpy()
    assert metrics.spearman(p) == pytest.approx(stats.spearmanr(p.variance, error).statistic)
    assert math.isnan(metrics.spearman(ValuePrediction(torch.zeros(5, 2), torch.arange(5.0))))


def test_risk_is_the_squared_error_of_the_rows_kept():
    p = make(m=60)
    order = np.argsort(p.std.numpy())
    loss = ((p.target - p.mean) ** 2).numpy()
    risks = np.array([loss[order[:i]].mean() for i in range(1, 61)])
    curve = metrics.risk_coverage(p)
    assert curve.risk.numpy() == pytest.approx(risks)
    assert curve.threshold.numpy() == pytest.approx(p.std.numpy()[order])
    assert curve.coverage[-1] == 1
    assert metrics.aurc(p) == pytest.approx(risks.mean())
    assert metrics.rmse(p) == pytest.approx(math.sqrt(risks[-1]))


@pytest.mark.parametrize("metric", [f for f in METRICS if "values" in METRICS[f].limits])
def test_several_values_are_refused_with_the_remedy(metric):
    p = ValuePrediction(torch.zeros(2, 30, 4), torch.arange(60.0).view(30, 2))
    with pytest.raises(InputError):
        metric(p)
    assert metric(p.column(1)) is not None


def test_width_and_sharpness_need_no_truth():
    p = ValuePrediction(torch.zeros(3, 2))
    assert metrics.width(p, 0.9) == pytest.approx(2 * stats.norm.ppf(0.95), abs=1e-5)
    assert metrics.sharpness(p) == 1
