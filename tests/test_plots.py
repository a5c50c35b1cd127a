"""Figures: what is drawn is what the metrics say, everything fits, no global state is touched."""

from __future__ import annotations

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from gduq import metrics, ood, plots
from gduq.errors import InputError
from gduq.prediction import Prediction


def draw(m: int = 200, seed: int = 0, noise: float = 1.0) -> Prediction:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (m,), generator=generator)
    h = torch.nn.functional.one_hot(y, 3) * 2 + noise * torch.randn(m, 3, generator=generator)
    return Prediction(torch.stack([h, h * 1.5]), target=y, features=h)


SEVEN = {f"method number {i}": draw(seed=i) for i in range(7)}
FIGURES = {
    "reliability": lambda: plots.reliability_diagram(draw()),
    "reliability, named": lambda: plots.reliability_diagram(SEVEN, title="A title"),
    "reliability, mass": lambda: plots.reliability_diagram({"a": draw()}, binning="mass"),
    "risk": lambda: plots.risk_coverage(draw()),
    "risk, named": lambda: plots.risk_coverage(SEVEN, title="A title"),
    "scores": lambda: plots.score_histograms(draw(), draw(seed=1, noise=3)),
    "scores, named": lambda: plots.score_histograms(
        draw(), {"val": draw(seed=1, noise=2), "test": draw(seed=2, noise=3)}, "epistemic"
    ),
    "scores, fitted": lambda: plots.score_histograms(draw(), draw(seed=1), "knn", train=draw()),
    "severity": lambda: plots.shift_severity(
        {"a": {0: draw(), 10: draw(seed=1)}, "b": {0: draw(seed=2), 10: draw(seed=3)}},
        resamples=20,
    ),
    "severity, named": lambda: plots.shift_severity(
        {"a": {"none": draw(), "a very strong shift": draw(seed=1)}}, resamples=20
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_everything_is_inside_legible_and_apart(name, tmp_path):
    before = dict(matplotlib.rcParams)
    figure = FIGURES[name]()
    assert dict(matplotlib.rcParams) == before
    figure.savefig(tmp_path / "figure.png")
    figure.savefig(tmp_path / "figure.pdf")
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
            box = text.get_window_extent(renderer)
            assert page.x0 - 1 <= box.x0
            assert box.x1 <= page.x1 + 1
            assert page.y0 - 1 <= box.y0
            assert box.y1 <= page.y1 + 1
        assert not legend.get_window_extent(renderer).overlaps(axes.get_window_extent(renderer))


def test_importing_is_light_and_no_display_or_pyplot_is_needed(tmp_path):
    code = (
        "import sys, torch; from gduq import plots; from gduq.prediction import Prediction\n"
        "assert 'matplotlib' not in sys.modules\n"
        "p = Prediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))\n"
        "plots.risk_coverage(p).savefig(sys.argv[1])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "figure.png")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


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
    best = plots.risk_coverage(p).axes[0].lines[1].get_ydata()
    assert best.mean() == pytest.approx(metrics.aurc(p) - metrics.excess_aurc(p))
    long = plots.risk_coverage(draw(5000)).axes[0].lines[0]
    assert len(long.get_xdata()) <= 1000
    assert long.get_xdata()[-1] == 1.0


def test_risk_coverage_has_the_band():
    p = draw(300)
    axes = plots.risk_coverage({"a": p}, resamples=50, seed=3).axes[0]
    band = metrics.risk_band(p, resamples=50, seed=3)
    (drawn,) = axes.collections
    points = drawn.get_paths()[0].vertices
    told = band.coverage >= 10 / 300
    assert points[:, 0].min() == pytest.approx(float(band.coverage[told][0]))
    for x, low, high in zip(*(v[told] for v in (band.coverage, band.low, band.high)), strict=True):
        here = points[np.isclose(points[:, 0], x), 1]
        assert here.min() == pytest.approx(float(low))
        assert here.max() == pytest.approx(float(high))
    assert axes.get_ylim()[1] < 1.0  # the wide left end of the band is cut off
    assert axes.get_ylim()[1] > band.high[-1]
    assert not plots.risk_coverage(p, resamples=0).axes[0].collections


def test_histograms_hold_all_rows_and_name_the_auroc():
    p, q = draw(), draw(seed=1, noise=3)
    figure = plots.score_histograms(p, q, "energy")
    stairs = [patch for patch in figure.axes[0].patches if not patch.get_fill()]
    for patch in stairs:
        assert patch.get_data().values.sum() == pytest.approx(1.0)
    text = figure.legends[0].get_texts()[1].get_text()
    assert text == f"OOD (AUROC {ood.auroc(p, q, 'energy'):.3f})"
    assert figure.axes[0].get_yscale() == "linear"
    sure = Prediction(p.samples * 20, target=p.target)  # nearly all rows in the first bar
    piled = plots.score_histograms(sure, q).axes[0]
    assert piled.get_yscale() == "log"
    assert piled.get_ylim()[0] < 1 / 200  # one row can be seen
    constant = Prediction(torch.zeros(5, 2))
    assert plots.score_histograms(constant, constant) is not None


def test_severity_draws_values_on_a_scale():
    sets = {r: draw(seed=r) for r in (30, 0, 10)}
    for named in (sets, {f"rotation={r}": p for r, p in sets.items()}):
        axes = plots.shift_severity({"a": named}, metrics.brier, resamples=10).axes[0]
        line = axes.lines[0]
        assert list(line.get_xdata()) == [0, 10, 30]
        assert line.get_ydata() == pytest.approx([metrics.brier(sets[r]) for r in (0, 10, 30)])
        assert axes.get_ylabel() == "Brier score"
    assert axes.get_xlabel() == "rotation"
    mixed = {"rotation=1": sets[0], "noise=2": sets[10]}
    axes = plots.shift_severity({"a": mixed}, resamples=10, bins=5).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == list(mixed)


def test_lines_differ_by_more_than_colour():
    lines = plots.risk_coverage(SEVEN).axes[0].lines
    assert len({line.get_color() for line in lines}) == 7
    assert len({str(line._dash_pattern) for line in lines}) == 7


def test_bad_input():
    p = draw(30)
    for call, message in [
        (lambda: plots.reliability_diagram({}), "one to 7 predictions"),
        (lambda: plots.risk_coverage({str(i): p for i in range(8)}), "one to 7 predictions"),
        (lambda: plots.score_histograms(p, {str(i): p for i in range(7)}), "one to 6"),
        (lambda: plots.shift_severity({}), "one to 7 models"),
        (lambda: plots.reliability_diagram(Prediction(p.samples)), "with targets"),
        (lambda: plots.risk_coverage(p[:0]), "at least one row"),
        (lambda: plots.score_histograms(p, p, "nope"), "a score from"),
    ]:
        with pytest.raises(InputError, match=message):
            call()


def test_reliability_of_rows_that_are_all_right() -> None:
    """Rounding puts an interval's end a little beside the accuracy it surrounds."""
    for seed in range(4):
        x = torch.randn(1, 300, 3, generator=torch.Generator().manual_seed(seed)) * 4
        figure = plots.reliability_diagram(Prediction(x, target=x[0].argmax(1)))
        assert figure.axes
