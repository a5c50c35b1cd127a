"""Runs that differ in the seed only: one model, whose numbers are means over seeds."""

from __future__ import annotations

import json
import math
import statistics

import pytest
import torch
from scipy.stats import t

from gduq.metrics import Interval
from gduq.prediction import ClassPrediction
from gduq.report import Subject, build, write
from gduq.report.results import scorecards
from gduq.report.subject import change, is_clear, mean_over_runs, pooled
from gduq.report.verdict import verdict
from tests.report.cases import evaluated

TARGET = (torch.arange(400) % 4 == 0).long()  # class 0 is right in 300 of 400 rows


def run(confidence: float, seed: int, name: str = "model", **more) -> Subject:
    """Always class 0, with one confidence: 75 % right, a gap of confidence - 0.75."""
    logit = math.log(confidence / (1 - confidence))
    p = ClassPrediction(torch.tensor([[logit, 0.0]], dtype=torch.float64).repeat(400, 1), TARGET)
    config = {"seed": seed, "data": {"name": "d"}}
    return evaluated(Subject(name, {"ood_test": p}, config=config, **more))


def model(*confidences: float, name: str = "model", first: int = 0) -> Subject:
    return pooled(run(c, first + i, name) for i, c in enumerate(confidences))


def test_rows_and_seeds_both_widen_an_interval():
    found = [Interval(0.1, 0.05, 0.2), Interval(0.2, 0.1, 0.35), Interval(0.6, 0.5, 0.8)]
    mean, low, high = mean_over_runs(found, 0.9)
    seeds = t.ppf(0.95, 2) * statistics.stdev([0.1, 0.2, 0.6]) / math.sqrt(3)
    assert mean == pytest.approx(0.3)
    assert mean - low == pytest.approx(math.hypot((0.05 + 0.1 + 0.1) / 3, seeds))
    assert high - mean == pytest.approx(math.hypot((0.1 + 0.15 + 0.2) / 3, seeds))
    assert mean_over_runs(found[:1]) == found[0]
    wide = [Interval(0.1, 0.0, 0.2), Interval(0.9, 0.8, 1.0)]
    assert mean_over_runs(wide, measure="accuracy")[1:] == (0.0, 1.0)
    assert mean_over_runs(wide, measure="nll").low == 0.0
    assert mean_over_runs(wide, measure="nll").high > 1
    assert mean_over_runs(wide, measure="gap").low < 0
    missing = Interval(math.nan, math.nan, math.nan)
    assert mean_over_runs([found[0], missing]) == found[0]
    assert math.isnan(mean_over_runs([missing]).value)


def test_the_scorecard_shows_the_mean_and_the_spread():
    subject = model(0.95, 0.85, 0.9)
    (table,) = scorecards([subject])
    gap = table.rows[0][table.columns.index("Gap,\u00a0points")]
    assert gap.value == pytest.approx(0.15)
    assert gap.text == "+15.0 ± 5.0"
    (alone,) = scorecards([subject.runs[0]])
    assert "±" not in "".join(cell.text for cell in alone.rows[0])


def test_what_differs_from_seed_to_seed_is_not_called_a_change():
    first = model(0.95, 0.95, 0.95, name="vanilla")
    steady = model(0.80, 0.82, 0.81, name="steady")
    moody = model(0.76, 0.76, 0.999, name="moody")  # better twice, worse once
    for i in range(2):  # over rows alone the difference of every pair is beyond doubt
        found = change("distance", first.runs[i], moody.runs[i], "ood_test")
        assert found.value < 0
        assert is_clear(found)
    points = {p.about: p for p in verdict([first, steady, moody]).points}
    assert points["steady (3 seeds)"].tone == "good"
    assert points["moody (3 seeds)"].tone == "neutral"
    gaps = scorecards([first])[0].columns.index("Gap,\u00a0points")
    marks = {row[0].text: row[gaps].mark for row in scorecards([first, steady, moody])[0].rows}
    assert marks["steady (3 seeds)"] == "better"
    assert marks["moody (3 seeds)"] == ""


def test_runs_are_paired_by_seed():
    first, other = [run(c, i) for i, c in enumerate((0.8, 0.9))], [run(0.85, 1), run(0.78, 0)]
    found = change("distance", pooled(first), pooled(other), "ood_test")
    assert found.value == pytest.approx(-0.035)
    # differences of -0.02 and -0.05, not of +0.05 and -0.12
    half = t.ppf(0.975, 1) * statistics.stdev([-0.02, -0.05]) / math.sqrt(2)
    assert found.high - found.value == pytest.approx(half, rel=0.05)
    single = change("distance", run(0.8, 7), pooled(other), "ood_test")
    assert single.value == pytest.approx(0.015)


def test_pictures_are_of_one_run_and_say_which(tmp_path):
    page = build([model(0.95, 0.9, name="a<b"), run(0.8, 0, "one")])
    assert "a&lt;b (2 seeds)" in page
    assert "Reliability, ood_test: a&lt;b, seed 0 (ECE" in page
    assert "show one run" in page
    table = json.loads(write([model(0.95, 0.9)], tmp_path / "t.json").read_text())["table"]
    rows = {r["measure"]: r for r in table}
    assert float(rows["gap"]["value"]) == pytest.approx(0.175)
    assert float(rows["accuracy"]["value"]) == pytest.approx(0.75)
    assert len(table) == len(run(0.95, 0).result.table)
