"""The verdict says what the numbers say, and never more."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq import metrics
from gduq.errors import InputError
from gduq.metrics import Interval
from gduq.prediction import Prediction
from gduq.report import Subject
from gduq.report.comparing import clear, difference
from gduq.report.verdict import nearer_words, verdict
from gduq.report.wording import Judged
from tests.report.cases import evaluated, prediction, three

OPTIONS = {"bins": 15, "resamples": 200, "level": 0.95, "seed": 0}


def made(right: int, total: int, logit: float, seed: int = 0) -> Prediction:
    """``right`` of ``total`` rows right, of both classes, all with the same confidence."""
    target = torch.arange(total) % 2
    said = torch.where(torch.arange(total) < right, target, 1 - target)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return Prediction(logit * torch.eye(2)[said[order]], target[order])


def subject(name: str, p: Prediction, **more) -> Subject:
    return evaluated(Subject(name, {"ood_test": p}, **more))


@pytest.mark.parametrize("name", ["accuracy", "ece", "nll", "brier", "aurc"])
def test_differences_are_those_of_the_metrics(name):
    p = prediction(sharp=3)
    q = p.with_samples(p.samples * 0.5 + 0.1)
    found = difference(name, p, q, **OPTIONS)
    metric = getattr(metrics, name)
    assert found.value == pytest.approx(metric(q) - metric(p), abs=1e-12)
    assert found.low <= found.value <= found.high
    assert difference(name, p, p, **OPTIONS) == (0, 0, 0)
    with pytest.raises(InputError, match="a measure of classes"):
        difference("beauty", p, q, **OPTIONS)


def test_over_confidence_is_said_in_points():
    said = verdict([subject("vanilla", made(60, 100, 9.0))])
    assert said.headline == (
        "Under shift, vanilla is over-confident by 40 points: "
        "on average it is 100 % sure and 60 % right."
    )
    assert said.tone == "bad"
    assert "100 rows of ood_test" in said.note


def test_under_confidence_and_no_finding():
    under = verdict([subject("v", made(95, 100, 0.1))]).headline
    assert "under-confident by 43 points" in under
    fair = verdict([subject("v", made(73, 100, 1.0))])
    assert "neither clearly over- nor under-confident" in fair.headline
    assert fair.tone == "neutral"


def test_a_halved_gap_and_its_cost():
    first = subject("vanilla", made(60, 200, 9.0), cost={"train_seconds": 2.0})
    other = subject("G-ΔUQ", made(60, 200, 0.6190392), cost={"train_seconds": 3.0})
    point = verdict([first, other]).points[0]
    assert point.about == "G-ΔUQ"
    assert point.text.startswith("Halves the gap: over-confident by 35 points")
    assert "Accuracy is the same. It costs 1.5× the training time of vanilla." in point.text
    assert point.tone == "good"


def test_a_gap_that_crosses_over():
    first, other = subject("a", made(1600, 2000, 9.0)), subject("b", made(1600, 2000, 0.8))
    point = verdict([first, other]).points[0]
    assert "and crosses over: under-confident by" in point.text


def test_a_gap_that_grows():
    point = verdict([subject("a", made(60, 200, 0.6)), subject("b", made(60, 200, 9.0))]).points[0]
    assert point.text.startswith("Its confidence is further off: over-confident by 70 points")
    assert point.tone == "bad"


def test_one_row_is_no_improvement():
    p = made(60, 200, 2.0)
    samples = p.samples.clone()
    wrong = int(torch.nonzero(~p.correct)[0])
    samples[:, wrong] = samples[:, wrong].flip(-1)
    point = verdict([subject("a", p), subject("b", p.with_samples(samples))]).points[0]
    assert "Accuracy: no clear change (+0.5 points" in point.text
    assert "No clear change of the gap" in point.text
    assert point.tone == "neutral"


def test_the_tone_is_good_only_where_nothing_is_worse():
    p = made(80, 200, 9.0)  # 40 % right and sure of it
    unsure = p.with_samples(p.samples.flip(-1) * 0.05)  # always the other class, hardly sure
    first, other = Subject("a", {"ood_test": unsure}), Subject("b", {"ood_test": p})
    point = verdict([evaluated(other), evaluated(first)]).points[0]
    assert "Accuracy is 20 points higher" in point.text
    assert point.tone == "good"
    point = verdict([evaluated(first), evaluated(other)]).points[0]
    assert "Accuracy is 20 points lower" in point.text
    assert point.tone == "bad"
    flat = p.with_samples(p.samples * 0.01)  # as wrong as before, and says so
    point = verdict([evaluated(Subject("a", {"ood_test": p.with_samples(p.samples.flip(-1))})),
                     evaluated(Subject("b", {"ood_test": flat}))]).points[0]  # fmt: skip
    assert "Cuts the gap by" in point.text
    assert "Accuracy is 20 points lower" in point.text
    assert point.tone == "neutral"


def test_other_rows_are_not_compared():
    first = subject("a", made(60, 100, 9.0))
    other = subject("b", made(60, 100, 0.5, seed=1))
    one, two = (s.predictions["ood_test"] for s in (first, other))
    assert difference("gap", one, two, **OPTIONS) is None
    assert "other rows of ood_test" in verdict([first, other]).points[0].text
    bare = evaluated(Subject("c", {"id_test": made(5, 10, 1.0)}))
    assert "no labelled predictions on ood_test" in verdict([first, bare]).points[0].text


def test_without_labels_nothing_is_claimed():
    bare = evaluated(Subject("a", {"ood_test": prediction(labelled=False)}))
    assert "not known" in verdict([bare]).headline


def test_the_split_it_is_about():
    first = three()[0]
    assert verdict([first]).headline.startswith("Under size shift, vanilla is over-confident")
    severe = {s: p for s, p in first.predictions.items() if not s.startswith("ood")}
    assert verdict([evaluated(Subject("v", severe))]).headline.startswith("At rotation=60,")
    known = {"id_test": severe["id_test"]}
    only = verdict([evaluated(Subject("v", known))])
    assert only.headline.startswith("On data like its training data,")
    assert only.points == ()


@settings(deadline=None, max_examples=20)
@given(st.floats(-0.9, 0.9), st.floats(-0.9, 0.9), st.floats(0, 0.5), st.floats(0, 0.5))
def test_no_better_word_within_the_interval(gap, now, down, up):
    change = abs(now) - abs(gap)
    found = Interval(change, change - down, change + up)
    ends = Interval(gap, gap, gap), Interval(now, now, now)
    words = nearer_words(found, *ends, abs(gap), Judged(three()[0], "ood_test").words)
    better = any(word in words for word in ("Halves", "Cuts", "closes"))
    assert better == (found.high < 0)
    assert ("further off" in words) == (found.low > 0)
    assert ("No clear change" in words) == (not clear(found))


def test_sampling_follows_the_evaluation():
    assert three()[0].sampling == {"bins": 15, "resamples": 60, "level": 0.95, "seed": 0}
