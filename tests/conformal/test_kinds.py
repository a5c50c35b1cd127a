"""Conformal intervals of values, sets of labels and of rare classes: coverage, mapie, shift."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import beta

from gduq.conformal import (
    METHODS,
    ClassConditional,
    ConformalIntervals,
    ShiftWarning,
    SplitConformal,
    conformal_quantile,
    shift_test,
)
from gduq.errors import InputError, NotFittedError
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from tests.conformal.test_conformal import Given, draw, mapie_sets

SCORES = ConformalIntervals.scores


def values(m: int, seed: int, count: int = 1, spread: float = 1.0) -> ValuePrediction:
    """Two hypotheses that differ; the truth is twice as far off as they say, more in some rows."""
    generator = torch.Generator().manual_seed(seed)
    logs = torch.randn(m, count, generator=generator, dtype=torch.float64)
    means = 3 * torch.randn(m, count, generator=generator, dtype=torch.float64) * spread
    shift = 0.3 * torch.randn(m, count, generator=generator, dtype=torch.float64)
    noise = torch.randn(m, count, generator=generator, dtype=torch.float64)
    target = means + 2 * noise * (0.5 * logs).exp()
    samples = torch.stack([torch.cat([means + s * shift, logs], dim=1) for s in (-1, 1)])
    novelty = torch.rand(m, generator=generator, dtype=torch.float64)
    return ValuePrediction(samples, target, features=means[:, :1], novelty=novelty)


def labels(m: int, seed: int, scale: float = 2.0) -> LabelPrediction:
    """Three labels, the last one rare, some unknown; logits twice too large."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(m, 3, generator=generator, dtype=torch.float64)
    logits = logits - torch.tensor([0.0, 0.0, 5.0])
    target = (torch.rand(m, 3, generator=generator) < (logits / 2).sigmoid()).double()
    target[torch.rand(m, 3, generator=generator) < 0.2] = math.nan
    return LabelPrediction(logits, target, names=("a", "b", "rare"))


def within_beta(coverages: list[float], rows: int, alpha: float, tested: int) -> bool:
    """Whether mean and spread of coverages are those of exact split conformal prediction.

    Given the rows fitted on, coverage is Beta(k, n + 1 - k), k the place of the quantile.
    """
    place = math.ceil((rows + 1) * (1 - alpha) - 1e-9)
    law = beta(place, rows + 1 - place)
    spread = math.sqrt(law.var() + law.mean() * (1 - law.mean()) / tested)
    close = abs(np.mean(coverages) - law.mean()) < 3.5 * spread / math.sqrt(len(coverages))
    return close and 0.8 < np.std(coverages) / spread < 1.2


@pytest.mark.parametrize("score", SCORES)
def test_coverage_of_intervals_over_seeds(score):
    found, alpha = [], 0.15
    for seed in range(200):
        p = values(60 + 200, seed)
        fitted = ConformalIntervals(alpha, score, shift_level=0).fit(p[:60])
        found.append(fitted(p[60:]).coverage)
    assert within_beta(found, 60, alpha, 200)


@pytest.mark.parametrize("score", SCORES)
def test_every_value_is_by_itself(score):
    p = values(300, 0, count=3)
    p = replace(p, target=p.target * torch.tensor([1.0, 10.0, 0.1]))
    intervals = ConformalIntervals(0.2, score, shift_level=0).fit(p[:100])(p[100:])
    assert intervals.low.shape == intervals.size.shape == intervals.covered.shape == (200, 3)
    for t in range(3):
        alone = ConformalIntervals(0.2, score, shift_level=0).fit(p[:100].column(t))
        torch.testing.assert_close(alone(p[100:].column(t)).low, intervals.low[:, t])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("alpha", [0.1, 0.25])
