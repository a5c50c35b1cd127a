"""Figures: what is drawn is what the metrics say, everything fits, no global state is touched."""

from __future__ import annotations

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from gduq import metrics, ood
from gduq.errors import InputError
from gduq.prediction import ClassPrediction, ValuePrediction
from gduq.report import plots
from tests.report.cases import labels, prediction, values

NAMES = [f"method number {i}" for i in range(7)]
SEVEN_VALUES = {name: values(seed=i) for i, name in enumerate(NAMES)}
SEVEN = {name: prediction(200, i, k=2) for i, name in enumerate(NAMES)}
P = SEVEN[NAMES[0]]
FIGURES = {
    "reliability": lambda: plots.reliability_diagram(SEVEN),
    "risk": lambda: plots.risk_coverage(P),
    "scores": lambda: plots.score_histograms(P, prediction(seed=1, noise=2, k=2), "epistemic"),
    "parity": lambda: plots.parity(SEVEN_VALUES[NAMES[0]]),
    "levels": lambda: plots.calibration_curve(SEVEN_VALUES),
    "scores of labels": lambda: plots.score_histograms(labels(), labels(seed=1)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_everything_is_inside_legible_and_apart(name):
    before = dict(matplotlib.rcParams)
    figure = FIGURES[name]()
    assert dict(matplotlib.rcParams) == before
    assert figure.get_size_inches()[0] == pytest.approx(3.4)
    page, canvas = figure.bbox, FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    (legend,) = figure.legends
    for axes in figure.axes:
        for text in (axes.xaxis.label, axes.yaxis.label, axes.title, *legend.get_texts()):
            if not text.get_text():
                continue
            assert text.get_fontsize() >= 7
            (x, y), (right, top) = text.get_window_extent(renderer).get_points()
            assert page.x0 - 1 <= x < right <= page.x1 + 1
            assert page.y0 - 1 <= y < top <= page.y1 + 1
        assert not legend.get_window_extent(renderer).overlaps(axes.get_window_extent(renderer))


def test_reliability_draws_the_curve_and_its_intervals():
    figure = plots.reliability_diagram({"mine": P}, bins=8)
    curve = metrics.reliability(P, bins=8)
    filled = curve.rows > 0
    upper, lower = figure.axes
    line = upper.containers[0].lines[0]
    assert line.get_xdata() == pytest.approx(curve.confidence[filled].numpy())
    assert line.get_ydata() == pytest.approx(curve.accuracy[filled].numpy())
    (bars,) = upper.containers[0].lines[2]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    assert ends[:, 0] == pytest.approx(curve.low[filled].numpy())
    assert ends[:, 1] == pytest.approx(curve.high[filled].numpy())
    assert f"mine (ECE {metrics.ece(P, bins=8):.3f})" in figure.legends[0].get_texts()[0].get_text()
    assert lower.patches[0].get_data().values.sum() == pytest.approx(1.0)


def test_risk_coverage_draws_the_curve_and_thins_long_ones():
    line = plots.risk_coverage(P).axes[0].lines[0]
    assert line.get_ydata() == pytest.approx(metrics.risk_coverage(P).risk.numpy())
    long = plots.risk_coverage(prediction(5000)).axes[0].lines[0]
    assert len(long.get_xdata()) <= 1000
    assert long.get_xdata()[-1] == 1.0
    v = values(60)  # of values it is an RMSE
    line = plots.risk_coverage(v).axes[0].lines[0]
    assert line.get_ydata()[-1] == pytest.approx(metrics.rmse(v))


def test_histograms_hold_all_rows_and_name_the_auroc():
    q = prediction(seed=1, noise=3)
    figure = plots.score_histograms(P, q, "energy")
    for patch in (patch for patch in figure.axes[0].patches if not patch.get_fill()):
        assert patch.get_data().values.sum() == pytest.approx(1.0)
    text = figure.legends[0].get_texts()[1].get_text()
    assert text == f"OOD (AUROC {ood.auroc(P, q, 'energy'):.3f})"
    sure = ClassPrediction(P.samples * 20, target=P.target)  # nearly all rows in the first bar
    piled = plots.score_histograms(sure, q).axes[0]
    assert piled.get_yscale() == "log"
    assert piled.get_ylim()[0] < 1 / 200  # one row can be seen
    constant = ClassPrediction(torch.zeros(5, 2))
    assert plots.score_histograms(constant, constant) is not None


def test_parity_tells_rows_that_are_missed():
    p = replace(values(300, wrong=2.0), units=("log mol/L",))
    axes = plots.parity(p, level=0.8).axes[0]
    low, high = p.interval(0.8)
    truth = p.target.flatten()
    held = ((low <= truth) & (truth <= high)).numpy()
    inside, outside = axes.containers
    assert inside.lines[0].get_xdata() == pytest.approx(truth[held].numpy())
    assert outside.lines[0].get_ydata() == pytest.approx(p.mean[~held].numpy())
    assert outside.lines[0].get_markerfacecolor() == "white"
    ends = np.array([segment[:, 1] for segment in inside.lines[2][0].get_segments()])
    assert ends[:, 0] == pytest.approx(low[held].numpy(), abs=1e-6)
    assert ends[:, 1] == pytest.approx(high[held].numpy(), abs=1e-6)
    assert inside.get_label() == f"80 % intervals: {100 * held.mean():.0f} % hold the truth"
    assert axes.get_xlabel() == "true logS / log mol/L"
    many = plots.parity(values(5000)).axes[0].containers
    assert sum(len(c.lines[0].get_xdata()) for c in many) <= 300


@pytest.mark.parametrize(
    "call",
    [
        lambda: plots.reliability_diagram({}),
        lambda: plots.risk_coverage({str(i): P for i in range(8)}),
        lambda: plots.reliability_diagram(ClassPrediction(P.samples)),
        lambda: plots.risk_coverage(P[:0]),
        lambda: plots.score_histograms(P, P, "nope"),
        lambda: plots.parity(ValuePrediction(torch.zeros(3, 4), torch.zeros(3, 2))),
    ],
)
def test_bad_input(call):
    with pytest.raises(InputError):
        call()
