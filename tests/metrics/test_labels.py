"""Metrics of labels against scikit-learn and label-by-label loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq import metrics
from gduq.metrics.rows import METRICS
from gduq.prediction import ClassPrediction, LabelPrediction

MACRO = [f for f, ours in METRICS.items() if "labels" in ours.limits]


def make(m: int = 300, t: int = 3, seed: int = 0, missing: float = 0.3, **options):
    """Rare labels with gaps: positives are about 8, 15, 25 % of the rows that know theirs."""
    generator = torch.Generator().manual_seed(seed)
    offset = torch.linspace(-3.5, -1.5, t, dtype=torch.float64)
    score = 1.5 * torch.randn(m, t, generator=generator, dtype=torch.float64) + offset
    target = (torch.rand(m, t, generator=generator) < score.sigmoid()).double()
    target[torch.rand(m, t, generator=generator) < missing] = math.nan
    noise = torch.randn(4, m, t, generator=generator, dtype=torch.float64)
    return LabelPrediction(2 * score + noise, target, **options)


@pytest.mark.parametrize("metric", MACRO)
def test_of_labels_it_is_the_mean_over_labels(metric):
    p = make(trust=torch.rand(300, 3, generator=torch.Generator().manual_seed(1)))
    expected = np.mean([metric(p.column(t)) for t in range(3)])
    assert metric(p) == pytest.approx(expected)


def test_a_tie_is_no():
    p = LabelPrediction(torch.zeros(4, 1), torch.tensor([[0.0], [0.0], [0.0], [1.0]]))
    assert not p.label.any()
    assert p.column(0).label.tolist() == [0, 0, 0, 0]
    assert metrics.accuracy(p) == metrics.accuracy(p.column(0)) == 0.75


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_labels_are_the_likelier_answer(seed):
    """Hypotheses that nearly cancel: rounding must not part labels and metrics."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(2, 200, 2, generator=g).double()
    z[1] = 1e-7 * torch.randn(200, 2, generator=g) - z[0]
    p = LabelPrediction(z.float(), torch.randint(0, 2, (200, 2), generator=g).float())
    for t in range(2):
        assert torch.equal(p.label[:, t].long(), p.column(t).label)


def test_labels_without_positives_or_rows_are_left_out():
    """Label 0 is never known, label 1 never positive, label 2 as it should be."""
    p = make(m=80)
    target = p.target.clone()
    target[:, 0] = math.nan
    target[:, 1] = torch.where(target[:, 1].isnan(), math.nan, 0.0)
    p = LabelPrediction(p.samples, target)
    assert metrics.roc_auc(p) == pytest.approx(metrics.roc_auc(p.column(2)))
    assert metrics.nll(p) == pytest.approx(np.mean([metrics.nll(p.column(t)) for t in (1, 2)]))
    nothing = LabelPrediction(torch.zeros(4, 2), torch.full((4, 2), math.nan))
    assert math.isnan(metrics.nll(nothing))
    assert math.isnan(metrics.majority(nothing))


def rare(positives, sign=1.0):
    """30 rows of one label, ranked perfectly (or the other way round)."""
    target = (torch.arange(30) < positives).double().view(30, 1)
    return LabelPrediction(sign * torch.linspace(2, -2, 30).view(1, 30, 1), target)


@pytest.mark.parametrize("metric", [metrics.roc_auc, metrics.average_precision])
def test_a_ranking_of_very_few_rows_has_no_interval(metric):
    for few in (1, 4, 26, 29):
        p = rare(few, sign=-1.0)
        two = LabelPrediction(p.samples.repeat(1, 1, 2), torch.cat([rare(9).target, p.target], 1))
        three = ClassPrediction(torch.eye(3)[torch.arange(60) % 3], torch.arange(60) % 2)
        three.target[:few] = 2  # of three classes
        for q in [p, p.column(0), two] + [three] * (few < 5):
            found = metrics.bootstrap(metric, q, resamples=20)
            assert found == pytest.approx((metric(q), math.nan, math.nan), nan_ok=True)
        assert not math.isnan(metrics.bootstrap(metrics.nll, p, resamples=20).low)
    assert not any(map(math.isnan, metrics.bootstrap(metric, rare(5), resamples=20)))
