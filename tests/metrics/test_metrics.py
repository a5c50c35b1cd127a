"""Metrics against independent references, and batched resampling against plain loops."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError
from gduq.metrics.resampling import resample_counts
from gduq.metrics.rows import METRICS, read
from gduq.prediction import ClassPrediction

FLOATS = {name: getattr(metrics, name) for name in metrics.__all__ if name in {
    "accuracy", "ece", "adaptive_ece", "classwise_ece", "gap", "nll", "brier", "aurc",
    "sharpness", "roc_auc", "average_precision",
    "balanced_accuracy", "majority"}}  # fmt: skip


def make(m: int = 500, classes: int = 4, scale: float = 2.0, seed: int = 0, ties: bool = False):
    """Overconfident float64 logits with labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(m, classes, generator=generator, dtype=torch.float64) * scale
    if ties:
        logits = logits.round()
    random = torch.randint(classes, (m,), generator=generator)
    keep = torch.rand(m, generator=generator) < 0.5
    return logits, torch.where(keep, logits.argmax(1), random)


def parts(logits: Tensor, target: Tensor) -> tuple[np.ndarray, np.ndarray]:
    probs = logits.softmax(1).numpy()
    return probs.max(1), (probs.argmax(1) == target.numpy()).astype(float)


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


@pytest.mark.parametrize(("bins", "classes"), [(1, 2), (15, 2), (10, 7), (100, 7)])
def test_ece_equals_reference(bins, classes):
    logits, y = make(classes=classes)
    expected = reference_ece(*parts(logits, y), bins)
    assert metrics.ece(logits, y, bins=bins) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale", [1.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [15, 100])
def test_ece_equals_netcal(scale, dtype, bins):
    netcal = pytest.importorskip("netcal.metrics", reason="the oracle netcal is not installed")
    logits, y = make(m=2000, classes=3, scale=scale)
    logits = logits.to(dtype)
    probs = logits.softmax(1)
    if scale == 60.0 and dtype == torch.float32:
        assert (probs.amax(1) == 1.0).sum() > 100
    expected = netcal.ECE(bins).measure(probs.numpy(), y.numpy())
    assert metrics.ece(logits, y, bins=bins) == pytest.approx(float(expected), abs=1e-6)


def test_confidence_on_bin_edges():
    confidence = torch.tensor([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], dtype=torch.float64)
    logits = torch.stack([confidence.log(), (1 - confidence).log().clamp_min(-1e30)], 1)
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    measured = metrics.reliability(logits, y, bins=5)
    found = ClassPrediction(logits).confidence
    expected = list(reference_bins(found.numpy(), 1.0 - y.numpy(), 5))
    assert measured.rows[measured.rows > 0].tolist() == [n for n, _, _ in expected]
    assert measured.rows.sum() == 6
    assert found[-1] == 1.0


def test_adaptive_ece_equals_reference():
    logits, y = make(m=103)
    confidence, correct = parts(logits, y)
    order = np.argsort(confidence)
    pairs = zip(np.array_split(confidence[order], 10), np.array_split(correct[order], 10),
                strict=True)  # fmt: skip
    expected = sum(len(c) / 103 * abs(a.mean() - c.mean()) for c, a in pairs)
    assert metrics.adaptive_ece(logits, y, bins=10) == pytest.approx(expected)


def test_classwise_ece_equals_reference():
    logits, y = make(classes=5)
    y[y == 4] = 0  # a class that never occurs counts too
    probs, hits = logits.softmax(1).numpy(), np.eye(5)[y.numpy()]
    errors = [reference_ece(probs[:, c], hits[:, c], 15) for c in range(5)]
    assert metrics.classwise_ece(logits, y) == pytest.approx(np.mean(errors), abs=1e-12)


def test_debiased_l1_equals_its_expectation_by_sampling():
    logits, y = make(m=300)
    noise = np.random.default_rng(0)
    expected = 0.0
    for n, p, a in reference_bins(*parts(logits, y), 8):
        variance = p * (1 - p) / n
        clean = math.sqrt(max((a - p) ** 2 - variance, 0.0))
        noisy = np.abs(noise.normal(clean, math.sqrt(variance), 400_000)).mean()
        expected += n / 300 * (abs(a - p) - (noisy - clean))
    measured = metrics.ece(logits, y, bins=8, debias=True)
    assert measured == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("function", [metrics.ece, metrics.adaptive_ece])
