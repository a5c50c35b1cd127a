"""The gap between promise and truth, and numbers that too few rows have no interval for."""

from __future__ import annotations

import math

import pytest
import torch

from gduq import metrics
from gduq.evaluation import evaluate
from gduq.graphs.view import View
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from tests.report.cases import graph

FAST = {"resamples": 100}


def rare(positives: int, total: int = 86, seed: int = 0) -> ClassPrediction:
    """Two classes, the second told well."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.arange(total) < positives).long()
    logits = torch.stack(
        [torch.zeros(total), 1.5 * y - 1 + torch.randn(total, generator=generator)]
    )
    return ClassPrediction(logits.T, y)


def test_the_gap_of_labels_is_a_mean_over_labels():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(90, 2, generator=generator)
    y = (torch.rand(90, 2, generator=generator) < z.sigmoid()).float()
    y[:9, 0] = math.nan
    p = LabelPrediction(2 * z, y, ("a", "b"))
    found = evaluate({"id_test": p}, **FAST)
    each = [found.value("id_test", "gap", variant=name).value for name in "ab"]
    assert each[0] == pytest.approx(metrics.gap(p.column(0)))
    assert found.value("id_test", "gap").value == pytest.approx(sum(each) / 2)


def test_the_gap_of_values_ends_where_coverage_does():
    """All of 50 rows lie in their intervals: more such rows may miss, and the gap says so too."""
    p = ValuePrediction(torch.zeros(50, 2), target=torch.zeros(50))
    found = evaluate({"id_test": p}, **FAST)
    held, off = found.value("id_test", "coverage_90"), found.value("id_test", "gap")
    assert held.value == 1.0
    assert held.low < 0.95
    assert off == pytest.approx((0.9 - held.value, 0.9 - held.high, 0.9 - held.low))


def test_rows_that_are_all_right_have_an_interval_of_the_gap():
    p = ClassPrediction(4 * torch.eye(2).repeat(20, 1), torch.tensor([0, 1] * 20))
    found = evaluate({"id_test": p}, **FAST)
    right, off = found.value("id_test", "accuracy"), found.value("id_test", "gap")
    assert off.high - off.low == pytest.approx(right.high - right.low)


def test_one_number_of_bins():
    graphs = View([graph(i, nodes=3 + i % 2) for i in range(120)])
    logits = 3 * torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    p = ClassPrediction(logits, graphs.target)
    found = evaluate({"id_test": p}, {"id_test": graphs}, subgroups=True, bins=15, **FAST).table
    group = found[(found.variant == "size: 3") & (found.measure == "ece")].iloc[0]
    sizes = torch.tensor([g.num_nodes for g in graphs.graphs])
    assert group.value == pytest.approx(metrics.ece(p[sizes == 3], bins=15, strict=False))
