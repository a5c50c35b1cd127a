"""Metrics: pure functions of logits and labels, or of a `gduq.Prediction`."""

from gduq.metrics.band import RiskBand, risk_band
from gduq.metrics.binned import (
    Binning,
    Norm,
    Reliability,
    adaptive_ece,
    classwise_ece,
    ece,
    reliability,
)
from gduq.metrics.grouped import subgroups
from gduq.metrics.kernel import smooth_ece
from gduq.metrics.ranking import (
    Separation,
    auroc,
    average_precision,
    false_positive_rate,
    separation,
)
from gduq.metrics.resampling import Interval, bootstrap, bootstrap_all
from gduq.metrics.rows import Rows, read
from gduq.metrics.scores import (
    BrierDecomposition,
    accuracy,
    brier,
    brier_decomposition,
    brier_term,
    nll,
    sharpness,
)
from gduq.metrics.selective import RiskCoverage, aurc, excess_aurc, risk_coverage
from gduq.metrics.structure import degree, distance, graph_columns, homophily, size

__all__ = [
    "Binning",
    "BrierDecomposition",
    "Interval",
    "Norm",
    "Reliability",
    "RiskBand",
    "RiskCoverage",
    "Rows",
    "Separation",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "auroc",
    "average_precision",
    "bootstrap",
    "bootstrap_all",
    "brier",
    "brier_decomposition",
    "brier_term",
    "classwise_ece",
    "degree",
    "distance",
    "ece",
    "excess_aurc",
    "false_positive_rate",
    "graph_columns",
    "homophily",
    "nll",
    "read",
    "reliability",
    "risk_band",
    "risk_coverage",
    "separation",
    "sharpness",
    "size",
    "smooth_ece",
    "subgroups",
]
