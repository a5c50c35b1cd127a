"""The tables of a report hold what the metrics and the evaluation say."""

from __future__ import annotations

import pytest

from gduq import metrics
from gduq.report.results import label_table, result_of, scorecards
from gduq.report.subject import split_names
from tests.report.cases import judged, labels, of_labels, of_values, on_three, rare, three
from tests.report.cases import values as draw_values


def test_scorecards_show_what_the_evaluation_found():
    for split, table in zip(split_names(three()), scorecards(three()), strict=True):
        rows = {row[0].text: row for row in table.rows}
        assert len(rows) == 6  # three subjects, each also with temperature
        for subject in three():
            columns = result_of(subject, split).columns
            for calibrator, ending in (("none", ""), ("temperature", " + temperature")):
                row = rows[subject.name + ending]
                for cell, column in zip(row[1:], columns, strict=True):
                    found = subject.result.value(split, column.measure, calibrator)
                    shown = [f"{v:.3f}" if column.style == "number" else f"{100 * v:.1f}"
                             for v in found]  # fmt: skip
                    text, detail = (t.replace("−", "-").replace("+", "")
                                    for t in (cell.text, cell.detail))  # fmt: skip
                    assert cell.value == found.value
                    assert text == shown[0]
                    assert detail in (" to ".join(shown[1:]), "–")


def test_several_values_have_a_card_each():
    first = judged("m", on_three(draw_values, {"width": 2}, wrong=2.0), "deviation")
    p = first.predictions["ood_test"]
    tables = [t for t in scorecards([first]) if t.title.startswith("ood_test")]
    assert [t.title for t in tables] == ["ood_test: v0 (200 rows)", "ood_test: v1 (200 rows)"]
    for t, table in enumerate(tables):
        assert table.rows[0][1].value == pytest.approx(metrics.rmse(p.column(t)))
        held = [first.value("ood_test", "coverage_90", calibrator, f"v{t}").value
                for calibrator in ("none", "deviation")]  # fmt: skip
        assert held[0] == pytest.approx(metrics.coverage(p.column(t), 0.9))
        gaps = [row[table.columns.index("Gap,\u00a0points")].value for row in table.rows]
        assert gaps == pytest.approx([0.9 - h for h in held])


def test_the_table_of_labels():
    table = label_table(of_labels())
    parts = of_labels()[0].predictions["ood_test"].parts()
    ranked = [row[3].value for row in table.rows]
    assert ranked == sorted(ranked)  # of the first subject, the worst first
    for row in table.rows:
        p = parts[row[0].text]
        assert row[1].value == len(p)
        assert row[2].value == pytest.approx(float(p.target.double().mean()))
        assert row[3].value == pytest.approx(metrics.roc_auc(p))
        assert row[4].value == pytest.approx(metrics.average_precision(p))
    assert label_table([judged("one", labels(width=1))]) is None
    assert label_table(of_values()) is None
    card = scorecards(of_labels())[-1]
    p = of_labels()[0].predictions["ood_test"]
    row = dict(zip(card.columns, card.rows[0], strict=True))
    assert row["ROC-AUC"].value == pytest.approx(metrics.roc_auc(p))


def test_two_classes_are_ranked():
    p = rare(0.6, 0.97)
    (card,) = scorecards([judged("a", p)])
    row = dict(zip(card.columns, card.rows[0], strict=True))
    assert row["ROC-AUC"].value == pytest.approx(metrics.roc_auc(p))
    assert row["Average precision"].value == pytest.approx(metrics.average_precision(p))
    assert "always answering “no”, right 90.0 %" in card.note
    (few,) = scorecards([judged("a", rare(0.5, 0.97, m=40))])
    assert [cell.detail for cell in few.rows[0]].count("–") >= 2  # no interval


def test_an_accuracy_gained_by_leaving_a_class_out_has_no_mark():
    card = scorecards([judged("a", rare(0.4, 0.86)), judged("b", rare(0.1, 0.95))])[0]
    assert [cell.mark for cell in card.rows[1][1:3]] == ["", "worse"]
