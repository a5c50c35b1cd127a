"""Metrics: pure functions of a prediction of any kind."""

from gduq.metrics.classes import (
    Reliability,
    RiskCoverage,
    accuracy,
    adaptive_ece,
    aurc,
    average_precision,
    balanced_accuracy,
    brier,
    classwise_ece,
    ece,
    error_auroc,
    gap,
    majority,
    nll,
    reliability,
    risk_coverage,
    roc_auc,
    sharpness,
    trust_aurc,
    trust_error_auroc,
    trust_gap,
)
from gduq.metrics.ranking import Separation, auroc, separation
from gduq.metrics.resampling import Interval, bootstrap, bootstrap_all
from gduq.metrics.tables import measures, subgroups
from gduq.metrics.values import (
    CalibrationCurve,
    calibration_curve,
    coverage,
    crps,
    ence,
    mae,
    miscalibration_area,
    r2,
    rmse,
    spearman,
    width,
)

__all__ = [
    "CalibrationCurve", "Interval", "Reliability", "RiskCoverage", "Separation", "accuracy",
    "adaptive_ece", "aurc", "auroc", "average_precision", "balanced_accuracy", "bootstrap",
    "bootstrap_all", "brier", "calibration_curve", "classwise_ece", "coverage", "crps", "ece",
    "ence", "error_auroc", "gap", "mae", "majority", "measures", "miscalibration_area", "nll", "r2",
    "reliability", "risk_coverage", "rmse", "roc_auc", "separation", "sharpness", "spearman",
    "subgroups", "trust_aurc", "trust_error_auroc", "trust_gap", "width",
]  # fmt: skip
