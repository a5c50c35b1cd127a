"""Metrics: pure functions of logits and labels, or of a `gduq.Prediction`."""

from gduq.metrics.binned import (
    Binning,
    Norm,
    Reliability,
    adaptive_ece,
    classwise_ece,
    ece,
    reliability,
)
from gduq.metrics.rows import Rows, read
from gduq.metrics.scores import (
    BrierDecomposition,
    accuracy,
    brier,
    brier_decomposition,
    nll,
    sharpness,
)
from gduq.metrics.selective import RiskCoverage, aurc, excess_aurc, risk_coverage

__all__ = [
    "Binning",
    "BrierDecomposition",
    "Norm",
    "Reliability",
    "RiskCoverage",
    "Rows",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "brier",
    "brier_decomposition",
    "classwise_ece",
    "ece",
    "excess_aurc",
    "nll",
    "read",
    "reliability",
    "risk_coverage",
    "sharpness",
]
