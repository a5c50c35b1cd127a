"""The verdict on outcomes that were made to be so; differences are those of the metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gduq import metrics
from gduq.evaluation.evaluation import EvaluationSettings
from gduq.prediction import ClassPrediction, LabelPrediction
from gduq.report.subject import difference
from gduq.report.verdict import verdict
from tests.report.cases import (
    judged,
    labels,
    of_values,
    on_three,
    prediction,
    rare,
    three,
    values,
)

OPTIONS = EvaluationSettings(resamples=200)


def made(right: int, total: int, logit: float, seed: int = 0) -> ClassPrediction:
    """``right`` of ``total`` rows right, of both classes, all with the same confidence."""
    target = torch.arange(total) % 2
    said = torch.where(torch.arange(total) < right, target, 1 - target)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return ClassPrediction(logit * torch.eye(2)[said[order]], target[order])


def missing_most(found: float) -> LabelPrediction:
    """Two labels, under-confident; of the second, one row in ten is "yes"."""
    rows = torch.arange(1000)
    first, second = rows % 2, (rows % 10 == 0).long()
    said = torch.where(rows // 10 % 100 < 100 * found, second, 0)
    target = torch.stack([first, second], dim=1)
    return LabelPrediction(3.0 * torch.stack([first, said], dim=1) - 1.5, target)


def ranking(m: int = 1000, positives: int = 35) -> ClassPrediction:
    """Rare positives that are ranked well, though no probability is above a half."""
    g = torch.Generator().manual_seed(0)
    y = (torch.randperm(m, generator=g) < positives).long()
    z = -3.3 + 0.8 * torch.randn(m, generator=g) + 1.2 * y
    return ClassPrediction(torch.stack([torch.zeros(m), z], dim=1), y, ("no", "yes"))


OUTCOMES = {  # predictions, action, tone, and what the headline or the advice has to hold
    "good": (on_three(values), "keep", "neutral", "RMSE of"),
    "too sure": (made(60, 100, 9.0), "collect", "bad", "over-confident by 40 points"),
    "too careful": (made(95, 100, 0.1), "keep", "care", "safe side"),
    "narrow everywhere": (on_three(values, {"scale": 0.4}), "calibrate", "bad", "'deviation'"),
    "narrow under shift": (on_three(values, wrong=2.0), "collect", "bad", "under shift only"),
    "useless values": (values(bias=20.0), "collect", "bad", "predicting the mean"),
    "wide": (values(seed=3, scale=2.5), "collect", "care", "of the 5–95 % range"),
    "useful ranker": (ranking(), "rank", "care", "of the first 30 are “yes”"),
    "missed labels": (missing_most(0.1), "rank", "care", "it finds 10 % of the positives"),
    "found labels": (missing_most(0.9), "keep", "care", "finds 95 % of the positives"),
    "missed class": (rare(0.2, 1.0), "rank", "care", "it finds 20 % of “yes” (100 rows)"),
    "tiny": (made(20, 25, 1.4), "collect", "care", "25 rows are too few"),
    "few positives": (rare(0.8, 0.99, m=80), "collect", "care", "8 rows of “yes” are too few"),
    "one class": (
        ClassPrediction(torch.eye(2).repeat(20, 1), torch.zeros(40).long()),
        "collect", None, "all of these rows are",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcomes(name):
    p, action, tone, words = OUTCOMES[name]
    found = verdict([judged("m", p)])
    assert found.advice.action == action
    assert found.tone == (tone or found.tone)
    assert words in found.headline + found.advice.text
    if action != "keep":
        assert not found.advice.text.startswith("Keep it")


def test_the_split_it_is_about():
    first = three()[0]
    assert verdict([first]).headline.startswith("Under size shift, vanilla ")
    severe = {s: p for s, p in first.predictions.items() if not s.startswith("ood")}
    assert verdict([judged("v", severe)]).headline.startswith("At rotation=60,")
    assert verdict([judged("v", {"id_test": severe["id_test"]})]).points == ()
    assert "not known" in verdict([judged("a", prediction(labelled=False))]).headline


def test_a_cut_without_a_shift_is_no_shift():
    g = torch.Generator().manual_seed(0)
    novel = {"id_test": torch.rand(200, generator=g), "ood_test": torch.rand(200, generator=g)}
    same = {s: replace(values(seed=i), novelty=novel[s]) for i, s in enumerate(novel)}
    assert "show a shift" in verdict([judged("m", same)]).headline
    novel["ood_test"] = 0.5 + novel["ood_test"] / 2
    away = {s: replace(values(seed=i), novelty=novel[s]) for i, s in enumerate(novel)}
    assert verdict([judged("m", away)]).headline.startswith("Under shift,")


def test_several_values_and_weak_labels_are_named():
    first = judged("m", on_three(values, {"width": 2}, wrong=2.0))
    assert [point.about for point in verdict([first]).points] == ["m", "m: v0", "m: v1"]
    p = labels(width=2)
    samples = p.samples.clone()
    samples[..., 1] = torch.randn(samples.shape[:2], generator=torch.Generator().manual_seed(9))
    (point,) = verdict([judged("m", p.with_samples(samples))]).points
    assert "1 may be ranked by chance: “b” (" in point.text


# -- what another one changes --------------------------------------------------------------------

SURE = made(80, 200, 9.0)  # 40 % right and sure of it
OTHER = SURE.with_samples(SURE.samples.flip(-1))  # always the other class


@pytest.mark.parametrize(
    ("first", "other", "tone", "words"),
    [
        (made(60, 200, 9.0), made(60, 200, 0.619), "good", "Clearly better: ECE, Gap"),
        (made(60, 200, 0.6), made(60, 200, 9.0), "bad", "Clearly worse: ECE, Gap"),
        (SURE, OTHER.with_samples(OTHER.samples * 0.005), "good", "Clearly better: Accuracy"),
        (OTHER, SURE.with_samples(SURE.samples * 0.01), "neutral", "Clearly worse: Accuracy"),
        (made(60, 100, 9.0), made(60, 100, 0.5, seed=1), "neutral", "other rows of ood_test"),
    ],
)
def test_what_another_subject_changes(first, other, tone, words):
    point = verdict([judged("a", first), judged("b", other)]).points[-1]
    assert point.tone == tone
    assert words in point.text


def test_a_better_one_is_advised_unless_it_loses_a_class():
    assert verdict(of_values()).advice.action == "switch"
    found = verdict([judged("a", rare(0.4, 0.86)), judged("b", rare(0.1, 0.95))])
    assert found.advice.action != "switch"
    assert found.points[-1].tone != "good"


# -- differences ---------------------------------------------------------------------------------

PAIRS = {
    "classes": (prediction(sharp=3), prediction(sharp=3).with_samples(
        prediction(sharp=3).samples * 0.5 + 0.1)),
    "values": (values(width=2), values(width=2, scale=0.3)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"),
    [("classes", name) for name in ("accuracy", "ece", "nll", "brier", "aurc")]
    + [("values", name) for name in ("rmse", "nll", "crps", "miscalibration_area")],
)
def test_differences_are_those_of_the_metrics(kind, name):
    p, q = PAIRS[kind]
    found, metric = difference(name, p, q, OPTIONS), getattr(metrics, name)
    one, two = (list(r.parts().values()) for r in (p, q))
    expected = sum(map(metric, two)) / len(two) - sum(map(metric, one)) / len(one)
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert found.low <= found.value <= found.high
    assert difference(name, p, p, OPTIONS) == (0, 0, 0)


# -- commands ------------------------------------------------------------------------------------


def test_commands():
    narrow = on_three(values, {"scale": 0.4})
    always = verdict([judged("n", narrow, folder="my runs/n")]).advice
    assert always.command == "gduq calibrate 'my runs/n' --method deviation -o calibrated"
    wide = on_three(values, {"scale": 1.7}, wrong=1.7)  # too wide at home, right under shift
    harmed = verdict([judged("m", wide, folder="runs/m")]).advice
    assert "Do not calibrate it on id_val" in harmed.text
    assert "calibrate" not in harmed.command


def test_advice_names_novelty_where_it_finds_shifted_rows():
    p = {s: replace(q, novelty=torch.full((200,), 0.2)) for s, q in on_three(values).items()}
    p["ood_test"] = replace(values(seed=3, wrong=2.0), novelty=torch.full((200,), 0.97))
    advice = verdict([judged("m", p, folder="runs/m", config={"data": {"smiles": "s"}})]).advice
    assert "its novelty finds them (AUROC 1.00)" in advice.text
    assert advice.command == "gduq predict runs/m new.csv -o answers.csv --max-novelty 0.95"