@pytest.mark.parametrize("rows", [30, 200])
def test_debiasing_takes_most_of_the_bias_of_a_calibrated_model(function, rows):
    plain, corrected = [], []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
        y = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        plain.append(function(logits, y))
        corrected.append(function(logits, y, debias=True))
    assert np.mean(corrected) < 0.55 * np.mean(plain)


def test_reliability_restates_ece():
    logits, y = make()
    curve = metrics.reliability(logits, y, bins=12)
    filled = curve.rows > 0
    gap = (curve.accuracy - curve.confidence).abs()[filled]
    total = (curve.rows[filled] / len(y) * gap).sum()
    assert total.item() == pytest.approx(metrics.ece(logits, y, bins=12))
    assert (curve.low[filled] <= curve.accuracy[filled]).all()
    assert (curve.high[filled] >= curve.accuracy[filled]).all()
    assert curve.edges.numel() == 13


def test_averages_equal_references():
    logits, y = make()
    onehot = torch.nn.functional.one_hot(y, 4)
    assert metrics.accuracy(logits, y) == pytest.approx(parts(logits, y)[1].mean())
    assert metrics.nll(logits, y) == pytest.approx(
        torch.nn.functional.cross_entropy(logits, y).item()
    )
    expected = (logits.softmax(1) - onehot).square().sum(1).mean().item()
    assert metrics.brier(logits, y) == pytest.approx(expected)


def test_nll_of_huge_logits_is_finite():
    assert metrics.nll(torch.tensor([[1e4, -1e4]]), torch.tensor([1])) == 2e4


def test_sharpness_runs_from_uniform_to_one_hot():
    assert metrics.sharpness(torch.zeros(3, 5, dtype=torch.float64)) == pytest.approx(0, abs=1e-12)
    assert metrics.sharpness(torch.eye(5) * 1e4) == pytest.approx(1)


def test_aurc_equals_brute_force():
    logits, y = make(m=80)
    confidence, correct = parts(logits, y)
    order = np.argsort(-confidence)
    risks = [1 - correct[order[:i]].mean() for i in range(1, 81)]
    assert metrics.aurc(logits, y) == pytest.approx(np.mean(risks))
    assert metrics.risk_coverage(logits, y).risk.numpy() == pytest.approx(np.array(risks))


def test_aurc_of_ties_is_the_mean_over_random_orders():
    logits, y = make(m=60, ties=True)
    confidence, correct = parts(logits, y)
    noise = np.random.default_rng(0)
    areas = []
    for _ in range(1000):
        order = np.lexsort((noise.random(60), -confidence.round(12)))
        areas.append(((1 - correct[order]).cumsum() / np.arange(1, 61)).mean())
    assert metrics.aurc(logits, y) == pytest.approx(np.mean(areas), abs=4e-3)


@pytest.mark.parametrize("name", FLOATS)
def test_prediction_and_logits_agree(name):
    logits, y = make()
    samples = torch.stack([logits - 0.5, logits + 0.5])
    p = ClassPrediction(samples, target=y)
    assert FLOATS[name](p) == pytest.approx(FLOATS[name](logits, y), abs=1e-12)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("ties", [False, True])
def test_one_logit_is_two_logits_and_the_order_of_rows_does_not_matter(name, ties):
    logits, y = make(classes=2, ties=ties)
    z = logits[:, 1] - logits[:, 0]
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    assert FLOATS[name](z, y) == pytest.approx(FLOATS[name](logits, y), abs=1e-9)
    assert FLOATS[name](z.unsqueeze(1), y) == FLOATS[name](z, y)
    assert FLOATS[name](logits[order], y[order]) == pytest.approx(FLOATS[name](logits, y))


@given(
    m=st.integers(1, 40),
    classes=st.integers(2, 5),
    scale=st.sampled_from([0.0, 1.0, 300.0]),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=30)
