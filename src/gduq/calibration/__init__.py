"""Post-hoc calibration: ``cal = TemperatureScaling().fit(p_val); q = cal(p_test)``.

`METHODS` maps short names to all calibrators, for loops and the command line; `methods_for` to
those for one kind of prediction: classes, values or labels.
"""

from gduq.calibration.affine import DirichletCalibration, MatrixScaling, VectorScaling
from gduq.calibration.anchor_aware import AnchorAwareTemperature
from gduq.calibration.base import Calibrator
from gduq.calibration.binning import HistogramBinning
from gduq.calibration.density import DensityAwareCalibration
from gduq.calibration.gats import GATS
from gduq.calibration.graph import CaGCN
from gduq.calibration.isotonic import IsotonicCalibration
from gduq.calibration.labels import PerLabel, PerLabelIsotonic
from gduq.calibration.methods import METHODS, method_name, methods_for, restore
from gduq.calibration.order_invariant import OrderInvariantCalibration
from gduq.calibration.scaling import EnsembleTemperatureScaling, TemperatureScaling
from gduq.calibration.spline import SplineCalibration
from gduq.calibration.values import DeviationScaling, IsotonicRecalibration

__all__ = [
    "GATS",
    "METHODS",
    "AnchorAwareTemperature",
    "CaGCN",
    "Calibrator",
    "DensityAwareCalibration",
    "DeviationScaling",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "IsotonicRecalibration",
    "MatrixScaling",
    "OrderInvariantCalibration",
    "PerLabel",
    "PerLabelIsotonic",
    "SplineCalibration",
    "TemperatureScaling",
    "VectorScaling",
    "method_name",
    "methods_for",
    "restore",
]
