"""The shared battery for all calibrators for classes, names, and what is refused."""

from __future__ import annotations

import pytest
import torch

from gduq import bundle, calibration
from gduq.calibration import METHODS, CalibrationSet, make, methods_for, parse_name
from gduq.calibration.base import _same_label
from gduq.errors import InputError
from gduq.nn import GNN
from gduq.prediction import ClassPrediction
from tests.calibration import kinds
from tests.calibration.battery import CalibratorBattery, overconfident

MAKERS = {
    name: lambda case, name=name: make(name, case.graph, case.train)
    for name in methods_for("classes")
}


class TestClasses(CalibratorBattery):
    makers = MAKERS


@pytest.mark.parametrize("penalty", [-1.0, float("nan")])
def test_bad_arguments(penalty):
    with pytest.raises(InputError):
        METHODS["dirichlet"](penalty)


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
    for wrong in ("platt", "cagcn+corrupted", "vector+more"):
        with pytest.raises(InputError):
            parse_name(wrong)
    with pytest.raises(InputError):
        calibration.restore("Platt", {}, {})


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
