"""The shared battery for all calibrators for classes, and what they refuse."""

from __future__ import annotations

import pytest

from gduq import calibration
from gduq.calibration import METHODS
from gduq.errors import InputError
from tests.calibration.battery import CalibratorBattery

MAKERS = {
    name: lambda case, cls=cls: cls() for name, cls in calibration.methods_for("classes").items()
}
MAKERS |= {
    "histogram": lambda case: calibration.HistogramBinning(bins=5),
    "histogram_mass": lambda case: calibration.HistogramBinning(bins=5, scheme="mass"),
    "density": lambda case: calibration.DensityAwareCalibration(train=case.p[case.train]),
    "cagcn": lambda case: calibration.CaGCN(case.graph),
    "gats": lambda case: calibration.GATS(case.graph, train_rows=case.train),
}


class TestClasses(CalibratorBattery):
    makers = MAKERS


@pytest.mark.parametrize(
    ("name", "option", "match"),
    [
        *[(name, {"missing": "drop"}, "missing") for name in ("vector", "matrix", "histogram")],
        *[("dirichlet", {"penalty": value}, "penalty") for value in (-1.0, float("nan"))],
        ("anchor_aware", {"penalty": -1.0}, "penalty"),
        ("histogram", {"bins": 1}, "bins >= 2"),
        ("histogram", {"scheme": "both"}, "scheme"),
        ("spline", {"knots": 2}, "knots >= 3"),
        ("density", {"neighbors": 0}, "neighbors"),
        ("density", {"limit": 5}, "limit"),
        ("order_invariant", {"prior": 0.0}, "prior"),
        ("order_invariant", {"steps": 0}, "steps"),
        *[(name, {"hidden": 0}, "hidden") for name in ("order_invariant", "cagcn")],
        ("cagcn", {"prior": 0.0}, "prior > 0 and steps >= 1"),
        ("cagcn", {"steps": 0}, "prior > 0 and steps >= 1"),
        ("gats", {"heads": 0}, "heads"),
        ("isotonic_levels", {"prior": 0.0}, "prior > 0"),
    ],
)
def test_bad_arguments(name, option, match):
    with pytest.raises(InputError, match=match):
        METHODS[name](**option)
