"""The report's charts of all kinds: risk and coverage, ID and OOD rows, severity; reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gduq import metrics
from gduq.metrics import Interval
from gduq.novelty import ood_scores as ood
from gduq.report.subject import Subject
from gduq.report.svg import Frame, picture

__all__ = ["MOST", "Figure", "histogram", "reliability", "risk_coverage", "severity"]

MOST = 6  # lines a reader can still tell apart
_SCORES = {"classes": "1 − confidence", "labels": "mean entropy", "values": "deviation"}
_NAMES = {
    "ece": "ECE",
    "rmse": "RMSE",
    "roc_auc": "ROC-AUC",
    "coverage_90": "share in 90 % intervals",
}


@dataclass(frozen=True)
class Figure:
    """A picture with what stands around it.

    Args:
        title: Stands above.
        svg: The picture.
        caption: Stands below.
        legend: Names and style classes of its lines.
    """

    title: str
    svg: str
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()


def reliability(subject: Subject, split: str, index: int, bins: int = 10) -> Figure:
    """Accuracy against confidence with Wilson intervals, above a histogram of the confidence.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> reliability(Subject("vanilla", {"id_test": p}), "id_test", 0).caption
        'ECE 0.269 (0.269 to 0.269)'
    """
    p = subject.predictions[split]
    curve = metrics.reliability(p, bins=bins, strict=False)
    upper = Frame((0, 1), (0, 1), height=310, bottom=100)
    body = [upper.axes(ylabel="accuracy"), upper.line([(0, 0), (1, 1)], "ideal")]
    filled = [i for i in range(bins) if curve.rows[i] > 0]
    rows = [[float(v[i]) for v in curve[2:]] for i in filled]
    body += [upper.line([(c, low), (c, high)], f"whisker s{index}") for c, _, low, high in rows]
    body.append(upper.line([(c, a) for c, a, *_ in rows], f"line s{index}"))
    body += [upper.dot(c, a, f"dot s{index}") for c, a, *_ in rows]
    body.append(_bars(p.confidence.numpy(), index))
    ece = subject.value(split, "ece")
    label = f"Reliability of {subject.name} on {split}: ECE {_value(ece)}. " + "; ".join(
        f"at confidence {c:.2f} accuracy {a:.2f}" for c, a, *_ in rows
    )
    svg = picture("".join(body), 320, 310, label)
    return Figure(subject.name, svg, f"ECE {_value(ece)}")


def _bars(confidence: Any, index: int) -> str:
    """The histogram under a reliability diagram."""
    shares, edges = np.histogram(confidence, bins=20, range=(0, 1))
    shares = shares / max(shares.sum(), 1)
    frame = Frame((0, 1), (0, max(float(shares.max()), 1e-9)), height=310, top=236, bottom=24)
    return frame.area(_stairs(shares, edges), f"fill s{index}") + frame.base("confidence")


def risk_coverage(subjects: Sequence[Subject], split: str) -> Figure:
    """Share of errors (values: RMSE) among the most certain rows, against how many are answered."""
    shown = [(i, s) for i, s in enumerate(subjects[:MOST]) if s.labelled(split)]
    curves = {i: metrics.risk_coverage(s.predictions[split]) for i, s in shown}
    values = subjects[0].kind == "values"
    risks = {i: c.risk.sqrt() if values else c.risk for i, c in curves.items()}
    # the first few rows of values may err as they like
    top = max(float(r[len(r) // 20 if values else 0 :].max()) for r in risks.values())
    frame = Frame((0, 1), (0, top if values else max(0.05, top)))
    name = "RMSE of the answers" if values else "share of errors"
    body, told = [frame.axes("share of rows answered", name)], []
    for i, subject in shown:
        first = len(risks[i]) // 20 if values else 0
        keep = np.unique(np.linspace(first, len(risks[i]) - 1, 200).astype(int))
        points = zip(curves[i].coverage[keep].tolist(), risks[i][keep].tolist(), strict=True)
        body.append(frame.line(points, f"line s{i}"))
        told.append(f"{subject.name}: AURC {_value(subject.value(split, 'aurc'))}")
    svg = picture("".join(body), 320, 250, f"Risk against coverage on {split}. " + "; ".join(told))
    lines = [f"s{i}" for i, _ in shown]
    return Figure(split, svg, legend=tuple(zip(told, lines, strict=True)))


def histogram(subject: Subject, known: str, shifted: str) -> Figure:
    """The distribution of an uncertainty on rows of known kind and on shifted ones."""
    name = _SCORES[subject.kind]
    scores = [ood.score(subject.predictions[s]) for s in (known, shifted)]
    sets = [score.numpy() for score in scores]
    every = np.concatenate(sets)
    low = float(every.min()) if subject.kind == "values" else 0.0
    high = max(float(np.quantile(every, 0.995)), low + 1e-3 * max(low, 1.0))
    edges = np.linspace(low, high, 26)
    heights = [np.histogram(v.clip(low, high), bins=edges)[0] / len(v) for v in sets]
    frame = Frame((low, high), (0, max(float(h.max()) for h in heights)), height=230)
    body = [frame.axes(name, "share of rows")]
    for i, shares in enumerate(heights):
        body.append(frame.area(_stairs(shares, edges), f"fill s{i}"))
        body.append(frame.line(_stairs(shares, edges), f"line s{i}"))
    found = metrics.auroc(*scores)
    label = f"{name} of {subject.name} on {known} and {shifted}: AUROC {found:.3f}"
    svg = picture("".join(body), 320, 230, label)
    return Figure(subject.name, svg, f"AUROC {found:.3f}", ((known, "s0"), (shifted, "s1")))


def severity(subjects: Sequence[Subject], splits: Sequence[str], measure: str) -> Figure:
    """A measure of the evaluation against the severity of a shift, with intervals."""
    lines: Mapping[int, list[tuple[float, Interval]]] = {
        i: [(float(n.partition("=")[2]), s.value(n, measure))
            for n in splits if s.labelled(n)]
        for i, s in enumerate(subjects[:MOST])
    }  # fmt: skip
    places = [x for line in lines.values() for x, _ in line]
    top = max(found.high for line in lines.values() for _, found in line)
    name = _NAMES.get(measure, measure)
    kind = splits[0].partition("=")[0]
    frame = Frame((min(places), max(places)), (0, max(top, 0.05)))
    body, told = [frame.axes(kind, name)], []
    for i, line in lines.items():
        band = [(x, f.low) for x, f in line] + [(x, f.high) for x, f in reversed(line)]
        body += [frame.area(band, f"band s{i}")]
        body += [frame.line([(x, f.value) for x, f in line], f"line s{i}")]
        body += [frame.dot(x, f.value, f"dot s{i}") for x, f in line]
        told.append(f"{subjects[i].name}: " + ", ".join(f"{f.value:.3f} at {x:g}" for x, f in line))
    svg = picture("".join(body), 320, 250, f"{name} against {kind}. " + "; ".join(told))
    return Figure(f"{name} against {kind}", svg,
                  legend=tuple((subjects[i].name, f"s{i}") for i in lines))  # fmt: skip


def _stairs(heights: Any, edges: Any) -> list[tuple[float, float]]:
    """The outline of a histogram from its lower left to its lower right end."""
    points = [(float(edges[0]), 0.0)]
    for left, right, height in zip(edges[:-1], edges[1:], heights, strict=True):
        points += [(float(left), float(height)), (float(right), float(height))]
    return [*points, (float(edges[-1]), 0.0)]


def _value(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