def test_ranges(m, classes, scale, seed):
    logits, y = make(m, classes, scale, seed)
    for name in ("accuracy", "aurc", "sharpness"):
        assert -1e-9 <= FLOATS[name](logits, y) <= 1 + 1e-9
    for function in (metrics.ece, metrics.adaptive_ece, metrics.classwise_ece):
        assert 0 <= function(logits, y, strict=False) <= 1 + 1e-9
    assert 0 <= metrics.brier(logits, y) <= 2 + 1e-9
    assert metrics.nll(logits, y) >= -1e-9


def test_float32_sums_stay_exact_on_many_rows():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(30_000, 3, generator=generator) * 3
    y = torch.randint(3, (30_000,), generator=generator)
    for name, function in FLOATS.items():
        assert function(logits, y) == pytest.approx(function(logits.double(), y), abs=2e-6), name


@pytest.mark.parametrize(
    ("logits", "target"),
    [
        (torch.tensor([[0.0, float("nan")]]), [0]),
        (torch.tensor([[0.0, float("inf")]]), [0]),
        (torch.zeros(0, 3), []),
        (torch.zeros(2, 3), [0]),
        (torch.zeros(2, 3), [0, 3]),
        (torch.zeros(2, 3), [0.5, 1.0]),
        (torch.zeros(2, 3), None),
        (torch.zeros(2, 3, dtype=torch.long), [0, 0]),
        ("text", [0]),
    ],
)
def test_bad_rows(logits, target):
    with pytest.raises(InputError):
        metrics.accuracy(logits, None if target is None else torch.tensor(target))


def test_finite_logits_whose_sum_overflows_are_fine():
    assert metrics.accuracy(torch.full((4, 2), 3e38), torch.zeros(4).long()) in (0.0, 1.0)


@pytest.mark.parametrize("name", ["ece", "adaptive_ece", "classwise_ece", "reliability"])
def test_fewer_rows_than_bins(name):
    function, (logits, y) = getattr(metrics, name), make(m=5)
    with pytest.raises(InputError):
        function(logits, y)
    assert function(logits, y, strict=False) is not None


def test_bad_options():
    logits, y = make(m=30)
    p = ClassPrediction(logits, target=y)
    for call in (
        lambda: metrics.ece(p, bins=0),
        lambda: metrics.ece(p, y),
        lambda: metrics.reliability(p, level=1.0),
        lambda: metrics.bootstrap(metrics.reliability, p),
        lambda: metrics.bootstrap(metrics.ece, p, level=0.0),
        lambda: metrics.bootstrap(metrics.ece, p, resamples=1),
        lambda: metrics.bootstrap(metrics.ece, logits),
        lambda: metrics.subgroups(logits, {"age": [1, 2]}, y),
        lambda: metrics.subgroups(logits, [0] * 30, y, groups=0),
    ):
        with pytest.raises(InputError):
            call()


OPTIONS = [
    *(partial(f) for f in FLOATS.values()),
    partial(metrics.ece, bins=7, debias=True),
    partial(metrics.adaptive_ece, bins=4, debias=True),
]


@pytest.mark.parametrize("metric", OPTIONS, ids=lambda f: f"{f.func.__name__}{f.keywords}")
@pytest.mark.parametrize("ties", [False, True])
def test_batched_resamples_equal_one_by_one(metric, ties):
    p = ClassPrediction(*make(m=50, ties=ties))
    (counts,) = resample_counts(50, 12, seed=3)
    assert (counts.sum(1) == 50).all()
    expected = [metric(p[torch.repeat_interleave(torch.arange(50), c.long())]) for c in counts]
    batched = metric(read(p).weighted(counts))
    assert batched.numpy() == pytest.approx(np.array(expected), abs=1e-9)


def test_every_metric_is_defined_on_weighted_rows():
    assert {f for f, kinds in METRICS.items() if "classes" in kinds} == set(FLOATS.values())


