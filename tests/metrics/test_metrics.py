"""Metrics of classes against independent references; batched resampling against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

from gduq import metrics
from gduq.errors import InputError
from gduq.metrics.resampling import resample_counts, resampled
from gduq.metrics.rows import METRICS, read
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from tests.metrics import test_labels, test_values

BY_TRUST = [metrics.trust_aurc, metrics.trust_error_auroc, metrics.trust_gap]
OF_CLASSES = [f for f, ours in METRICS.items() if "classes" in ours.limits]
OF_CLASSES = [f for f in OF_CLASSES if f not in (metrics.gap, *BY_TRUST)]
BY_NAME = {f.__name__: f for f in OF_CLASSES}


def make(m=500, classes=4, scale=2.0, seed=0, ties=False) -> ClassPrediction:
    """Overconfident float64 logits with labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(m, classes, generator=generator, dtype=torch.float64) * scale
    if ties:
        logits = logits.round()
    random = torch.randint(classes, (m,), generator=generator)
    keep = torch.rand(m, generator=generator) < 0.5
    return ClassPrediction(logits, torch.where(keep, logits.argmax(1), random))


def parts(p: ClassPrediction) -> tuple[np.ndarray, np.ndarray]:
    probs = p.samples[0].softmax(1).numpy()
    return probs.max(1), (probs.argmax(1) == p.target.numpy()).astype(float)


def reference_bins(scores: np.ndarray, hits: np.ndarray, bins: int):
    """(count, mean score, hit rate) of the filled bins, by plain comparisons."""
    edges = np.linspace(0, 1, bins + 1)
    for b in range(bins):
        inside = (scores >= edges[b]) & (scores < edges[b + 1])
        if b == bins - 1:
            inside |= scores == 1.0
        if inside.any():
            yield inside.sum(), scores[inside].mean(), hits[inside].mean()


def reference_ece(scores: np.ndarray, hits: np.ndarray, bins: int) -> float:
    return sum(n / len(scores) * abs(a - p) for n, p, a in reference_bins(scores, hits, bins))


# -- against references ----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [15, 100])
def test_ece_equals_netcal(scale, dtype, bins):
    netcal = pytest.importorskip("netcal.metrics", reason="the oracle netcal is not installed")
    p = make(m=2000, classes=3, scale=scale)
    p = ClassPrediction(p.samples.to(dtype), p.target)
    probs = p.samples[0].softmax(1)
    if scale == 60.0 and dtype == torch.float32:
        assert (probs.amax(1) == 1.0).sum() > 100
    expected = netcal.ECE(bins).measure(probs.numpy(), p.target.numpy())
    assert metrics.ece(p, bins=bins) == pytest.approx(float(expected), abs=1e-6)


def test_confidence_on_bin_edges():
    confidence = torch.tensor([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], dtype=torch.float64)
    logits = torch.stack([confidence.log(), (1 - confidence).log().clamp_min(-1e30)], 1)
    p = ClassPrediction(logits, torch.tensor([0, 1, 0, 1, 0, 1]))
    measured = metrics.reliability(p, bins=5)
    expected = list(reference_bins(p.confidence.numpy(), 1.0 - p.target.numpy(), 5))
    assert measured.rows[measured.rows > 0].tolist() == [n for n, _, _ in expected]
    assert measured.rows.sum() == 6
    assert p.confidence[-1] == 1.0


def test_adaptive_and_classwise_ece_equal_references():
    p = make(m=103, classes=5)
    p.target[p.target == 4] = 0  # a class that never occurs counts too
    confidence, correct = parts(p)
    order = np.argsort(confidence)
    pairs = zip(*(np.array_split(part[order], 10) for part in (confidence, correct)), strict=True)
    expected = sum(len(c) / 103 * abs(a.mean() - c.mean()) for c, a in pairs)
    assert metrics.adaptive_ece(p, bins=10) == pytest.approx(expected)
    probs, hits = p.probs.numpy(), np.eye(5)[p.target.numpy()]
    errors = [reference_ece(probs[:, c], hits[:, c], 15) for c in range(5)]
    assert metrics.classwise_ece(p) == pytest.approx(np.mean(errors), abs=1e-12)


