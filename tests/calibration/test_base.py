"""What all calibrators share, apart from the battery: rows, names, labels, the docs page."""

from __future__ import annotations

import pytest
import torch

from gduq import bundle, calibration
from gduq.calibration.affine import nll_and_slope
from gduq.calibration.base import _same_label
from gduq.calibration.lesson import Lesson
from gduq.calibration.optimise import autograd
from gduq.errors import InputError
from gduq.evaluation import evaluate
from gduq.nn import GNN
from gduq.prediction import Prediction
from gduq.prediction.checks import row_index
from tests.calibration import kinds
from tests.calibration.battery import WEIGHTS, nll, overconfident


def test_only_rounding_is_mended():
    """A tie goes back to the old label; a real change is left for the tests to find."""
    p = Prediction(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
    q = Prediction(torch.tensor([[1.5, 1.5], [1.5, 1.4]]))
    mended = _same_label(p, q)
    assert mended.label.tolist() == [1, 0]
    torch.testing.assert_close(mended.samples, q.samples)


def test_mending_works_with_many_samples():
    p = Prediction(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[100.0, 101.0]]]))
    q = Prediction(torch.tensor([[[1.0, 1.0]], [[3.0, 3.0]], [[100.0, 100.0]]]))
    assert _same_label(p, q).label.tolist() == [1]


def test_rows_in_any_form():
    assert row_index(None, 3) == slice(None)
    assert row_index(slice(1, 2), 3) == slice(1, 2)
    assert row_index(torch.tensor([True, False, True]), 3).dtype == torch.bool
    assert row_index([-1], 3).tolist() == [-1]
    assert row_index([], 3).tolist() == []
    with pytest.raises(InputError, match="mask, a slice or integers"):
        row_index(torch.tensor([0.5]), 3)
    with pytest.raises(InputError, match="row numbers from 0 to 2"):
        row_index([-4], 3)


def test_a_class_name_means_its_calibrator():
    for name, cls in calibration.METHODS.items():
        for given in (name, cls.__name__, cls.__name__.lower(), name.upper()):
            assert calibration.method_name(given) == name
    p = kinds.too_narrow()
    found = evaluate({"id_val": p, "id_test": p}, calibrators=["DeviationScaling"], resamples=10)
    assert list(found.calibrators) == ["deviation"]


def test_names():
    assert len(set(calibration.METHODS.values())) == len(calibration.METHODS) == 17
    for name in calibration.__all__:
        assert hasattr(calibration, name)
    assert list(calibration.methods_for("values")) == ["deviation", "isotonic_levels"]
    assert list(calibration.methods_for("labels")) == ["per_label", "per_label_isotonic"]
    methods = calibration.methods_for("classes")
    assert len(methods) == 13
    moving = {n for n, c in methods.items() if not (c.keeps_accuracy or c.keeps_order)}
    assert moving == {"vector", "matrix", "dirichlet", "histogram"}
    steps = {n for n, c in methods.items() if not c.takes_copies}
    assert steps == {"isotonic", "histogram", "spline", "cagcn", "gats"}
    with pytest.raises(InputError, match="a kind from classes, values, labels, got 'edges'"):
        calibration.methods_for("edges")


def test_an_unknown_name_lists_the_choices():
    with pytest.raises(InputError, match=r"TemperatureScaling, .*'Platt'"):
        calibration.restore("Platt", {}, {})


@pytest.mark.parametrize(
    "name", ["deviation", "isotonic_levels", "per_label", "per_label_isotonic"]
)
def test_bundles_keep_calibrators_of_every_kind(name, tmp_path):
    p = kinds.DRAWN[calibration.METHODS[name].kind](2)
    cal = calibration.METHODS[name]().fit(p)
    bundle.save(GNN(3, 4, 2, num_layers=2), tmp_path / "model", calibrator=cal)
    again = bundle.load(tmp_path / "model")[1]
    assert torch.equal(again(p).samples, cal(p).samples)
    assert torch.equal(again(p).epistemic, cal(p).epistemic)


def test_an_empty_prediction_comes_back_empty():
    p = Prediction(torch.randn(20, 3, generator=torch.Generator()), torch.arange(20) % 3)
    for name in (
        "temperature",
        "ensemble_temperature",
        "matrix",
        "isotonic",
        "histogram",
        "spline",
    ):
        q = calibration.METHODS[name]().fit(p)(p[:0])
        assert q.samples.shape == (1, 0, 3)


def test_half_of_the_weight_is_the_copies():
    p = overconfident(rows=6)
    assert Lesson(p).share.tolist() == [1 / 6] * 6
    lesson = Lesson(p, copies=[p[:1], p[:3]])
    assert lesson.share.tolist() == [1 / 12] * 6 + [1 / 8] * 4
    assert lesson.rows == 6
    assert torch.equal(lesson.target, torch.cat([p.target, p.target[:1], p.target[:3]]))


def test_nll_is_that_of_the_mixture_and_its_slope_autograds():
    p = overconfident(rows=30)
    p = Prediction(p.samples, p.target, weights=WEIGHTS)
    lesson = Lesson(p)
    value, slope = nll_and_slope(p.samples.clone(), lesson)
    assert abs(value - nll(p)) < 1e-12

    def loss(flat):
        each = flat.view_as(p.samples).softmax(-1)
        mixed = torch.einsum("k,knc->nc", WEIGHTS, each).log()
        return torch.nn.functional.nll_loss(mixed, p.target)

    expected = autograd(loss)(p.samples.flatten())[1]
    torch.testing.assert_close(slope.flatten(), expected, rtol=1e-9, atol=1e-12)
