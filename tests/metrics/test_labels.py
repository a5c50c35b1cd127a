"""Metrics of labels and rare classes against scikit-learn and label-by-label loops."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    roc_auc_score,
)

from gduq import metrics
from gduq.errors import InputError
from gduq.metrics.resampling import resample_counts
from gduq.metrics.rows import METRICS, read
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction

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


@given(m=st.integers(2, 40), ties=st.booleans(), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_ranking_of_two_classes_equals_scikit_learn(m, ties, seed):
    rng = np.random.default_rng(seed)
    y, z = rng.integers(0, 2, m), rng.normal(size=m)
    y[:2], z = (0, 1), z.round() if ties else z
    p = ClassPrediction(torch.from_numpy(z).view(1, m, 1), torch.from_numpy(y))
    assert metrics.roc_auc(p) == pytest.approx(roc_auc_score(y, z))
    assert metrics.average_precision(p) == pytest.approx(average_precision_score(y, z))
    assert metrics.balanced_accuracy(p) == pytest.approx(balanced_accuracy_score(y, z > 0))


def test_several_classes_are_each_against_the_rest():
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(200, 4)), rng.integers(0, 4, 200)
    p = ClassPrediction(torch.from_numpy(logits)[None], torch.from_numpy(y))
    probs = p.probs.numpy()
    expected = roc_auc_score(y, probs, multi_class="ovr", average="macro")
    assert metrics.roc_auc(p) == pytest.approx(expected)
    expected = average_precision_score(np.eye(4)[y], probs, average="macro")
    assert metrics.average_precision(p) == pytest.approx(expected)
    expected = balanced_accuracy_score(y, probs.argmax(1))
    assert metrics.balanced_accuracy(p) == pytest.approx(expected)


def test_ranking_sees_what_rounds_to_certainty():
    logits = torch.tensor([[0.0, 60.0], [0.0, 50.0], [0.0, 70.0]])  # probabilities of exactly 1
    y = torch.tensor([0, 0, 1])
    assert ClassPrediction(logits).probs[:, 1].tolist() == [1, 1, 1]
    assert metrics.roc_auc(logits, y) == 1.0


def test_a_class_without_rows_is_left_out():
    rng = np.random.default_rng(1)
    logits, y = torch.from_numpy(rng.normal(size=(60, 3))), torch.arange(60) % 2
    wide = torch.cat([logits, torch.full((60, 1), -50.0)], dim=1)
    for metric in (metrics.balanced_accuracy, metrics.roc_auc, metrics.average_precision):
        assert metric(wide, y) == pytest.approx(metric(logits, y))


def test_one_kind_of_rows_has_no_ranking():
    for y in (torch.zeros(5), torch.ones(5)):
        p = ClassPrediction(torch.randn(5, 1), y.long())
        assert math.isnan(metrics.roc_auc(p))
        assert math.isnan(metrics.average_precision(p))
        right = float(p.correct.double().mean())
        assert metrics.balanced_accuracy(p) == pytest.approx(right)
        assert all(map(math.isnan, metrics.bootstrap(metrics.roc_auc, p, resamples=10)))


def test_the_majority_is_a_constant_answer():
    y = torch.tensor([2] * 12 + [0] * 5 + [1] * 3)
    assert metrics.majority(torch.zeros(20, 4), y) == 0.6


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
        (counts,) = resample_counts(300, 2, seed=0)
        drawn = metric(read(eager).weighted(counts))
        assert drawn[0].item() == pytest.approx(metric(eager[drawn_rows(counts[0])]))
    assert metrics.balanced_accuracy(eager) > metrics.balanced_accuracy(p)
    for metric in (metrics.roc_auc, metrics.nll, metrics.ece):
        assert metric(eager) == metric(p)


def drawn_rows(count: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(count)), count.long())


def test_a_column_answers_as_its_label_does():
    p = make(thresholds=torch.tensor([0.05, 0.1, 0.2]))
    table = metrics.label_table(p)
    for t in range(3):
        one, rows = p.column(t), p.known[:, t]
        assert torch.equal(one.label, p.label[rows, t].long())
        assert torch.equal(one[3:9].label, one.label[3:9])
        assert metrics.accuracy(one) == table["accuracy"][t] == float(one.correct.double().mean())
    for metric in MACRO:
        assert metric(p) == pytest.approx(np.mean([metric(p.column(t)) for t in range(3)]))
    assert metrics.risk_coverage(p.column(0)).risk[-1] == pytest.approx(1 - table["accuracy"][0])
    (counts,) = resample_counts(len(one), 2, seed=0)
    drawn = metrics.aurc(read(one).weighted(counts))
    assert drawn[1].item() == pytest.approx(metrics.aurc(one[drawn_rows(counts[1])]))


def test_a_column_keeps_its_threshold(tmp_path):
    p = LabelPrediction(torch.randn(3, 50, 2), thresholds=[0.2, 0.9]).column(1)
    p.to_npz(tmp_path / "p.npz")
    again = ClassPrediction.concatenate([ClassPrediction.from_npz(tmp_path / "p.npz")[:20], p[20:]])
    assert again.threshold == p.threshold == pytest.approx(0.9)
    assert torch.equal(again.label, (p.probs[:, 1] > 0.9).long())


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


@pytest.mark.parametrize(
    ("measure", "oracle"), [("balanced_accuracy", balanced_accuracy_score), ("f1", f1_score)]
)
@pytest.mark.parametrize("digits", [1, 6])
def test_thresholds_are_the_best_there_are(measure, oracle, digits):
    p = make(m=60)
    p = LabelPrediction(p.samples.round(decimals=digits), p.target)
    found = p.with_thresholds(metrics.label_thresholds(p, measure=measure))
    for t in range(3):
        y, s = known(p, t)
        every = [oracle(y, s > limit) for limit in (-1.0, *np.unique(s)[:-1])]
        assert oracle(y, found.label[p.known[:, t], t]) == pytest.approx(max(every))
    if measure == "balanced_accuracy":
        assert metrics.balanced_accuracy(found) > metrics.balanced_accuracy(p)


def test_thresholds_of_labels_that_cannot_say():
    p = hard_cases()
    found = metrics.label_thresholds(p)
    assert found[:2].tolist() == [0.5, 0.5]
    assert found[2] != 0.5
    sure = LabelPrediction(torch.tensor([[-3.0], [3.0]]), torch.tensor([[0.0], [1.0]]))
    assert metrics.label_thresholds(sure).tolist() == [0.5]  # nothing is better
    one, half = torch.tensor(1.0), torch.tensor(0.25)
    close = torch.stack([half, torch.nextafter(half, one)]).logit().view(2, 1)
    p = LabelPrediction(close.double(), torch.tensor([[0.0], [1.0]]))
    assert p.with_thresholds(metrics.label_thresholds(p)).label.flatten().tolist() == [False, True]


def hard_cases() -> LabelPrediction:
    """Label 0 is never known, label 1 never positive, label 2 as it should be."""
    p = make(m=80)
    target = p.target.clone()
    target[:, 0] = math.nan
    target[:, 1] = torch.where(target[:, 1].isnan(), math.nan, 0.0)
    return LabelPrediction(p.samples, target, names=("never", "no", "good"))


def test_the_table_says_what_is_known_of_each_label():
    p = make(names=("a", "b", "c"))
    table = metrics.label_table(p)
    assert table["label"].tolist() == ["a", "b", "c"]
    for t, line in enumerate(table.to_dict("records")):
        (y, s), column = known(p, t), p.column(t)
        assert (line["rows"], line["positives"]) == (len(y), y.sum())
        assert line["base_rate"] == pytest.approx(y.mean())
        assert line["majority"] == pytest.approx(1 - y.mean())
        assert line["roc_auc"] == pytest.approx(roc_auc_score(y, s))
        assert line["average_precision"] == pytest.approx(average_precision_score(y, s))
        for name in ("accuracy", "balanced_accuracy", "ece", "nll", "brier"):
            assert line[name] == pytest.approx(getattr(metrics, name)(column)), name
    means = table.mean(numeric_only=True)
    for name in ("roc_auc", "ece", "nll", "balanced_accuracy"):
        assert getattr(metrics, name)(p) == pytest.approx(means[name])
    assert metrics.majority(p) == pytest.approx(means["majority"])


def test_labels_without_positives_or_rows_are_nan_not_errors():
    p = hard_cases()
    table = metrics.label_table(p).set_index("label")
    assert table.loc["never", ["rows", "positives"]].tolist() == [0, 0]
    assert table.loc["never", "base_rate":].isna().all()
    assert table.loc["no", "positives"] == 0
    assert table.loc["no", ["roc_auc", "average_precision"]].isna().all()
    assert table.loc["no", "ece":].notna().all()
    assert table.loc["good"].notna().all()
    assert metrics.roc_auc(p) == pytest.approx(metrics.roc_auc(p.column(2)))
    assert metrics.nll(p) == pytest.approx(
        (metrics.nll(p.column(1)) + metrics.nll(p.column(2))) / 2
    )
    nothing = LabelPrediction(torch.zeros(4, 2), torch.full((4, 2), math.nan))
    assert math.isnan(metrics.nll(nothing))
    assert math.isnan(metrics.majority(nothing))


BATCHED = [
    *(partial(f) for f in MACRO),
    partial(metrics.ece, bins=5, debias=True, strict=False),
]


@pytest.mark.parametrize("metric", BATCHED, ids=lambda f: f"{f.func.__name__}{f.keywords}")
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_batched_resamples_equal_one_by_one(metric, missing):
    p = make(m=120, missing=missing)
    (counts,) = resample_counts(120, 10, seed=3)
    expected = [metric(p[drawn_rows(count)]) for count in counts]
    batched = metric(read(p).weighted(counts))
    assert batched.numpy() == pytest.approx(np.array(expected), abs=1e-9)


def rare(positives, sign=1.0):
    """30 rows of one label, ranked perfectly (or the other way round)."""
    target = (torch.arange(30) < positives).double().view(30, 1)
    return LabelPrediction(sign * torch.linspace(2, -2, 30).view(1, 30, 1), target)


def test_resamples_without_positives_are_left_out():
    counts = torch.cat(list(resample_counts(30, 500, seed=0)))
    assert (counts[:, :5].sum(dim=1) == 0).any()
    value, low, high = metrics.bootstrap(metrics.average_precision, rare(5), resamples=500)
    assert value == high == 1.0
    assert 0 <= low <= 1
    value, low, high = metrics.bootstrap(metrics.roc_auc, rare(5, sign=-1.0), resamples=500)
    assert value == 0.0 == low <= high


@pytest.mark.parametrize("metric", [metrics.roc_auc, metrics.average_precision])
def test_a_ranking_of_very_few_rows_has_no_interval(metric):
    for few in (1, 4, 26, 29):
        p = rare(few, sign=-1.0)
        two = LabelPrediction(p.samples.repeat(1, 1, 2), torch.cat([rare(9).target, p.target], 1))
        three = ClassPrediction(torch.eye(3)[torch.arange(60) % 3], torch.arange(60) % 2)
        three.target[:few] = 2  # of three classes
        cases = [p, p.column(0), two] + [three] * (few < 5)
        for q in cases:
            found = metrics.bootstrap(metric, q, resamples=20)
            assert found.value == metric(q)
            assert math.isnan(found.low)
            assert math.isnan(found.high)
        assert not math.isnan(metrics.bootstrap(metrics.nll, p, resamples=20).low)
    assert not any(map(math.isnan, metrics.bootstrap(metric, rare(5), resamples=20)))


def test_intervals_of_labels():
    p = make()
    chosen = {f.__name__: f for f in MACRO} | {"mine": lambda q: float(q.epistemic.mean())}
    found = metrics.bootstrap_all(chosen, p, resamples=30)
    for name, (value, low, high) in found.items():
        assert low < value < high, name
        assert value == pytest.approx(chosen[name](p))


def test_rows_are_drawn_with_all_their_labels():
    """Two copies of one label carry no more information than one of them."""
    p = make(t=1, missing=0.0)
    twice = LabelPrediction(p.samples.repeat(1, 1, 2), p.target.repeat(1, 2))
    for metric in (metrics.nll, metrics.roc_auc):
        one, two = (metrics.bootstrap(metric, q, resamples=50) for q in (p, twice))
        assert two == pytest.approx(one)


def test_subgroups_of_labels():
    p = make(m=200)
    table = metrics.subgroups(p, ["a", "b"] * 100, resamples=10)
    expected = [metrics.roc_auc(p[0::2]), metrics.roc_auc(p[1::2])]
    assert table["roc_auc"].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.nll(make()[:0]),
        lambda: metrics.nll(LabelPrediction(torch.zeros(3, 2))),
        lambda: metrics.roc_auc(ClassPrediction(torch.zeros(3, 2))),
        lambda: metrics.majority(LabelPrediction(torch.zeros(3, 2))),
        lambda: metrics.nll(make(), torch.zeros(300, 3)),
        lambda: metrics.label_table(ClassPrediction(torch.zeros(3, 2))),
        lambda: metrics.label_table(torch.zeros(3, 2)),
        lambda: metrics.roc_auc(ValuePrediction(torch.zeros(3, 2))),
        lambda: metrics.risk_coverage(make()),
        lambda: metrics.label_thresholds(make(), "f2"),
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


def test_sharpness_needs_no_truth():
    p = LabelPrediction(torch.zeros(4, 2))
    assert metrics.sharpness(p) == pytest.approx(0, abs=1e-6)
