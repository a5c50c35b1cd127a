"""The verdict says what the numbers say, and never more; the advice follows its rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq import metrics
from gduq.metrics import Interval
from gduq.prediction import LabelPrediction, Prediction, ValuePrediction
from gduq.report import Subject, build
from gduq.report.comparing import clear, difference
from gduq.report.verdict import nearer_words, verdict
from gduq.report.wording import JudgedSplit
from tests.report.cases import (
    evaluated,
    judged,
    labels,
    of_labels,
    of_values,
    on_three,
    prediction,
    rare,
    three,
    values,
)

OPTIONS = {"bins": 15, "resamples": 200, "level": 0.95, "seed": 0}


def made(right: int, total: int, logit: float, seed: int = 0) -> Prediction:
    """``right`` of ``total`` rows right, of both classes, all with the same confidence."""
    target = torch.arange(total) % 2
    said = torch.where(torch.arange(total) < right, target, 1 - target)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return Prediction(logit * torch.eye(2)[said[order]], target[order])


# -- the first subject ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "tone", "words"),
    [
        (made(60, 100, 9.0), "bad", "over-confident by 40 points: on average it is 100 % sure and"),
        (made(95, 100, 0.1), "care", "under-confident by 43 points"),
        (made(73, 100, 1.0), "neutral", "neither clearly over- nor under-confident"),
        (values(bias=20.0), "bad", "no nearer to the truth than one number for all rows"),
        (rare(0.4, 0.86), "bad", "no better than always answering “no”, which is right 90 %"),
        (rare(0.9, 0.99), None, "v is "),
        (ValuePrediction(torch.zeros(40, 2), torch.full((40,), 3.0)), None, "% intervals of v"),
        (Prediction(torch.eye(2).repeat(20, 1), torch.zeros(40).long()), None, "v is "),
    ],
)
def test_the_headline_says_what_is_promised_and_held_or_that_there_is_no_skill(p, tone, words):
    said = verdict([judged("v", p)])
    assert words in said.headline
    assert said.tone == (tone or said.tone)
    assert f"{len(p)} rows of ood_test" in said.note
    assert ("than always answering" in said.headline) == ("than always answering" in words)


def test_rows_of_one_class_are_no_praise():
    sure = 9.0 * torch.eye(2)[torch.zeros(40).long()]
    shifted, home = Prediction(sure, torch.zeros(40).long()), torch.arange(40) % 8 == 0
    said = verdict([judged("m", {"id_test": Prediction(sure, home.long()), "ood_test": shifted})])
    assert "all of these rows have the class “0”" in said.headline
    assert said.advice.action == "collect"


@pytest.mark.parametrize(("wrong", "said"), [(2.0, True), (1.2, False)])
def test_larger_errors_than_at_home_are_said(wrong, said):
    away = values(m=2000, wrong=wrong, scale=wrong)  # its intervals know
    advice = verdict([judged("m", {"id_test": values(m=2000), "ood_test": away})]).advice
    assert advice.action == "keep"
    assert ("But its errors (RMSE) are 2.0 times those on id_test." in advice.text) == said


@pytest.mark.parametrize(
    ("factor", "rows", "tone", "action"),
    [(4.0, 2000, "bad", "calibrate"), (0.3, 2000, "care", "calibrate"),
     (1.0, 2000, "neutral", "keep"), (0.9, 20000, "neutral", None)],
)  # fmt: skip
def test_promising_too_much_is_worse_than_too_little(factor, rows, tone, action):
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(rows, 3, generator=g)
    y = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    said = verdict([judged("m", {"id_test": Prediction(factor * z, y)})])
    assert said.tone == tone
    assert said.advice.action == (action or said.advice.action)
    assert said.headline.startswith("On data like its training data,")
    assert ("under-confident by" in said.headline) == (factor < 1)


def test_the_split_it_is_about():
    first = three()[0]
    assert verdict([first]).headline.startswith("Under size shift, vanilla is over-confident")
    severe = {s: p for s, p in first.predictions.items() if not s.startswith("ood")}
    assert verdict([judged("v", severe)]).headline.startswith("At rotation=60,")
    assert verdict([judged("v", {"id_test": severe["id_test"]})]).points == ()
    assert "not known" in verdict([judged("a", prediction(labelled=False))]).headline


def test_several_values_have_a_point_each():
    first = judged("m", on_three(values, {"width": 2}, wrong=2.0))
    p, said = first.predictions["ood_test"], verdict([first])
    held = [100 * metrics.coverage(p.column(t), 0.9) for t in (0, 1)]
    assert f"hold {sum(held) / 2:.0f} % of the truth (mean of 2 values)" in said.headline
    assert [point.about for point in said.points] == ["m", "m: v0", "m: v1"]
    assert said.points[1].text.startswith(f"Its 90 % intervals hold {held[0]:.0f} %")
    other = judged("n", on_three(values, {"width": 2}, wrong=2.0, scale=2.0))
    assert "NLL is lower:" in verdict([first, other]).points[-1].text


def test_labels_ranked_by_chance_are_named():
    said = verdict(of_labels())
    assert "on average over 3 labels it is" in said.headline
    auc = metrics.roc_auc(of_labels()[0].predictions["ood_test"])
    assert said.points[1].text.startswith(f"ROC-AUC is {auc:.2f}, balanced accuracy")
    p = labels(width=2)
    samples = p.samples.clone()
    samples[..., 1] = torch.randn(samples.shape[:2], generator=torch.Generator().manual_seed(9))
    said = verdict([judged("m", p.with_samples(samples))])
    assert "Of 2 labels, 1 may be ranked by chance: “b” (" in said.points[0].text


# -- what another one changes --------------------------------------------------------------------


def changed(first: Prediction, other: Prediction):
    return verdict([judged("a", first), judged("b", other)]).points[-1]


def with_one_more_right(p: Prediction) -> Prediction:
    samples, wrong = p.samples.clone(), int(torch.nonzero(~p.correct)[0])
    samples[:, wrong] = samples[:, wrong].flip(-1)
    return p.with_samples(samples)


SURE = made(80, 200, 9.0)  # 40 % right and sure of it
OTHERWISE = SURE.with_samples(SURE.samples.flip(-1))  # always the other class


@pytest.mark.parametrize(
    ("first", "other", "tone", "words"),
    [
        (made(60, 200, 9.0), made(60, 200, 0.6190392), "good",
         ["Halves the gap: over-confident by 35 points", "Accuracy is the same."]),
        (made(1600, 2000, 9.0), made(1600, 2000, 0.8), "good",
         ["and crosses over: under-confident by"]),
        (made(60, 200, 0.6), made(60, 200, 9.0), "bad",
         ["Its confidence is further off: over-confident by 70 points"]),
        (made(60, 200, 2.0), with_one_more_right(made(60, 200, 2.0)), "neutral",
         ["Accuracy: no clear change (+0.5 points", "No clear change of the gap"]),
        (SURE, OTHERWISE.with_samples(OTHERWISE.samples * 0.005), "good",
         ["Accuracy is 20 points higher"]),
        (OTHERWISE.with_samples(OTHERWISE.samples * 0.005), SURE, "bad",
         ["Accuracy is 20 points lower"]),
        (OTHERWISE, SURE.with_samples(SURE.samples * 0.01), "neutral",  # good only if none is worse
         ["Cuts the gap by", "Accuracy is 20 points lower"]),
        (made(60, 100, 9.0), made(60, 100, 0.5, seed=1), "neutral", ["other rows of ood_test"]),
    ],
)  # fmt: skip
def test_what_another_subject_changes(first, other, tone, words):
    point = changed(first, other)
    assert point.tone == tone
    assert all(word in point.text for word in words)


def test_costs_and_missing_predictions_are_said():
    first, wide = of_values()
    point = verdict([first, wide]).points[-1]
    assert (point.about, point.tone) == ("wide", "good")
    assert "RMSE is the same. It costs 2.5× the training time of plain." in point.text
    bare = evaluated(Subject("c", {"id_test": made(5, 10, 1.0)}))
    point = verdict([judged("a", made(60, 100, 9.0)), bare]).points[0]
    assert "no labelled predictions on ood_test" in point.text


def test_a_class_that_collapses_is_no_praise():
    first, other = rare(0.4, 0.86), rare(0.1, 0.95)
    assert metrics.accuracy(other) > metrics.accuracy(first) + 0.03
    said = verdict([judged("a", first), judged("b", other)])
    text, change = said.points[0].text, said.points[-1]
    assert "it finds 40 % of “yes” (100 rows)" in text
    assert "Always answering “no” would be right 90 % of the time." in text
    assert "It finds 10 % of “yes” instead of 40 %." in change.text
    assert change.tone != "good"
    assert said.advice.action != "switch"


@settings(deadline=None, max_examples=20)
@given(st.floats(-0.9, 0.9), st.floats(-0.9, 0.9), st.floats(0, 0.5), st.floats(0, 0.5))
def test_no_better_word_within_the_interval(gap, now, down, up):
    change = abs(now) - abs(gap)
    found = Interval(change, change - down, change + up)
    ends = Interval(gap, gap, gap), Interval(now, now, now)
    words = nearer_words(found, *ends, abs(gap), JudgedSplit(three()[0], "ood_test").words)
    better = any(word in words for word in ("Halves", "Cuts", "closes"))
    assert better == (found.high < 0)
    assert ("further off" in words) == (found.low > 0)
    assert ("No clear change" in words) == (not clear(found))


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
    found, metric = difference(name, p, q, **OPTIONS), getattr(metrics, name)
    one, two = ([r.column(0), r.column(1)] if kind == "values" else [r] for r in (p, q))
    expected = sum(map(metric, two)) / len(two) - sum(map(metric, one)) / len(one)
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert found.low <= found.value <= found.high
    assert difference(name, p, p, **OPTIONS) == (0, 0, 0)
    with pytest.raises(ValueError, match=f"a measure of {kind}"):
        difference("beauty", p, q, **OPTIONS)


def test_the_gap_of_values_is_a_mean_and_other_rows_are_not_compared():
    p, q = PAIRS["values"]
    held = [sum(metrics.coverage(r.column(t), 0.9) for t in (0, 1)) / 2 for r in (p, q)]
    change = difference("gap", p, q, **OPTIONS)
    assert change.value == pytest.approx(held[0] - held[1])
    assert change.low > 0
    assert difference("gap", p, values(width=2, seed=5), **OPTIONS) is None
    assert three()[0].sampling == {**OPTIONS, "resamples": 60}  # as in the evaluation


# -- what to do ----------------------------------------------------------------------------------


def test_advice_on_values():
    assert verdict([judged("w", on_three(values))]).advice.action == "keep"
    shifted = verdict([of_values()[0]]).advice
    assert shifted.action == "collect"
    assert "under shift only" in shifted.text
    always = verdict([judged("n", on_three(values, {"scale": 0.4}), folder="runs/n")]).advice
    assert always.action == "calibrate"
    assert always.text.startswith("Calibrate it: 'deviation', fitted on id_val, makes it fit")
    assert always.command == "gduq calibrate runs/n --method deviation -o calibrated"
    careful = verdict([judged("c", on_three(values, wrong=0.5))]).advice
    assert careful.action == "keep"
    assert "too wide, which is on the safe side" in careful.text
    switch = verdict(of_values()).advice
    assert switch.action == "switch"
    assert switch.text.startswith("Switch to wide:")


def missing_most(found: float) -> LabelPrediction:
    """Two labels, under-confident; of the second, one row in ten is "yes"."""
    rows = torch.arange(1000)
    first, second = rows % 2, (rows % 10 == 0).long()
    said = torch.where(rows // 10 % 100 < 100 * found, second, 0)
    target = torch.stack([first, second], dim=1)
    return LabelPrediction(3.0 * torch.stack([first, said], dim=1) - 1.5, target)


@pytest.mark.parametrize(
    ("shifted", "says"),
    [
        (values(seed=3, scale=2.5), ["its 90 % intervals are", "wide", "range of the measured"]),
        (values(seed=3, wrong=2.4, scale=6.0), ["of the variance (R²)", "its 90 % intervals"]),
        (missing_most(0.1), ["it finds 10 % of “1” (100 rows)"]),
        (rare(0.2, 1.0), ["it finds 20 % of “yes” (100 rows)"]),
    ],
)
def test_too_little_confidence_is_no_safe_side_of_a_model_of_little_use(shifted, says):
    """Intervals as wide as the data, R² near 0, labels and classes that are hardly found."""
    said = verdict([judged("m", shifted)])
    assert "safe side" not in said.advice.text
    assert said.advice.action == "collect"
    assert all(words in said.advice.text for words in says)
    assert said.tone == "bad"


def test_the_safe_side_of_a_model_that_is_of_use():
    for shifted in (values(seed=3, wrong=0.5), missing_most(0.9), rare(0.9, 1.0)):
        assert "safe side" in verdict([judged("m", shifted)]).advice.text
    named = replace(values(width=2, scale=2.5), names=("logS", "logP"))
    fault = JudgedSplit(judged("m", named), "ood_test").fault
    assert "intervals of “logS”" in fault
    assert "intervals of “logP”" in fault


def test_no_advice_to_calibrate_where_that_hurts_under_shift():
    """Too wide at home and right under shift: a calibrator fitted at home would narrow it."""
    wide = on_three(values, {"scale": 1.7}, wrong=1.7)
    said = verdict([judged("m", wide, folder="runs/m")])
    assert "neither clearly too narrow nor too wide" in said.headline
    assert said.advice.action == "keep"
    assert "On id_test, its intervals are too wide by" in said.advice.text
    assert "Do not calibrate it on id_val: 'deviation' would make it worse (NLL" in said.advice.text
    assert said.advice.command.startswith("gduq predict runs/m ")


def test_advice_for_a_rare_class_names_the_weights():
    config = {"data": {"name": "rare.csv", "source": "/data/rare.csv"}}
    subject = judged("a", rare(0.4, 0.86), config=config, folder="runs/a")
    wanted = "gduq train runs/a --set training.class_weights=balanced"
    assert verdict([subject]).advice.action == "collect"
    assert verdict([subject]).advice.command == wanted
    assert f"<code>{wanted}</code>" in build(subject)
    elsewhere = replace(subject, folder="my runs/a")
    assert "'my runs/a' --root 'my runs' --set" in verdict([elsewhere]).advice.command
    tried = replace(subject, config={**config, "training": {"class_weights": "balanced"}})
    assert verdict([tried]).advice.command == ""
    assert "though they had weight" in verdict([tried]).advice.text


def test_advice_names_novelty_where_it_finds_shifted_rows():
    found = on_three(values, wrong=2.0)
    far = found["ood_test"].novelty * 0.1 + 0.9
    found["ood_test"] = replace(found["ood_test"], novelty=far)
    assert "its novelty finds them (AUROC" in verdict([judged("m", found)]).advice.text
