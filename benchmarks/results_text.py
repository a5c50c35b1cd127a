"""Words and numbers of the result pages: Markdown tables, cells, parts of bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results_cells import KEYS

Record = Mapping[str, Any]
METRICS = {
    "accuracy": "accuracy",
    "ece": "ECE",
    "ece100": "ECE, 100 bins",
    "nll": "NLL",
    "brier": "Brier",
    "aurc": "AURC",
    "auroc": "AUROC",
    "gep_error": "error of the predicted accuracy",
    "gep_error_confidence_difference": "error by confidence difference",
    "gep_error_average_confidence": "error by average confidence",
    "gep_error_disagreement": "error by disagreement",
    "epoch_ratio": "epoch, × vanilla",
    "train_ratio": "training, × vanilla",
    "epoch_seconds": "epoch, s",
    "predict_ratio": "prediction, × vanilla",
    "train_seconds": "training, s",
    "predict_seconds": "prediction, s",
}
SPLITS = {"id_test": "ID", "ood_test": "OOD"}
_EXACT = 1000.0  # larger numbers are counts


def markdown(columns: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table; text columns come first, all others are numbers."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(v.replace("|", "\\|") for v in row) + " |" for row in body]
    return "\n".join(lines)


def number(value: float | None, metric: str = "") -> str:
    """A number as it is printed.

    Example:
        >>> number(0.12345), number(0.0423, "train_seconds"), number(2001310.0), number(None)
        ('0.123', '0.042', '2001310', '–')
    """
    if value is None:
        return "–"
    if abs(value) >= _EXACT:
        return f"{value:.0f}"
    if metric.endswith(("seconds", "ratio")):
        return f"{value:.1f}" if value >= 100 else f"{float(f'{value:.2g}'):g}"
    return f"{value:.3f}"


def figure(r: Record | None, verdict: str = "", spread: bool = True, paper: bool = True) -> str:
    """A record: mean ± deviation, bold if better than vanilla, the paper's figure in brackets.

    Example:
        >>> figure({"mean": 0.5, "std": 0.01, "paper": 0.6, "metric": "ece"}, "better")
        '**0.500** ± 0.010 [0.6]'
    """
    if r is None or r["mean"] is None:
        return "–"
    text = number(r["mean"], r["metric"])
    text = {"better": f"**{text}**", "worse": f"{text} ▼"}.get(verdict, text)
    if spread and r["std"] is not None:
        text += f" ± {number(r['std'], r['metric'])}"
    return f"{text} [{r['paper']:g}]" if paper and r["paper"] is not None else text


def column(metric: str, split: str) -> str:
    """The head of a column."""
    name = METRICS.get(metric, metric.replace("_", " ").replace("auroc", "AUROC,"))
    return f"{SPLITS.get(split, split)} {name}".strip()


class Verdicts:
    """What the paired tests say of a record."""

    def __init__(self, tests: Iterable[Record]) -> None:
        self._found = {tuple(t[k] for k in KEYS[:8]): t["verdict"] for t in tests}

    def __call__(self, r: Record | None) -> str:
        return "" if r is None else self._found.get(tuple(r[k] for k in KEYS[:8]), "")


# -- bars -----------------------------------------------------------------------------------------


def amount(value: float, unit: str) -> str:
    """A value of a bar in its unit.

    Example:
        >>> amount(0.875, "share"), amount(-0.012, "points"), amount(1.25, "ratio")
        ('88 %', '−1.2 points', '1.25×')
    """
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit == "points":
        return f"{100 * value:+.1f} points".replace("-", "−")
    return f"{value:.2f}×" if unit == "ratio" else f"{value:.0f}"


def reached(part: Record) -> str:
    """What a part of a bar came to."""
    if part["value"] is None:
        return "not measured"
    text = amount(part["value"], part["unit"])
    return f"{text if part['met'] is not False else f'**{text}**'} {part['what']}"


def wanted(part: Record) -> str:
    sign = {">=": "≥", "<=": "≤"}[part["sign"]]
    return f"{sign} {amount(part['wanted'], part['unit'])}".replace("+0.0", "0")


def verdict(met: bool | None) -> str:
    return {True: "met", False: "**not met**", None: "not measured"}[met]
