"""Pages about values, labels and rare classes: what they say, show and advise."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
import torch

from gduq import metrics
from gduq.errors import InputError
from gduq.evaluation import Evaluation
from gduq.prediction import LabelPrediction, Prediction, ValuePrediction
from gduq.report import Subject, build, write
from gduq.report.comparing import difference
from gduq.report.scorecards import label_table, scorecards
from gduq.report.subject import pooled
from gduq.report.tables import subgroups
from gduq.report.verdict import verdict
from tests.report.cases import evaluated, graph_splits, prediction
from tests.report.test_page import Reader

OPTIONS = {"bins": 15, "resamples": 50, "level": 0.95, "seed": 0}
NAN = float("nan")


def values(m=200, seed=0, wrong=1.0, scale=1.0, width=1, bias=0.0) -> ValuePrediction:
    """Errors ``wrong`` times, and said deviations ``scale`` times, what is usual."""
    g = torch.Generator().manual_seed(seed)
    y = 2 * torch.randn(m, width, generator=g)
    std = 0.3 + torch.rand(m, width, generator=g)
    means = y + bias + wrong * std * torch.randn(m, width, generator=g)
    samples = torch.cat([means, 2 * (scale * std).log()], dim=1)
    names = ("logS",) if width == 1 else tuple(f"v{t}" for t in range(width))
    return ValuePrediction(samples, y, names, novelty=torch.rand(m, generator=g))


def labels(m=200, seed=0, sharp=1.0, noise=0.5, width=3) -> LabelPrediction:
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(m, width, generator=g) - 1.0
    y = (torch.rand(m, width, generator=g) < z.sigmoid()).float()
    y[torch.rand(m, width, generator=g) < 0.15] = NAN
    noisy = z + noise * torch.randn(3, m, width, generator=g)
    return LabelPrediction(sharp * noisy, y, tuple("abc"[:width]))


def two(make, calibrators=(), **wrong) -> dict:
    """At home as it should be, elsewhere not."""
    return {"id_val": make(seed=1), "id_test": make(seed=2), "ood_test": make(seed=3, **wrong)}


def subject(name: str, predictions: dict, *calibrators: str, **more) -> Subject:
    return evaluated(Subject(name, predictions, **more), calibrators=list(calibrators))


@cache
def of_values() -> tuple[Subject, Subject]:
    """Too narrow under shift, and one that is not."""
    splits = graph_splits(200)
    cost = {"train_seconds": 2.0}
    return (
        subject("plain", two(values, wrong=2.0), "deviation", splits=splits, cost=cost),
        subject("wide", two(values, wrong=2.0, scale=2.0), cost={"train_seconds": 5.0}),
    )


@cache
def of_labels() -> tuple[Subject, Subject]:
    first = {s: labels(seed=i, sharp=4.0) for i, s in enumerate(("id_val", "id_test", "ood_test"))}
    other = {s: labels(seed=i) for i, s in enumerate(("id_val", "id_test", "ood_test"))}
    return subject("sharp", first, "per_label"), subject("mild", other)


# -- values --------------------------------------------------------------------------------------


def test_intervals_that_hold_too_little_are_said_so():
    first, wide = of_values()
    held = 100 * metrics.coverage(first.predictions["ood_test"], 0.9)
    said = verdict([first])
    start = f"Under size shift, the 90 % intervals of plain hold {held:.0f} % of the truth"
    assert said.headline.startswith(f"{start}: they are too narrow by")
    assert said.tone == "bad"
    assert "(id_test) its intervals are neither clearly too narrow" in said.points[0].text
    change = verdict([first, wide]).points[-1]
    assert change.about == "wide"
    assert change.tone == "good"
    assert "the gap" in change.text
    assert "RMSE is the same. It costs 2.5× the training time of plain." in change.text


def test_differences_of_values():
    p, q = values(width=2), values(width=2, scale=0.3)
    held = [sum(metrics.coverage(r.column(t), 0.9) for t in (0, 1)) / 2 for r in (p, q)]
    change = difference("gap", p, q, **OPTIONS)
    assert change.value == pytest.approx(held[0] - held[1])
    assert change.low > 0
    for name in ("rmse", "nll", "crps", "miscalibration_area"):
        metric = getattr(metrics, name)
        means = [sum(metric(r.column(t)) for t in (0, 1)) / 2 for r in (p, q)]
        assert difference(name, p, q, **OPTIONS).value == pytest.approx(means[1] - means[0])
    assert difference("gap", p, values(width=2, seed=5), **OPTIONS) is None
    with pytest.raises(InputError, match="a measure of values"):
        difference("accuracy", p, q, **OPTIONS)


def test_several_values_have_a_point_and_a_card_each():
    first = subject("m", two(lambda **k: values(width=2, **k), wrong=2.0), "deviation")
    p = first.predictions["ood_test"]
    said = verdict([first])
    held = [metrics.coverage(p.column(t), 0.9) for t in (0, 1)]
    mean = 100 * sum(held) / 2
    assert f"hold {mean:.0f} % of the truth (mean of 2 values)" in said.headline
    assert [point.about for point in said.points] == ["m", "m: v0", "m: v1"]
    assert said.points[1].text.startswith(f"Its 90 % intervals hold {100 * held[0]:.0f} %")
    tables = [t for t in scorecards([first]) if t.title.startswith("ood_test")]
    assert [t.title for t in tables] == ["ood_test: v0 (200 rows)", "ood_test: v1 (200 rows)"]
    for t, table in enumerate(tables):
        assert table.rows[0][1].value == pytest.approx(metrics.rmse(p.column(t)))
        gaps = [row[3].value for row in table.rows]
        assert gaps[0] == pytest.approx(0.9 - held[t])
        assert gaps[1] == pytest.approx(0.9 - first.value(
            "ood_test", "coverage_90", "deviation", f"v{t}").value)  # fmt: skip
    Reader(build(first))
    other = subject("n", two(lambda **k: values(width=2, scale=2.0, **k), wrong=2.0))
    assert "NLL is lower:" in verdict([first, other]).points[-1].text


def test_a_page_about_values():
    page = build(of_values())
    read = Reader(page)
    assert read.sections == ["verdict", "why", "about", "scorecard", "reliability", "parity",
                             "risk", "shifted", "groups", "cost", "graphs", "again"]  # fmt: skip
    assert "Truth and prediction, ood_test: plain: 90 % intervals:" in page
    assert "Error against deviation, ood_test: plain (ENCE" in page
    assert "Intervals of 80 % should hold 80 %" in page
    held = of_values()[0].value("ood_test", "coverage_90").value
    cells = [cell for table in read.tables for row in table for cell in row]
    assert any(cell.startswith(f"{100 * held:.1f}") for cell in cells)
    groups = subgroups(of_values())[0]
    names = [row[0].text for row in groups.rows if row[0].text.startswith("true value: ")]
    assert len(names) == 4
    assert max(map(len, names)) < 32  # no digits that help nobody


def test_errors_and_widths_have_the_unit():
    made = {s: replace(p, units=("log mol/L",)) for s, p in two(values).items()}
    first = subject("m", made)
    assert {"RMSE, log mol/L", "Their width, log mol/L"} <= set(scorecards([first])[0].columns)
    assert "RMSE, log mol/L" in subgroups([first])[0].columns
    assert "true logS / log mol/L" in build(first)


def test_no_skill_is_said():
    p = {"ood_test": values(bias=20.0)}
    said = verdict([subject("off", p)])
    assert "no nearer to the truth than one number for all rows" in said.headline
    assert said.tone == "bad"
    assert said.advice.action == "collect"


@pytest.mark.parametrize(
    "p",
    [
        ValuePrediction(torch.zeros(40, 2), torch.full((40,), 3.0)),
        Prediction(torch.eye(2).repeat(20, 1), torch.zeros(40).long()),
    ],
)
def test_rows_of_one_truth_cannot_tell_skill(p):
    said = verdict([subject("m", {"ood_test": p})])
    assert "always answering" not in said.headline
    assert "one number for all" not in said.headline
    Reader(build(subject("m", {"ood_test": p})))


# -- labels --------------------------------------------------------------------------------------


def test_the_verdict_on_labels():
    first, mild = of_labels()
    said = verdict([first, mild])
    assert said.headline.startswith("Under shift, sharp is over-confident by")
    assert "on average over 3 labels it is" in said.headline
    auc = metrics.roc_auc(first.predictions["ood_test"])
    assert said.points[1].text.startswith(f"ROC-AUC is {auc:.2f}, balanced accuracy")
    assert said.points[-1].tone == "good"


def test_labels_ranked_by_chance_are_named():
    p = labels(width=2)
    samples = p.samples.clone()
    samples[..., 1] = torch.randn(samples.shape[:2], generator=torch.Generator().manual_seed(9))
    said = verdict([subject("m", {"ood_test": p.with_samples(samples)})])
    assert "Of 2 labels, 1 may be ranked by chance: “b” (" in said.points[0].text


def test_the_table_of_labels():
    table = label_table(of_labels())
    expected = metrics.label_table(of_labels()[1].predictions["ood_test"])
    assert table.columns[:4] == ("Label", "Rows", "Yes,\u00a0%", "ROC-AUC: sharp")
    lines = {line.label: line for _, line in expected.iterrows()}
    ranked = [row[3].value for row in table.rows]
    assert ranked == sorted(ranked)  # of the first subject, the worst first
    for row in table.rows:
        line = lines[row[0].text]
        assert row[1].value == line.rows
        assert row[2].value == pytest.approx(line.base_rate)
        assert row[7].value == pytest.approx(line.roc_auc)
        assert row[8].value == pytest.approx(line.average_precision)
    assert label_table([subject("one", two(lambda **k: labels(width=1, **k)))]) is None
    assert label_table(of_values()) is None


def test_a_page_about_labels():
    page = build(of_labels())
    expected = "verdict why about scorecard labels reliability precision risk shifted again"
    assert Reader(page).sections == expected.split()
    assert "Precision and recall, a, ood_test: sharp (average precision" in page
    card = scorecards(of_labels())[-1]
    p = of_labels()[0].predictions["ood_test"]
    assert card.rows[0][1].value == pytest.approx(metrics.roc_auc(p))
    assert "Always giving the more common answer is right" in card.note
    twice = LabelPrediction(torch.cat([p.samples] * 2, dim=2), torch.cat([p.target] * 2, dim=1))
    wide = {"ood_test": twice}
    assert "Only in tables: 4, 5." in build(subject("m", wide))


def test_a_page_about_one_label():
    Reader(build(subject("one", {"ood_test": labels(width=1)})))


# -- rare classes --------------------------------------------------------------------------------


def rare(found: float, right: float, m: int = 1000, names=("no", "yes")) -> Prediction:
    """One row in ten is "yes": ``found`` of these and ``right`` of the others are said rightly."""
    target = (torch.arange(m) % 10 == 0).long()
    rank = torch.arange(m)
    hit = torch.where(target == 1, rank // 10 % 100 < 100 * found, rank % 100 < 100 * right)
    said = torch.where(hit, target, 1 - target)
    return Prediction(2.0 * torch.eye(2)[said], target, names)


def test_a_class_that_collapses_is_no_praise():
    first, other = rare(0.4, 0.86), rare(0.1, 0.95)
    assert metrics.accuracy(other) > metrics.accuracy(first) + 0.03
    said = verdict([subject("a", {"ood_test": first}), subject("b", {"ood_test": other})])
    text = said.points[0].text
    assert "Balanced accuracy is 6" in text
    assert "it finds 40 % of “yes” (100 rows)" in text
    assert "Always answering “no” would be right 90 % of the time." in text
    change = said.points[-1]
    assert "points higher" in change.text
    assert "Balanced accuracy is" in change.text
    assert "points lower" in change.text
    assert "It finds 10 % of “yes” instead of 40 %." in change.text
    assert change.tone != "good"
    assert said.advice.action != "switch"
    card = scorecards([subject("a", {"ood_test": first}), subject("b", {"ood_test": other})])[0]
    assert card.note == (
        "Always answering “no”, the most common class, is right 90.0 % of the time."
    )
    assert card.rows[1][1].mark == ""  # no ▲ for an accuracy gained by leaving a class out
    assert card.rows[1][2].mark == "worse"


def test_an_accuracy_below_the_most_common_answer_is_in_the_headline():
    said = verdict([subject("a", {"ood_test": rare(0.4, 0.86)})])
    assert "no better than always answering “no”, which is right 90 %" in said.headline
    assert said.tone == "bad"
    assert said.advice.action == "collect"
    assert "rare classes" in said.advice.text
    fine = verdict([subject("a", {"ood_test": rare(0.9, 0.99)})])
    assert "always answering" not in fine.headline


def test_two_classes_are_ranked_in_the_scorecard():
    p = rare(0.6, 0.97)
    (card,) = scorecards([subject("a", {"ood_test": p})])
    row = dict(zip(card.columns, card.rows[0], strict=True))
    assert row["ROC-AUC"].value == pytest.approx(metrics.roc_auc(p))
    assert row["Average precision"].value == pytest.approx(metrics.average_precision(p))
    (plain,) = scorecards([subject("a", {"ood_test": prediction()})])  # three classes, all common
    assert "ROC-AUC" not in plain.columns


def test_too_few_positives_have_no_interval():
    p = rare(0.5, 0.97, m=40)
    (card,) = scorecards([subject("a", {"ood_test": p})])
    row = dict(zip(card.columns, card.rows[0], strict=True))
    assert (row["ROC-AUC"].detail, row["Average precision"].detail) == ("–", "–")
    assert "too few positives" in card.note
    Reader(build(subject("a", {"ood_test": p})))


def test_two_classes_have_a_precision_curve():
    page = build(subject("a", {"ood_test": rare(0.6, 0.97)}))
    assert 'id="precision"' in page


# -- what to do ----------------------------------------------------------------------------------


def test_advice_on_values():
    well = subject("w", two(values))
    assert verdict([well]).advice.action == "keep"
    shifted = verdict([of_values()[0]]).advice
    assert shifted.action == "collect"
    assert "under shift only" in shifted.text
    narrow = {s: values(seed=i, scale=0.4) for i, s in enumerate(("id_val", "id_test", "ood_test"))}
    always = verdict([subject("n", narrow, folder="runs/n")]).advice
    assert always.action == "calibrate"
    assert always.text.startswith("Calibrate it: 'deviation', fitted on id_val, makes it fit")
    assert always.command == "gduq calibrate runs/n --method deviation -o calibrated"
    careful = verdict([subject("c", two(values, wrong=0.5))]).advice
    assert careful.action == "keep"
    assert "too wide, which is on the safe side" in careful.text
    switch = verdict(list(of_values())).advice
    assert switch.action == "switch"
    assert switch.text.startswith("Switch to wide:")


def test_no_advice_to_calibrate_where_that_hurts_under_shift():
    """Too wide at home and right under shift: a calibrator fitted at home would narrow it."""
    wide = {"id_val": values(seed=1, scale=1.7), "id_test": values(seed=2, scale=1.7),
            "ood_test": values(seed=3, wrong=1.7, scale=1.7)}  # fmt: skip
    said = verdict([subject("m", wide, folder="runs/m")])
    assert "neither clearly too narrow nor too wide" in said.headline
    assert said.advice.action == "keep"
    assert "On id_test, its intervals are too wide by" in said.advice.text
    assert "Do not calibrate it on id_val: 'deviation' would make it worse (NLL" in said.advice.text
    assert said.advice.command.startswith("gduq predict runs/m ")


def test_advice_for_a_rare_class_names_the_weights():
    config = {"data": {"name": "rare.csv", "source": "/data/rare.csv"}}
    made = subject("a", {"ood_test": rare(0.4, 0.86)}, config=config, folder="runs/a")
    wanted = "gduq train runs/a --set training.class_weights=balanced"
    assert verdict([made]).advice.command == wanted
    assert f"<code>{wanted}</code>" in build(made)
    elsewhere = replace(made, folder="my runs/a")
    assert "'my runs/a' --root 'my runs' --set" in verdict([elsewhere]).advice.command
    tried = replace(made, config={**config, "training": {"class_weights": "balanced"}})
    assert verdict([tried]).advice.command == ""
    assert "though they had weight" in verdict([tried]).advice.text


def test_advice_names_novelty_where_it_finds_shifted_rows():
    made = two(values, wrong=2.0)
    far = made["ood_test"].novelty * 0.1 + 0.9
    made["ood_test"] = replace(made["ood_test"], novelty=far)
    assert "its novelty finds them (AUROC" in verdict([subject("m", made)]).advice.text


@pytest.mark.parametrize(
    ("sharp", "tone"), [(4.0, "bad"), (0.3, "care"), (1.0, "neutral")]
)  # over, far under, well
def test_promising_too_much_is_worse_than_too_little(sharp, tone):
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(2000, 3, generator=g)
    y = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    said = verdict([subject("m", {"id_test": Prediction(sharp * z, y)})])
    assert said.tone == tone
    wanted = {"bad": "calibrate", "care": "calibrate", "neutral": "keep"}
    assert said.advice.action == wanted[tone]


def test_mild_under_confidence_is_not_red():
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(20000, 3, generator=g)
    y = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    said = verdict([subject("m", {"id_test": Prediction(0.9 * z, y)})])
    assert "under-confident by" in said.headline
    assert said.tone == "neutral"


# -- files, seeds, mistakes ----------------------------------------------------------------------


@pytest.mark.parametrize("which", [of_values, of_labels])
def test_every_format_holds_the_advice_and_the_gap(which, tmp_path):
    text = write(which(), tmp_path / "r.md").read_text()
    said = verdict(which())
    assert f"What to do: {said.advice.text[:20]}" in text
    held = json.loads(write(which(), tmp_path / "r.json").read_text())
    assert held["verdict"]["advice"]["action"] == said.advice.action
    gaps = [r for r in held["table"] if r["measure"] == "gap"]
    assert gaps[0]["value"] == which()[0].value(gaps[0]["split"], "gap").value
    assert write(which(), tmp_path / "r.tex").read_text().count(r"\begin{tabular}") >= 4
    assert len(write(which(), tmp_path / "r.csv").read_text().splitlines()) > 100


def test_an_evaluation_of_values_from_a_file_shows_the_same():
    first = of_values()[0]
    again = replace(first, evaluation=Evaluation.from_json(first.result.to_json()))
    cells = [[c.text for t in scorecards([s]) for row in t.rows for c in row]
             for s in (first, again)]  # fmt: skip
    assert cells[0] == cells[1]
    assert "–" not in cells[0]


def test_seeds_of_values_are_one_model():
    p = two(values, wrong=2.0)
    runs = []
    for seed, scale in enumerate((1.0, 1.2, 1.1)):
        widened = {s: q.with_samples(q.samples + torch.tensor([0.0, 2 * scale - 2]))
                   for s, q in p.items()}  # fmt: skip
        runs.append(subject("m", widened, config={"seed": seed}))
    both = pooled(runs)
    mean = sum(r.value("ood_test", "gap").value for r in runs) / 3
    assert both.value("ood_test", "gap").value == pytest.approx(mean)
    assert "±" in scorecards([both])[-1].rows[0][3].text
    Reader(build(both))


def test_kinds_are_not_compared():
    with pytest.raises(InputError, match="subjects that predict the same kind"):
        build([of_values()[0], of_labels()[0]])
    with pytest.raises(InputError, match="predictions of one kind, got labels, values"):
        Subject("a", {"id_test": values(), "ood_test": labels()})


def test_values_without_truth_have_a_page():
    bare = {s: ValuePrediction(values(seed=i).samples) for i, s in enumerate(("id_test", "new"))}
    page = build(subject("m", bare))
    Reader(page)
    assert "No split has labels." in page
