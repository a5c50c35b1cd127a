"""The shared battery for all calibrators for classes, names, and what is refused."""

from __future__ import annotations

import pytest
import torch

from gduq import bundle, calibration
from gduq.calibration import METHODS, CalibrationSet, Fixed, make, methods_for, parse_name
from gduq.calibration.base import _same_label
from gduq.errors import InputError
from gduq.nn import GNN
from gduq.prediction import ClassPrediction
from tests.calibration import kinds
from tests.calibration.battery import CalibratorBattery, overconfident

MAKERS = {
    name: lambda case, name=name: make(name, case.p, case.graph, case.train)
    for name in methods_for("classes")
}


class TestClasses(CalibratorBattery):
    makers = MAKERS


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("vector", {"missing": "drop"}),
        *[("dirichlet", {"penalty": value}) for value in (-1.0, float("nan"))],
        ("spline", {"knots": 2}),
        *[(name, {"prior": 0.0}) for name in ("order_invariant", "cagcn")],
        ("cagcn", {"hidden": 0}),
        ("gats", {"heads": 0}),
    ],
)
def test_bad_arguments(name, option):
    with pytest.raises(InputError, match=next(iter(option))):
        METHODS[name](**option)


def test_only_rounding_is_mended():
    """A tie goes back to the old label; a real change is left for the tests to find."""
    p = ClassPrediction(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
    q = ClassPrediction(torch.tensor([[1.5, 1.5], [1.5, 1.4]]))
    mended = _same_label(p, q)
    assert mended.label.tolist() == [1, 0]
    torch.testing.assert_close(mended.samples, q.samples)


def test_half_of_the_weight_is_the_copies():
    p = overconfident(rows=6)
    assert CalibrationSet(p).share.tolist() == [1 / 6] * 6
    data = CalibrationSet(p, copies=[p[:1], p[:3]])
    assert data.share.tolist() == [1 / 12] * 6 + [1 / 8] * 4
    assert data.rows == 6
    assert torch.equal(data.target, torch.cat([p.target, p.target[:1], p.target[:3]]))


def test_names():
    for name, cls in METHODS.items():
        for given in (name, cls.__name__, cls.__name__.lower(), name.upper()):
            assert parse_name(given) == (name, False)
        if not cls.needs_graph:
            assert parse_name(f"{name}+corrupted") == (name, True)
    for wrong in ("platt", "cagcn+corrupted", "t2+corrupted", "vector+more"):
        with pytest.raises(InputError, match=wrong.split("+")[0]):
            parse_name(wrong)
    with pytest.raises(InputError):
        methods_for("edges")
    with pytest.raises(InputError):
        calibration.restore("Platt", {}, {})


def test_maps_for_which_nothing_is_learnt():
    p = overconfident(rows=20)
    expected = {
        "t2": p.with_samples(p.samples / 2),
        "mean_logits": p.mean_logits(),
        "rescaled_paper": p.rescaled("paper"),
        "rescaled_released": p.rescaled("released"),
    }
    for name in calibration.FIXED:
        fixed = make(name, p)
        assert isinstance(fixed, Fixed)
        assert fixed.fitted
        torch.testing.assert_close(fixed(p).probs, expected[name].probs)
        assert len(fixed(p).samples) == len(p.samples)


@pytest.mark.parametrize("name", ["deviation", "per_label"])
def test_bundles_keep_calibrators_of_every_kind(name, tmp_path):
    p = kinds.DRAWN[METHODS[name].kind](2)
    cal = METHODS[name]().fit(p)
    bundle.save(GNN(3, 4, 2, num_layers=2), tmp_path / "model", calibrator=cal)
    again = bundle.load(tmp_path / "model")[1]
    assert torch.equal(again(p).samples, cal(p).samples)
    assert torch.equal(again(p).epistemic, cal(p).epistemic)


def test_an_empty_prediction_comes_back_empty():
    p = ClassPrediction(torch.randn(20, 3, generator=torch.Generator()), torch.arange(20) % 3)
    for name in ("temperature", "ensemble_temperature", "dirichlet", "isotonic", "spline"):
        assert METHODS[name]().fit(p)(p[:0]).samples.shape == (1, 0, 3)
