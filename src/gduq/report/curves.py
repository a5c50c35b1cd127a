"""The report's charts of values and of rare classes: levels, parity, errors, precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gduq import metrics
from gduq.report.figures import MOST, Figure
from gduq.report.scores import PROMISED
from gduq.report.subject import Subject
from gduq.report.svg import Frame, picture

__all__ = ["errors", "levels", "parity", "precision_recall"]

_DOTS = 300  # rows of a parity plot; more of them hide each other
_BINS = 8


def levels(subject: Subject, split: str, index: int) -> Figure:
    """How much of the truth intervals of every level hold, with Wilson intervals.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> p = ValuePrediction(torch.zeros(40, 2), target=torch.linspace(-2, 2, 40))
        >>> levels(Subject("vanilla", {"id_test": p}), "id_test", 0).caption[:24]
        'Miscalibration area 0.12'
    """
    p = subject.predictions[split]
    curve = metrics.calibration_curve(p, points=41)
    shown = [tuple(map(float, row)) for row in zip(*curve, strict=True)]
    frame = Frame((0, 1), (0, 1), height=270)
    band = [(x, low) for x, _, low, _ in shown] + [(x, high) for x, *_, high in reversed(shown)]
    body = [
        frame.axes("level of the interval", "share of the truth in it"),
        frame.area(band, f"band s{index}"),
        frame.line([(0, 0), (1, 1)], "ideal"),
        frame.line([(x, y) for x, y, *_ in shown], f"line s{index}"),
    ]
    area = subject.value(split, "miscalibration_area")
    caption = f"Miscalibration area {area.value:.3f} ({area.low:.3f} to {area.high:.3f})"
    told = "; ".join(f"intervals of {x:.2f} hold {y:.2f}" for x, y, *_ in shown[4::8])
    label = f"Levels of {subject.name} on {split}: {caption}. {told}"
    return Figure(subject.name, picture("".join(body), 320, 270, label), caption)


def parity(subject: Subject, split: str, index: int) -> Figure:
    """The truth against the mean, with 90 % intervals; at most 300 rows, evenly chosen."""
    p = subject.predictions[split]
    keep = np.unique(np.linspace(0, len(p) - 1, min(len(p), _DOTS)).astype(int))
    part = p[torch.from_numpy(keep)]
    low, high = part.interval(PROMISED)
    rows = torch.stack([part.mean, part.target, low, high], dim=1).double().tolist()
    ends = [v for mean, truth, *_ in rows for v in (mean, truth)]
    pad = 0.05 * (max(ends) - min(ends)) or 1.0
    frame = Frame(
        (min(ends) - pad, max(ends) + pad), (min(ends) - pad, max(ends) + pad), height=290
    )
    bottom, top = frame.y
    name = _named(p)
    body = [frame.axes(f"true {name}", f"predicted {name}")]
    for mean, truth, below, above in rows:
        inside = below <= truth <= above
        style = f"s{index}" if inside else "outside"
        line = [(truth, max(below, bottom)), (truth, min(above, top))]
        body.append(frame.line(line, f"error {style}"))
        body.append(frame.dot(truth, mean, f"small {style}", 2.2))
    body.append(frame.line([(bottom, bottom), (top, top)], "ideal"))
    error = subject.value(split, "rmse")
    held = subject.value(split, "coverage_90")
    caption = f"RMSE {error.value:.3g}; 90 % intervals hold {100 * held.value:.0f} %"
    some = f" ({len(rows)} of {len(p):,} rows)" if len(rows) < len(p) else ""
    label = f"Truth and prediction of {subject.name} on {split}: {caption}"
    return Figure(subject.name, picture("".join(body), 320, 290, label), caption + some)


def errors(subjects: Sequence[Subject], split: str) -> Figure:
    """The error of rows against the deviation they were given, in bins of equally many rows."""
    shown = [(i, s) for i, s in enumerate(subjects[:MOST]) if s.labelled(split) is not None]
    lines = {i: _binned(s.predictions[split]) for i, s in shown}
    top = max(max(point) for line in lines.values() for point in line) * 1.05 or 1.0
    frame = Frame((0, top), (0, top), height=270)
    name = "deviation it gives"
    body, told = [frame.axes(name, "RMSE"), frame.line([(0, 0), (top, top)], "ideal")], []
    for i, subject in shown:
        body.append(frame.line(lines[i], f"line s{i}"))
        body += [frame.dot(x, y, f"dot s{i}") for x, y in lines[i]]
        found = subject.value(split, "spearman")
        rank = "" if math.isnan(found.value) else f": rank correlation {found.value:.2f}"
        told.append(f"{subject.name}{rank}")
    svg = picture("".join(body), 320, 270, f"Error against {name} on {split}. " + "; ".join(told))
    styles = [f"s{i}" for i, _ in shown]
    return Figure(split, svg, legend=tuple(zip(told, styles, strict=True)))


def _binned(p: Any) -> list[tuple[float, float]]:
    """Root mean variance and root mean squared error of bins of equally many rows."""
    order = p.variance.argsort()
    parts = order.chunk(min(_BINS, max(1, len(p) // 5)))
    square = (p.mean - p.target).double().square()
    return [
        (float(p.variance.double()[part].mean().sqrt()), float(square[part].mean().sqrt()))
        for part in parts
    ]


def _named(p: Any) -> str:
    """The name of a value, with its unit where it has one."""
    name = p.names[0] if p.names else "value"
    return f"{name} / {p.units[0]}" if p.units and p.units[0] else name


def precision_recall(subjects: Sequence[Subject], split: str) -> Figure:
    """Precision against recall of the second of two classes, and what guessing would get."""
    shown = [(i, s) for i, s in enumerate(subjects[:MOST]) if s.labelled(split) is not None]
    frame = Frame((0, 1), (0, 1))
    first = shown[0][1].predictions[split]
    rate = float((first.target == 1).double().mean())
    body = [frame.axes("recall", "precision"), frame.line([(0, rate), (1, rate)], "ideal")]
    told = []
    for i, subject in shown:
        body.append(frame.line(_precisions(subject.predictions[split]), f"line s{i}"))
        found = subject.value(split, "average_precision")
        told.append(f"{subject.name}: average precision {found.value:.3f}")
    name = shown[0][1].class_name(1, split)
    label = f"Precision and recall of {name} on {split}. " + "; ".join(told)
    styles = [f"s{i}" for i, _ in shown]
    caption = f"“{name}”: {100 * rate:.1f} % of the rows (dotted: guessing)"
    svg = picture("".join(body), 320, 250, label)
    return Figure(split, svg, caption, tuple(zip(told, styles, strict=True)))


def _precisions(p: Any) -> list[tuple[float, float]]:
    """Recall and precision at every threshold, at most 200 of them."""
    score = (p.log_probs[:, 1] - p.log_probs[:, 0]).double()
    ranked, order = score.sort(descending=True)
    hits = (p.target[order] == 1).double().cumsum(0)
    last = torch.cat([ranked[1:] != ranked[:-1], torch.tensor([True])])  # one per threshold
    count = torch.arange(1, len(score) + 1, dtype=torch.float64)
    recall, precision = (hits / hits[-1].clamp_min(1.0))[last], (hits / count)[last]
    keep = np.unique(np.linspace(0, len(recall) - 1, 200).astype(int))
    return list(zip(recall[keep].tolist(), precision[keep].tolist(), strict=True))
