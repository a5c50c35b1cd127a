"""Figures: reliability and levels, truth and prediction, risk and coverage, ID and OOD, shift.

Every function returns a Matplotlib ``Figure`` made for one column of a paper (3.4 inches); save it
with ``figure.savefig("name.pdf")``. Nothing is shown and no global state is touched, so they work
without a display. Colours are those of Okabe and Ito, which colour-blind readers can tell apart;
lines also differ by marker and dash.
"""

from gduq.plots.classes import precision_recall, reliability_diagram
from gduq.plots.overall import risk_coverage, score_histograms, severity_lines, shift_severity
from gduq.plots.svg import to_svg
from gduq.plots.values import calibration_curve, error_by_uncertainty, parity

__all__ = [
    "calibration_curve",
    "error_by_uncertainty",
    "parity",
    "precision_recall",
    "reliability_diagram",
    "risk_coverage",
    "score_histograms",
    "severity_lines",
    "shift_severity",
    "to_svg",
]