def test_accuracy_has_its_wilson_interval():
    from scipy.stats import binomtest

    logits, y = make(m=200)
    right = round(metrics.accuracy(logits, y) * 200)
    expected = binomtest(right, 200).proportion_ci(0.9, method="wilson")
    value, low, high = metrics.bootstrap(metrics.accuracy, logits, y, level=0.9)
    assert value == right / 200
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_bootstrap_is_seeded_and_options_pass():
    logits, y = make(m=80)
    one = metrics.bootstrap(metrics.ece, logits, y, resamples=50, seed=1, bins=5)
    assert one == metrics.bootstrap(metrics.ece, logits, y, resamples=50, seed=1, bins=5)
    assert one != metrics.bootstrap(metrics.ece, logits, y, resamples=50, seed=2, bins=5)
    assert one.value == metrics.ece(logits, y, bins=5)
    named = {"five": partial(metrics.ece, bins=5), "acc": metrics.accuracy}
    assert metrics.bootstrap_all(named, logits, y, resamples=50, seed=1)["five"] == one


def test_bootstrap_of_a_users_metric_sees_predictions():
    logits, y = make(m=40)
    p = ClassPrediction(torch.stack([logits, logits * 0.5]), target=y)
    value, low, high = metrics.bootstrap(lambda q: float(q.epistemic.mean()), p, resamples=40)
    assert low < value < high
    assert value == pytest.approx(p.epistemic.mean().item())
    same = metrics.bootstrap(lambda q: metrics.ece(q), logits, y, resamples=40)
    assert same == pytest.approx(metrics.bootstrap(metrics.ece, logits, y, resamples=40), abs=1e-9)


def test_ece_interval_holds_the_truth():
    """A calibrated-then-sharpened model, whose ECE on very many rows is known."""

    def draw(m: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(m, 4, generator=generator, dtype=torch.float64) * 2
        return logits, torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]

    truth = metrics.ece(*draw(400_000, 99))
    inside = 0
    for seed in range(25):
        _, low, high = metrics.bootstrap(metrics.ece, *draw(300, seed), resamples=100)
        inside += low <= truth <= high
    assert inside >= 20


def test_subgroups_equal_metrics_on_the_parts():
    logits, y = make(m=200)
    column = torch.arange(200) % 100
    table = metrics.subgroups(logits, {"number": column, "name": ["x", "y"] * 100}, y, groups=4)
    assert table["rows"].tolist() == [50, 50, 50, 50, 100, 100]
    part = (column >= 75).nonzero().flatten()
    last = table[table.column == "number"].iloc[-1]
    assert last["accuracy"] == pytest.approx(metrics.accuracy(logits[part], y[part]))
    assert last["ece"] == pytest.approx(metrics.ece(logits[part], y[part], bins=10))
    assert (table["ece_low"] <= table["ece"]).all()
    assert (table["ece_high"] >= table["ece"]).all()


def test_subgroups_of_special_values():
    logits, y = make(m=9)
    column = [0.0, 0.0, 1.0, 1.0, math.inf, math.inf, math.nan, math.nan, math.nan]
    table = metrics.subgroups(logits, column, y, resamples=0)
    found = dict(zip(table["group"], table["rows"], strict=True))
    assert found == {"0": 2, "1": 2, "missing": 5}


def test_subgroups_with_a_users_metric_on_predictions():
    logits, y = make(m=20)
    p = ClassPrediction(logits, target=y)
    table = metrics.subgroups(
        p, [0, 1] * 10, metrics={"mi": lambda q: float(q.epistemic.mean())}, resamples=5
    )
    assert table["mi"].tolist() == [0.0, 0.0]


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
    assert metrics.accuracy(p) == float(p.correct.double().mean())
    assert metrics.nll(p) < metrics.nll(p.mean_logits()) - 0.1
    assert metrics.brier(p) == pytest.approx(metrics.brier(probs.log(), target))
    assert metrics.ece(p) == pytest.approx(metrics.ece(probs.log(), target))


def test_a_separation_of_very_few_rows_has_no_interval():
    few, many = torch.arange(4.0), torch.arange(20.0) + 2
    for sets in ((few, many), (many, few)):
        found = metrics.separation(*sets, resamples=20)
        assert found.auroc.value == metrics.auroc(*sets)
        assert all(math.isnan(end) for one in found for end in (one.low, one.high))
    assert metrics.separation(many, many + 1, resamples=20).auroc.high < 1


@pytest.mark.parametrize("form", [list, np.asarray, torch.tensor])
def test_labels_of_any_form(form):
    logits, target = make(m=6)
    assert metrics.accuracy(logits, form(target.tolist())) == metrics.accuracy(logits, target)