def test_debiased_l1_equals_its_expectation_by_sampling():
    p = make(m=300)
    noise = np.random.default_rng(0)
    expected = 0.0
    for n, mean, a in reference_bins(*parts(p), 8):
        variance = mean * (1 - mean) / n
        clean = math.sqrt(max((a - mean) ** 2 - variance, 0.0))
        noisy = np.abs(noise.normal(clean, math.sqrt(variance), 400_000)).mean()
        expected += n / 300 * (abs(a - mean) - (noisy - clean))
    assert metrics.ece(p, bins=8, debias=True) == pytest.approx(expected, abs=2e-4)


def drawn(m: int, seed: int, classes: int = 3, sharper: float = 1.0) -> ClassPrediction:
    """Labels that follow the softmax of the logits over ``sharper``."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(m, classes, generator=generator, dtype=torch.float64) * sharper
    probs = (logits / sharper).softmax(1)
    return ClassPrediction(logits, torch.multinomial(probs, 1, generator=generator)[:, 0])


def test_reliability_restates_ece():
    p = make()
    curve = metrics.reliability(p, bins=12)
    filled = curve.rows > 0
    right, sure = curve.accuracy[filled], curve.confidence[filled]
    total = (curve.rows[filled] / len(p) * (right - sure).abs()).sum()
    assert total.item() == pytest.approx(metrics.ece(p, bins=12))
    assert ((curve.low[filled] <= right) & (right <= curve.high[filled])).all()


def test_of_a_prediction_the_mixture_is_read():
    """Not the mean of its logits; and labels are those of the prediction."""
    generator = torch.Generator().manual_seed(0)
    samples = 5 * torch.randn(4, 300, 3, generator=generator, dtype=torch.float64)
    target = torch.randint(3, (300,), generator=generator)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    p = ClassPrediction(samples, target, weights=weights)
    probs = torch.einsum("k,kmc->mc", weights, samples.softmax(-1))
    picked = probs.gather(1, target[:, None]).log()
    assert metrics.nll(p) == pytest.approx(-float(picked.mean()), rel=1e-12)
    assert metrics.accuracy(p) == float((probs.argmax(1) == target).double().mean())
    assert metrics.nll(p) < metrics.nll(p.mean_logits()) - 0.1
    squares = (probs - torch.nn.functional.one_hot(target, 3)).square().sum(1)
    assert metrics.brier(p) == pytest.approx(float(squares.mean()))
    assert metrics.ece(p) == pytest.approx(metrics.ece(ClassPrediction(probs.log(), target)))


def test_extremes():
    assert metrics.nll(ClassPrediction(torch.tensor([[1e4, -1e4]]), torch.tensor([1]))) == 2e4
    uniform = ClassPrediction(torch.zeros(3, 5, dtype=torch.float64))  # without labels
    assert metrics.sharpness(uniform) == pytest.approx(0, abs=1e-12)
    assert metrics.sharpness(ClassPrediction(torch.eye(5) * 1e4)) == pytest.approx(1)
    y = torch.tensor([2] * 12 + [0] * 5 + [1] * 3)
    assert metrics.majority(ClassPrediction(torch.zeros(20, 4), y)) == 0.6
    overflowing = ClassPrediction(torch.full((4, 2), 3e38), torch.zeros(4).long())
    assert metrics.accuracy(overflowing) in (0.0, 1.0)


def test_aurc_equals_brute_force():
    p = make(m=80)
    confidence, correct = parts(p)
    order = np.argsort(-confidence)
    risks = [1 - correct[order[:i]].mean() for i in range(1, 81)]
    assert metrics.aurc(p) == pytest.approx(np.mean(risks))
    assert metrics.risk_coverage(p).risk.numpy() == pytest.approx(np.array(risks))


def test_aurc_of_ties_is_the_mean_over_random_orders():
    p = make(m=60, ties=True)
    confidence, correct = parts(p)
    noise = np.random.default_rng(0)
    areas = []
    for _ in range(1000):
        order = np.lexsort((noise.random(60), -confidence.round(12)))
        areas.append(((1 - correct[order]).cumsum() / np.arange(1, 61)).mean())
    assert metrics.aurc(p) == pytest.approx(np.mean(areas), abs=4e-3)


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
    p = make(m=200)
    y, probs = p.target.numpy(), p.probs.numpy()
    expected = roc_auc_score(y, probs, multi_class="ovr", average="macro")
    assert metrics.roc_auc(p) == pytest.approx(expected)
    expected = average_precision_score(np.eye(4)[y], probs, average="macro")
    assert metrics.average_precision(p) == pytest.approx(expected)
    expected = balanced_accuracy_score(y, probs.argmax(1))
    assert metrics.balanced_accuracy(p) == pytest.approx(expected)
    absent = torch.full((200, 1), -50.0)  # a class without rows is left out
    wide = ClassPrediction(torch.cat([p.samples[0], absent], dim=1), p.target)
    for metric in (metrics.balanced_accuracy, metrics.roc_auc, metrics.average_precision):
        assert metric(wide) == pytest.approx(metric(p))


def test_ranking_sees_what_rounds_to_certainty():
    logits = torch.tensor([[0.0, 60.0], [0.0, 50.0], [0.0, 70.0]])  # probabilities of exactly 1
    p = ClassPrediction(logits, torch.tensor([0, 0, 1]))
    assert p.probs[:, 1].tolist() == [1, 1, 1]
    assert metrics.roc_auc(p) == 1.0


def test_one_kind_of_rows_has_no_ranking():
    for y in (torch.zeros(5), torch.ones(5)):
        p = ClassPrediction(torch.randn(5, 1), y.long())
        assert math.isnan(metrics.roc_auc(p))
        assert math.isnan(metrics.average_precision(p))
        assert all(map(math.isnan, metrics.bootstrap(metrics.roc_auc, p, resamples=10)))


# -- properties ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("ties", [False, True])
def test_one_logit_is_two_logits_and_the_order_of_rows_does_not_matter(name, ties):
    p, metric = make(classes=2, ties=ties), BY_NAME[name]
    order = torch.randperm(len(p), generator=torch.Generator().manual_seed(1))
    one = ClassPrediction(p.samples[0, :, 1:] - p.samples[0, :, :1], p.target)
    assert metric(one) == pytest.approx(metric(p), abs=1e-9)
    assert metric(p[order]) == pytest.approx(metric(p))


@given(st.integers(1, 40), st.integers(2, 5), st.sampled_from([0.0, 1, 300]), st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_ranges(m, classes, scale, seed):
    p = make(m, classes, scale, seed)
    for metric in OF_CLASSES:
        low, high = METRICS[metric].limits["classes"]
        value = metric(p, **({"strict": False} if "ece" in metric.__name__ else {}))
        assert math.isnan(value) or low - 1e-9 <= value <= high + 1e-9, metric.__name__


def test_float32_sums_stay_exact_on_many_rows():
    p = make(m=30_000, classes=3)
    narrow = ClassPrediction(p.samples.float(), p.target)
    wide = ClassPrediction(narrow.samples.double(), p.target)
    for name, metric in BY_NAME.items():
        assert metric(narrow) == pytest.approx(metric(wide), abs=2e-6), name


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ece", "adaptive_ece", "classwise_ece", "reliability"])
def test_fewer_rows_than_bins(name):
    function, p = getattr(metrics, name), make(m=5)
    with pytest.raises(InputError):
        function(p)
    assert function(p, strict=False) is not None


VALUES = ValuePrediction(torch.zeros(5, 2), torch.arange(5.0))


@pytest.mark.parametrize(
    "call",
    [
        lambda p: metrics.accuracy(p.samples),
        *(lambda p, metric=metric: metric(p[:0]) for metric in (metrics.accuracy, metrics.nll)),
        lambda p: metrics.rmse(VALUES[:0]),
        lambda p: metrics.nll(test_labels.make()[:0]),
        lambda p: metrics.accuracy(ClassPrediction(p.samples)),
        lambda p: metrics.rmse(ValuePrediction(VALUES.samples)),
        lambda p: metrics.nll(LabelPrediction(torch.zeros(3, 2))),
        lambda p: metrics.majority(LabelPrediction(torch.zeros(3, 2))),
        *(lambda p, metric=m: metric(p) for m in (metrics.rmse, metrics.crps)),
        *(lambda p, metric=m: metric(VALUES) for m in (metrics.accuracy, metrics.ece)),
        lambda p: metrics.mae(test_labels.make()),
        lambda p: metrics.risk_coverage(test_labels.make()),
        lambda p: metrics.ece(test_labels.make(m=9)),
        lambda p: metrics.ece(p, bins=0),
        *(lambda p, bins=bins: metrics.ence(VALUES, bins=bins) for bins in (0, 10)),
        *(lambda p, level=level: metrics.coverage(VALUES, level) for level in (0.0, 1.0)),
        lambda p: metrics.reliability(p, level=1.0),
        lambda p: metrics.bootstrap(metrics.ece, p, level=0.0),
        lambda p: metrics.bootstrap(metrics.ece, p, resamples=1),
        lambda p: metrics.bootstrap(metrics.ece, ClassPrediction(p.samples)),
        lambda p: metrics.bootstrap(metrics.brier, VALUES),
        lambda p: metrics.subgroups(p, {"age": [1, 2]}),
        lambda p: metrics.subgroups(p, {"age": [0] * 30}, groups=0),
    ],
)
def test_bad_input(call):
    with pytest.raises(InputError):
        call(make(m=30))


# -- intervals -------------------------------------------------------------------------------------

DRAWN = {
    "classes": lambda: make(m=50),
    "labels": lambda: test_labels.make(m=50),
    "values": lambda: test_values.make(m=40, k=2),
}
BATCHED = [
    *((DRAWN[k], f, {}) for f, o in METRICS.items() for k in o.limits if f not in BY_TRUST),
    *((lambda: replace(p := make(m=50), trust=p.confidence**2), f, {}) for f in BY_TRUST),
    *((lambda: make(m=50, ties=True), f, {}) for f in OF_CLASSES),
    (lambda: make(m=50), metrics.ece, {"bins": 7, "debias": True}),
    (lambda: test_values.make(m=40, k=2, ties=True), metrics.spearman, {}),
    (lambda: test_values.make(m=40, k=2), metrics.coverage, {"level": 0.5}),
    (lambda: test_values.make(m=40, k=2), metrics.ence, {"bins": 4}),
]


@pytest.mark.parametrize(("draw", "metric", "options"), BATCHED)
def test_batched_resamples_equal_one_by_one(draw, metric, options):
    if "ece" in metric.__name__:
        options = options | {"strict": False}
    p = draw()
    (counts,) = resample_counts(len(p), 10, seed=3)
    assert (counts.sum(1) == len(p)).all()
    rows = [torch.arange(len(p)).repeat_interleave(c.long()) for c in counts]
    expected = [metric(p[some], **options) for some in rows]
    found = resampled({"": partial(metric, **options)}, p, read(p), 10, seed=3)[""]
    assert found[0] == pytest.approx(metric(p, **options), nan_ok=True)
    assert found[1:].numpy() == pytest.approx(np.array(expected), abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    ("metric", "p"), [(metrics.accuracy, make(200)), (metrics.coverage, test_values.make(200))]
)
def test_shares_have_their_wilson_interval(metric, p):
    right = round(metric(p) * 200)
    expected = binomtest(right, 200).proportion_ci(0.9, method="wilson")
    found = metrics.bootstrap(metric, p, level=0.9)
    assert found == pytest.approx((right / 200, expected.low, expected.high))


def test_bootstrap_is_seeded_and_options_pass():
    p = make(m=80)
    one = metrics.bootstrap(metrics.ece, p, resamples=50, seed=1, bins=5)
    assert one == metrics.bootstrap(metrics.ece, p, resamples=50, seed=1, bins=5)
    assert one != metrics.bootstrap(metrics.ece, p, resamples=50, seed=2, bins=5)
    assert one.value == metrics.ece(p, bins=5)
    named = {"five": partial(metrics.ece, bins=5), "acc": metrics.accuracy}
    assert metrics.bootstrap_all(named, p, resamples=50, seed=1)["five"] == one


def test_bootstrap_of_a_users_metric_sees_predictions():
    p = make(m=40)
    p = ClassPrediction(torch.cat([p.samples, p.samples * 0.5]), p.target)
    value, low, high = metrics.bootstrap(lambda q: float(q.epistemic.mean()), p, resamples=40)
    assert low < value < high
    assert value == pytest.approx(p.epistemic.mean().item())
    same = metrics.bootstrap(lambda q: metrics.ece(q), p, resamples=40)
    assert same == pytest.approx(metrics.bootstrap(metrics.ece, p, resamples=40), abs=1e-9)


def test_ece_interval_holds_the_truth():
    """A calibrated-then-sharpened model, whose ECE on very many rows is known."""
    truth = metrics.ece(drawn(400_000, 99, 4, sharper=2.0))
    samples = (drawn(300, seed, 4, sharper=2.0) for seed in range(25))
    found = [metrics.bootstrap(metrics.ece, p, resamples=100) for p in samples]
    assert sum(low <= truth <= high for _, low, high in found) >= 20


def test_subgroups_equal_metrics_on_the_parts():
    p = make(m=200)
    column = torch.arange(200) % 100
    table = metrics.subgroups(p, {"number": column, "name": ["x", "y"] * 100}, groups=4)
    assert table["rows"].tolist() == [50, 50, 50, 50, 100, 100]
    part = p[column >= 75]
    last = table[table.column == "number"].iloc[-1]
    assert last["accuracy"] == pytest.approx(metrics.accuracy(part))
    assert last["ece"] == pytest.approx(metrics.ece(part, bins=10))
    assert ((table["ece_low"] <= table["ece"]) & (table["ece"] <= table["ece_high"])).all()


def test_subgroups_of_special_values_by_a_users_metric():
    column = [0.0, 0.0, 1.0, 1.0, math.inf, math.inf, math.nan, math.nan, math.nan]
    mine = {"mi": lambda q: float(q.epistemic.mean())}
    table = metrics.subgroups(make(m=9), {"x": column}, metrics=mine, resamples=5)
    found = dict(zip(table["group"], table["rows"], strict=True))
    assert found == {"0": 2, "1": 2, "missing": 5}
    assert table["mi"].tolist() == [0.0, 0.0, 0.0]


def test_what_finds_errors_is_what_scikit_learn_finds():
    from sklearn.metrics import roc_auc_score

    logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    target = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(1))
    trust = torch.rand(200, generator=torch.Generator().manual_seed(2))
    p = ClassPrediction(logits, target, trust=trust)
    wrong = (~p.correct).numpy()
    assert metrics.error_auroc(p) == pytest.approx(roc_auc_score(wrong, -p.confidence))
    assert metrics.trust_error_auroc(p) == pytest.approx(roc_auc_score(wrong, -trust))
    assert metrics.trust_gap(p) == pytest.approx(float(trust.mean()) - 1 + wrong.mean())
    order = wrong[trust.argsort(descending=True)]
    risks = order.cumsum() / np.arange(1, 201)
    assert metrics.trust_aurc(p) == pytest.approx(risks.mean())
    with pytest.raises(InputError):
        metrics.trust_gap(ClassPrediction(logits, target))
