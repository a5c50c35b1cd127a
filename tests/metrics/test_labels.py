"""Metrics of labels against scikit-learn and label-by-label loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from gduq import metrics
from gduq.errors import InputError
from gduq.metrics.rows import METRICS, read
from gduq.prediction import ClassPrediction, LabelPrediction

MACRO = [f for f, kinds in METRICS.items() if "labels" in kinds]


def make(m: int = 300, t: int = 3, seed: int = 0, missing: float = 0.3, **options):
    """Rare labels with gaps: positives are about 8, 15, 25 % of the rows that know theirs."""
    generator = torch.Generator().manual_seed(seed)
    offset = torch.linspace(-3.5, -1.5, t, dtype=torch.float64)
    score = 1.5 * torch.randn(m, t, generator=generator, dtype=torch.float64) + offset
    target = (torch.rand(m, t, generator=generator) < score.sigmoid()).double()
    target[torch.rand(m, t, generator=generator) < missing] = math.nan
    noise = torch.randn(4, m, t, generator=generator, dtype=torch.float64)
    return LabelPrediction(2 * score + noise, target, **options)


def known(p: LabelPrediction, t: int) -> tuple[np.ndarray, np.ndarray]:
    rows = ~p.target[:, t].isnan()
    return p.target[rows, t].numpy().astype(int), p.probs[rows, t].numpy()


@pytest.mark.parametrize("metric", MACRO)
def test_of_labels_it_is_the_mean_over_labels(metric):
    p = make()
    expected = np.mean([metric(p.column(t)) for t in range(3)])
    assert metric(p) == pytest.approx(expected)
    assert metric(read(p)) == pytest.approx(expected)


def test_thresholds_decide_answers_and_nothing_else():
    p = make()
    eager = make(thresholds=torch.tensor([0.05, 0.1, 0.2]))
    pairs = [known(p, t) for t in range(3)]
    for metric, oracle in [
        (metrics.balanced_accuracy, balanced_accuracy_score),
        (metrics.accuracy, lambda y, answer: (y == answer).mean()),
    ]:
        cut = zip(pairs, (0.05, 0.1, 0.2), strict=True)
        expected = np.mean([oracle(y, s >= limit) for (y, s), limit in cut])
        assert metric(eager) == pytest.approx(expected) != metric(p)
    assert metrics.balanced_accuracy(eager) > metrics.balanced_accuracy(p)
    for metric in (metrics.roc_auc, metrics.nll, metrics.ece):
        assert metric(eager) == metric(p)


def test_a_column_answers_as_its_label_does(tmp_path):
    p = make(thresholds=torch.tensor([0.05, 0.1, 0.2]))
    for t in range(3):
        one, rows = p.column(t), p.known[:, t]
        assert torch.equal(one.label, p.label[rows, t].long())
        assert torch.equal(one[3:9].label, one.label[3:9])
        assert metrics.accuracy(one) == float(one.correct.double().mean())
    one.to_npz(tmp_path / "p.npz")
    parts = [ClassPrediction.from_npz(tmp_path / "p.npz")[:20], one[20:]]
    again = ClassPrediction.concatenate(parts)
    assert again.threshold == pytest.approx(0.2)
    assert torch.equal(again.label, one.label)


@pytest.mark.parametrize("thresholds", [None, torch.tensor([0.5])])
def test_a_tie_is_no(thresholds):
    p = LabelPrediction(torch.zeros(4, 1), torch.tensor([[0.0], [0.0], [0.0], [1.0]]))
    p = p.with_thresholds(thresholds)
    assert not p.label.any()
    assert p.column(0).label.tolist() == [0, 0, 0, 0]
    assert metrics.accuracy(p) == metrics.accuracy(p.column(0)) == 0.75


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_labels_without_thresholds_are_the_likelier_answer(seed):
    """Hypotheses that nearly cancel: rounding must not part labels and metrics."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(2, 200, 2, generator=g).double()
    z[1] = 1e-7 * torch.randn(200, 2, generator=g) - z[0]
    p = LabelPrediction(z.float(), torch.randint(0, 2, (200, 2), generator=g).float())
    for t in range(2):
        assert torch.equal(p.label[:, t].long(), p.column(t).label)


@pytest.mark.parametrize("digits", [1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_thresholds_are_the_best_there_are(digits, dtype):
    p = make(m=60)
    p = LabelPrediction(p.samples.round(decimals=digits).to(dtype), p.target)
    found = p.with_thresholds(metrics.label_thresholds(p))
    for t in range(3):
        y, s = known(p, t)
        every = [balanced_accuracy_score(y, s > limit) for limit in (-1.0, *np.unique(s)[:-1])]
        answers = found.label[p.known[:, t], t]
        assert balanced_accuracy_score(y, answers) == pytest.approx(max(every))
    assert metrics.balanced_accuracy(found) > metrics.balanced_accuracy(p)


def hard_cases() -> LabelPrediction:
    """Label 0 is never known, label 1 never positive, label 2 as it should be."""
    p = make(m=80)
    target = p.target.clone()
    target[:, 0] = math.nan
    target[:, 1] = torch.where(target[:, 1].isnan(), math.nan, 0.0)
    return LabelPrediction(p.samples, target, names=("never", "no", "good"))


def test_thresholds_of_labels_that_cannot_say():
    found = metrics.label_thresholds(hard_cases())
    assert found[:2].tolist() == [0.5, 0.5]
    assert found[2] != 0.5
    sure = LabelPrediction(torch.tensor([[-3.0], [3.0]]), torch.tensor([[0.0], [1.0]]))
    assert metrics.label_thresholds(sure).tolist() == [0.5]  # nothing is better
    one, half = torch.tensor(1.0), torch.tensor(0.25)
    close = torch.stack([half, torch.nextafter(half, one)]).logit().view(2, 1)
    p = LabelPrediction(close.double(), torch.tensor([[0.0], [1.0]]))
    assert p.with_thresholds(metrics.label_thresholds(p)).label.flatten().tolist() == [False, True]


def test_labels_without_positives_or_rows_are_left_out():
    p = hard_cases()
    assert metrics.roc_auc(p) == pytest.approx(metrics.roc_auc(p.column(2)))
    expected = [metrics.nll(p.column(t)) for t in (1, 2)]
    assert metrics.nll(p) == pytest.approx(np.mean(expected))
    nothing = LabelPrediction(torch.zeros(4, 2), torch.full((4, 2), math.nan))
    assert math.isnan(metrics.nll(nothing))
    assert math.isnan(metrics.majority(nothing))
    assert metrics.sharpness(LabelPrediction(torch.zeros(4, 2))) == pytest.approx(0, abs=1e-6)


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
            assert found.value == metric(q)
            assert math.isnan(found.low)
            assert math.isnan(found.high)
        assert not math.isnan(metrics.bootstrap(metrics.nll, p, resamples=20).low)
    assert not any(map(math.isnan, metrics.bootstrap(metric, rare(5), resamples=20)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.nll(make()[:0]),
        lambda: metrics.nll(LabelPrediction(torch.zeros(3, 2))),
        lambda: metrics.majority(LabelPrediction(torch.zeros(3, 2))),
        lambda: metrics.risk_coverage(make()),
        lambda: metrics.label_thresholds(make().column(0)),
        lambda: metrics.label_thresholds(LabelPrediction(torch.zeros(3, 2))),
        lambda: ClassPrediction(torch.zeros(3, 3), threshold=0.5),
        lambda: ClassPrediction(torch.zeros(3, 2), threshold=2),
        lambda: metrics.ece(make(m=9)),
    ],
)
def test_bad_input(call):
    with pytest.raises(InputError):
        call()
