"""Metrics: pure functions of a prediction of any kind, or of logits and labels."""

from gduq.metrics.calibration_errors import (
    Binning,
    Norm,
    Reliability,
    adaptive_ece,
    classwise_ece,
    ece,
    reliability,
    smooth_ece,
)
from gduq.metrics.classes import (
    BrierDecomposition,
    Majority,
    accuracy,
    average_precision,
    balanced_accuracy,
    brier,
    brier_decomposition,
    brier_term,
    majority,
    nll,
    roc_auc,
    sharpness,
)
from gduq.metrics.grouped import subgroups
from gduq.metrics.labels import label_table, label_thresholds
from gduq.metrics.ranking import Separation, aupr, auroc, false_positive_rate, separation
from gduq.metrics.resampling import Interval, bootstrap, bootstrap_all
from gduq.metrics.rows import Rows, read
from gduq.metrics.selective import (
    RiskBand,
    RiskCoverage,
    aurc,
    excess_aurc,
    risk_band,
    risk_coverage,
)
from gduq.metrics.structure import degree, distance, graph_columns, homophily, size
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
    "Binning", "BrierDecomposition", "CalibrationCurve", "Interval", "Majority", "Norm",
    "Reliability", "RiskBand", "RiskCoverage", "Rows", "Separation", "accuracy", "adaptive_ece",
    "aupr", "aurc", "auroc", "average_precision", "balanced_accuracy", "bootstrap", "bootstrap_all",
    "brier", "brier_decomposition", "brier_term", "calibration_curve", "classwise_ece", "coverage",
    "crps", "degree", "distance", "ece", "ence", "excess_aurc", "false_positive_rate",
    "graph_columns", "homophily", "label_table", "label_thresholds", "mae", "majority",
    "miscalibration_area", "nll", "r2", "read", "reliability", "risk_band", "risk_coverage", "rmse",
    "roc_auc", "separation", "sharpness", "size", "smooth_ece", "spearman", "subgroups", "width",
]  # fmt: skip