@pytest.mark.parametrize("rows", [100, 251])
@pytest.mark.parametrize("score", SCORES)
def test_intervals_equal_mapie(score, alpha, rows):
    mapie = pytest.importorskip("mapie.regression", reason="the oracle mapie is not installed")
    from mapie.conformity_scores import ResidualNormalisedScore

    parts = values(rows, 1), values(300, 2)
    columns = [(p.quantile(alpha / 2), p.quantile(1 - alpha / 2), p.mean, p.std) for p in parts]
    X, X_test = (torch.stack(column, dim=1).numpy() for column in columns)
    options = {"confidence_level": 1 - alpha, "prefit": True}
    if score == "cqr":
        oracle = mapie.ConformalizedQuantileRegressor(list(map(Given, range(3))), **options)
        more = {"symmetric_correction": True}
    else:
        theirs = ResidualNormalisedScore(residual_estimator=Given(3), prefit=True)
        theirs = theirs if score == "normalised" else "absolute"
        oracle = mapie.SplitConformalRegressor(Given(2), conformity_score=theirs, **options)
        more = {}
    _, ends = oracle.conformalize(X, parts[0].target.numpy()).predict_interval(X_test, **more)
    ours = ConformalIntervals(alpha, score).fit(parts[0])(parts[1])
    np.testing.assert_allclose(ours.low, ends[:, 0, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.high, ends[:, 1, 0], rtol=1e-6, atol=1e-6)


def test_intervals_equal_their_formulas():
    p = values(40, 0)
    fitted = ConformalIntervals(0.2, "normalised").fit(p)
    scores = (p.target - p.mean).abs() / p.std
    assert fitted.quantile.item() == pytest.approx(conformal_quantile(scores, 0.2))
    torch.testing.assert_close(fitted(p).size, 2 * fitted.quantile * p.std)
    cqr = ConformalIntervals(0.2, "cqr").fit(p)
    low, high = p.interval(0.8)
    scores = torch.maximum(low - p.target, p.target - high)
    assert cqr.quantile.item() == pytest.approx(conformal_quantile(scores, 0.2))


def test_intervals_never_turn_over():
    """A model that is far too unsure: the correction is larger than half an interval."""
    p = values(200, 0)
    unsure = replace(p, samples=p.samples + torch.tensor([0.0, 9.0]))
    spread = torch.linspace(-9.0, 9.0, 200, dtype=torch.float64)
    mixed = replace(p, samples=p.samples + torch.stack([0 * spread, spread], dim=1))
    found = ConformalIntervals(0.1, "cqr", shift_level=0).fit(unsure)(mixed)
    assert found.size.min() == 0


def test_few_rows_give_the_whole_line():
    p = values(8, 0)
    found = ConformalIntervals(0.1, "absolute").fit(p)(p)
    assert torch.isinf(torch.stack([found.low, found.high])).all()


def test_intervals_warn_of_shift():
    fitted = ConformalIntervals(0.1, SCORES[0]).fit(values(500, 0))
    assert fitted(values(500, 1)).shift.pvalue > 0.01  # warnings are errors here
    with pytest.warns(ShiftWarning):
        loud = fitted(values(500, 2, spread=4.0))
    assert loud.shift.pvalue < 1e-6


def test_what_the_shift_test_looks_at():
    p, q = values(400, 0), values(400, 1)
    assert shift_test(p, q).columns == 5  # mean, std, epistemic, one feature, novelty
    assert shift_test(p, replace(q, novelty=None, features=None)).columns == 3
    apart, logs = q.means - q.means.mean(dim=0), q.samples[..., 1:]
    for moved in (
        replace(q, novelty=q.novelty.sqrt()),
        replace(q, features=q.features + 3),
        replace(q, samples=q.samples + torch.tensor([3.0, 0.0])),  # mean
        replace(q, samples=q.samples + torch.tensor([0.0, 1.0])),  # std
        replace(q, samples=torch.cat([q.means + 2 * apart, logs], dim=-1)),  # epistemic
    ):
        assert shift_test(p, q).pvalue > 0.01
        assert shift_test(p, moved).pvalue < 1e-4


@pytest.mark.parametrize("method", ["lac", "class_conditional"])
def test_coverage_of_labels_over_seeds(method):
    found, rare = [], []
    for seed in range(60):
        p = labels(800, seed)
        fitted = METHODS["labels"][method](0.2, nonempty=False, shift_level=0, seed=seed)
        sets = fitted.fit(p[:400])(p[400:])
        found.append(sets.covered.nanmean(dim=0).tolist())
        rare.append(sets.covered[sets.target[:, 2] == 1, 2].mean().item())
    assert np.mean(found, axis=0) == pytest.approx(np.full(3, 0.8), abs=0.02)
    if method == "class_conditional":
        assert np.mean(rare) == pytest.approx(0.8, abs=0.05)
    else:
        assert np.mean(rare) < 0.5  # the promise is about all rows of the label


def test_labels_are_tasks_of_two_classes():
    p_val, p_test = labels(300, 0), labels(200, 1)
    sets = SplitConformal(0.1).fit(p_val)(p_test)
    for t in range(3):
        alone = SplitConformal(0.1).fit(p_val.column(t))(p_test.column(t))
        assert torch.equal(sets.mask[p_test.known[:, t], t], alone.mask)
        assert float(sets.covered[:, t].nanmean()) == alone.coverage
    known = ~sets.covered.isnan()
    assert torch.equal(known, ~p_test.target.isnan())
    assert sets.coverage == pytest.approx(sets.covered[known].mean().item())
    assert (sets.size >= 1).all()
    unlabelled = SplitConformal(0.1).fit(p_val)(replace(p_test, target=None))
    assert torch.equal(unlabelled.mask, sets.mask)
    with pytest.raises(InputError):
        _ = unlabelled.coverage


def test_a_label_that_no_row_knows_gets_both_answers():
    p = labels(200, 0)
    target = p.target.clone()
    target[:, 1] = math.nan
    sets = SplitConformal(0.2).fit(replace(p, target=target))(p)
    assert (sets.size[:, 1] == 2).all()
    assert (sets.size[:, 0] < 2).any()


def imbalanced(m: int, seed: int) -> ClassPrediction:
    p, generator = draw(m, seed), torch.Generator().manual_seed(seed)
    keep = (p.target != 0) | (torch.rand(m, generator=generator) < 0.3)
    neglected = p.samples - 2.0 * torch.eye(6, dtype=torch.float64)[0]
    return p.with_samples(neglected)[keep]


def test_every_class_is_covered():
    marginal, own = [], []
    for seed in range(50):
        p_val, p_test = imbalanced(700, seed), imbalanced(700, 1000 + seed)
        for method, into in ((SplitConformal, marginal), (ClassConditional, own)):
            sets = method(0.1, nonempty=False, shift_level=0).fit(p_val)(p_test)
            into.append([sets.covered[sets.target == c].double().mean() for c in range(6)])
    assert np.mean(own, axis=0) == pytest.approx(np.full(6, 0.92), abs=0.03)
    assert np.mean(marginal, axis=0)[0] < 0.8


@pytest.mark.filterwarnings("ignore")
def test_class_conditional_equals_mapie_class_by_class():
    """mapie's threshold on the validation rows of one class alone decides about that class."""
    p_val, p_test = imbalanced(600, 0), imbalanced(200, 1)
    ours = ClassConditional(0.1, nonempty=False).fit(p_val)(p_test).mask
    for c in range(6):
        theirs = mapie_sets("lac", p_val[p_val.target == c], p_test, 0.1)
        assert torch.equal(ours[:, c], theirs[:, c])


def test_a_class_with_too_few_rows_is_in_every_set():
    p = imbalanced(600, 0)
    few = p[(p.target != 0) | (torch.arange(len(p)) < 20)]
    fitted = ClassConditional(0.05, shift_level=0).fit(few)
    assert fitted.quantile.isinf().tolist() == [[True] + [False] * 5]
    assert fitted(p).mask[:, 0].all()


def test_bad_input():
    p, q, r = values(30, 0), labels(30, 0), draw(30, 0)
    for call in [
        lambda: ConformalIntervals(0),
        lambda: ConformalIntervals(score="wide"),
        lambda: ConformalIntervals().fit(replace(p, target=None)),
        lambda: ConformalIntervals().fit(p[:0]),
        lambda: ConformalIntervals().fit(r),
        lambda: ConformalIntervals().fit(p)(q),
        lambda: ConformalIntervals().fit(p)(values(9, 0, count=2)),
        lambda: SplitConformal().fit(q[:0]),
        lambda: SplitConformal().fit(replace(q, target=torch.full_like(q.target, math.nan))),
        lambda: SplitConformal().fit(replace(q, target=None)),
        lambda: SplitConformal().fit(q)(LabelPrediction(q.samples[..., :2])),
        lambda: SplitConformal().fit(p),
        lambda: SplitConformal().fit(r)(q),
        lambda: shift_test(p, p[:0]),
        lambda: shift_test(p, values(10, 0, count=2)),
        lambda: shift_test(r, q),
        lambda: ConformalIntervals(shift_level=0).fit(p)(replace(p, target=None)).coverage,
    ]:
        with pytest.raises(InputError):
            call()
    for method in (ConformalIntervals(), SplitConformal()):
        with pytest.raises(NotFittedError):
            method(p)
