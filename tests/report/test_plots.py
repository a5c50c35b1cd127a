"""Figures: what is drawn is what the metrics say, everything fits, no global state is touched."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from gduq import metrics, ood
from gduq.errors import InputError
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from gduq.report import plots


def draw(m: int = 200, seed: int = 0, noise: float = 1.0) -> ClassPrediction:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (m,), generator=generator)
    h = torch.nn.functional.one_hot(y, 3) * 2 + noise * torch.randn(m, 3, generator=generator)
    return ClassPrediction(torch.stack([h, h * 1.5]), target=y, features=h)


def draw_values(m: int = 200, seed: int = 0, wrong: float = 1.0) -> ValuePrediction:
    generator = torch.Generator().manual_seed(seed)
    y, std = torch.randn(m, generator=generator), 0.2 + torch.rand(m, generator=generator)
    means = y + wrong * std * torch.randn(m, generator=generator)
    samples = torch.stack([means, 2 * std.log()], dim=1).double()
    return ValuePrediction(samples, y, ("logS",), ("log mol/L",))


def draw_labels(m: int = 200, seed: int = 0) -> LabelPrediction:
    generator = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(m, 2, generator=generator) - 1
    y = (torch.rand(m, 2, generator=generator) < z.sigmoid()).float()
    return LabelPrediction(z, y, ("toxic", "soluble"))


NAMES = [f"method number {i}" for i in range(7)]
SEVEN_VALUES = {name: draw_values(seed=i) for i, name in enumerate(NAMES)}
SEVEN = {name: draw(seed=i) for i, name in enumerate(NAMES)}
FIGURES = {
    "reliability": lambda: plots.reliability_diagram(SEVEN),
    "risk": lambda: plots.risk_coverage(draw()),
    "scores": lambda: plots.score_histograms(
        draw(), {"val": draw(seed=1, noise=2), "test": draw(seed=2, noise=3)}, "epistemic"
    ),
    "parity": lambda: plots.parity(draw_values()),
    "levels": lambda: plots.calibration_curve(SEVEN_VALUES),
    "scores of labels": lambda: plots.score_histograms(draw_labels(), draw_labels(seed=1)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_everything_is_inside_legible_and_apart(name):
    before = dict(matplotlib.rcParams)
    figure = FIGURES[name]()
    assert dict(matplotlib.rcParams) == before
    assert figure.get_size_inches()[0] == pytest.approx(3.4)
    page = figure.bbox
    canvas = FigureCanvasAgg(figure)
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
    p = draw()
    figure = plots.reliability_diagram({"mine": p}, bins=8)
    curve = metrics.reliability(p, bins=8)
    filled = curve.rows > 0
    upper, lower = figure.axes
    line = upper.containers[0].lines[0]
    assert line.get_xdata() == pytest.approx(curve.confidence[filled].numpy())
    assert line.get_ydata() == pytest.approx(curve.accuracy[filled].numpy())
    (bars,) = upper.containers[0].lines[2]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    assert ends[:, 0] == pytest.approx(curve.low[filled].numpy())
    assert ends[:, 1] == pytest.approx(curve.high[filled].numpy())
    assert f"mine (ECE {metrics.ece(p, bins=8):.3f})" in figure.legends[0].get_texts()[0].get_text()
    assert lower.patches[0].get_data().values.sum() == pytest.approx(1.0)


def test_risk_coverage_draws_the_curve_and_thins_long_ones():
    p = draw(50)
    line = plots.risk_coverage(p).axes[0].lines[0]
    assert line.get_ydata() == pytest.approx(metrics.risk_coverage(p).risk.numpy())
    long = plots.risk_coverage(draw(5000)).axes[0].lines[0]
    assert len(long.get_xdata()) <= 1000
    assert long.get_xdata()[-1] == 1.0


def test_histograms_hold_all_rows_and_name_the_auroc():
    p, q = draw(), draw(seed=1, noise=3)
    figure = plots.score_histograms(p, q, "energy")
    stairs = [patch for patch in figure.axes[0].patches if not patch.get_fill()]
    for patch in stairs:
        assert patch.get_data().values.sum() == pytest.approx(1.0)
    text = figure.legends[0].get_texts()[1].get_text()
    assert text == f"OOD (AUROC {ood.auroc(p, q, 'energy'):.3f})"
    assert figure.axes[0].get_yscale() == "linear"
    sure = ClassPrediction(p.samples * 20, target=p.target)  # nearly all rows in the first bar
    piled = plots.score_histograms(sure, q).axes[0]
    assert piled.get_yscale() == "log"
    assert piled.get_ylim()[0] < 1 / 200  # one row can be seen
    constant = ClassPrediction(torch.zeros(5, 2))
    assert plots.score_histograms(constant, constant) is not None


def test_lines_differ_by_more_than_colour():
    lines = plots.risk_coverage(SEVEN).axes[0].lines
    assert len({line.get_color() for line in lines}) == 7
    assert len({str(line._dash_pattern) for line in lines}) == 7


# -- values ---------------------------------------------------------------------


def test_parity_tells_rows_that_are_missed():
    p = draw_values(300, wrong=2.0)
    axes = plots.parity(p, level=0.8).axes[0]
    low, high = p.interval(0.8)
    held = ((low <= p.target) & (p.target <= high)).numpy()
    inside, outside = axes.containers
    assert inside.lines[0].get_xdata() == pytest.approx(p.target[held].numpy())
    assert outside.lines[0].get_ydata() == pytest.approx(p.mean[~held].numpy())
    assert outside.lines[0].get_markerfacecolor() == "white"
    ends = np.array([segment[:, 1] for segment in inside.lines[2][0].get_segments()])
    assert ends[:, 0] == pytest.approx(low[held].numpy())
    assert ends[:, 1] == pytest.approx(high[held].numpy())
    assert inside.get_label() == f"80 % intervals: {100 * held.mean():.0f} % hold the truth"
    assert axes.get_xlabel() == "true logS / log mol/L"
    many = plots.parity(draw_values(5000)).axes[0].containers
    assert sum(len(c.lines[0].get_xdata()) for c in many) <= 300


def test_levels_draw_the_curve_and_its_band():
    p = draw_values(wrong=2.0)
    figure = plots.calibration_curve({"mine": p})
    curve = metrics.calibration_curve(p)
    line = figure.axes[0].lines[1]
    assert line.get_xdata() == pytest.approx(curve.level.numpy())
    assert line.get_ydata() == pytest.approx(curve.share.numpy())
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(float(curve.high.max()))
    text = figure.legends[0].get_texts()[0].get_text()
    assert text == f"mine (area {metrics.miscalibration_area(p):.3f})"


def test_risk_of_values_is_an_rmse():
    p = draw_values(60)
    axes = plots.risk_coverage(p).axes[0]
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(metrics.rmse(p))
    best = axes.lines[1].get_ydata()
    errors = (p.mean - p.target).double().square().sort().values
    assert np.square(best[-1]) == pytest.approx(float(errors.mean()))
    assert (best <= axes.lines[0].get_ydata() + 1e-12).all()


P = draw(30)


@pytest.mark.parametrize(
    "call",
    [
        lambda: plots.reliability_diagram({}),
        lambda: plots.risk_coverage({str(i): P for i in range(8)}),
        lambda: plots.score_histograms(P, {str(i): P for i in range(7)}),
        lambda: plots.reliability_diagram(ClassPrediction(P.samples)),
        lambda: plots.reliability_diagram(draw_labels()),
        lambda: plots.risk_coverage(P[:0]),
        lambda: plots.score_histograms(P, P, "nope"),
        lambda: plots.parity(ValuePrediction(torch.zeros(3, 4), torch.zeros(3, 2))),
    ],
)
def test_bad_input(call):
    with pytest.raises(InputError):
        call()
