"""What a model says of one row, in words, and how sure of it it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gduq.evaluation.gap import PROMISED
from gduq.report.subject import Subject

__all__ = [
    "amount",
    "certain_errors",
    "of_target",
    "said",
    "truth",
    "uncertainty",
    "uncertainty_name",
    "wrong",
]


def uncertainty_name(subject: Subject, split: str) -> str:
    """What uncertainty means: disagreement if there is any, else entropy; of values deviation."""
    if subject.kind == "values":
        return "deviation" if len(subject.names) == 1 else "mean deviation"
    return "epistemic" if subject.predictions[split].num_samples > 1 else "entropy"


def uncertainty(subject: Subject, split: str) -> Tensor:
    """Per row ``[m]``; of several values in units of their typical deviation."""
    p = subject.predictions[split]
    if subject.kind == "values":
        return _mean(p.std / p.std.mean(dim=0))
    found: Tensor = getattr(p, uncertainty_name(subject, split))
    return _mean(found)


def _mean(values: Tensor) -> Tensor:
    return values if values.dim() == 1 else values.mean(dim=1)


def certain_errors(subject: Subject, split: str) -> list[int]:
    """Wrong rows, the most confident first: of values, the largest errors over their deviation."""
    p = subject.predictions[split]
    if p.target is None:
        return []
    off = wrong(subject, split)
    if subject.kind == "values":
        surprise = _most((p.target - p.mean).abs() / p.std)
    elif subject.kind == "labels":
        missed = (p.label != (p.target == 1)) & p.known
        surprise = _most(torch.where(missed, p.confidence, torch.zeros_like(p.confidence)))
    else:
        surprise = p.confidence
    order = surprise.argsort(descending=True, stable=True)
    return [int(i) for i in order[off[order]]]


def wrong(subject: Subject, split: str) -> Tensor:
    """Which rows are wrong ``[m]``: of values, those outside the 90 % interval."""
    p = subject.predictions[split]
    if subject.kind == "values":
        low, high = p.interval(PROMISED)
        return _any((p.target < low) | (p.target > high))
    if subject.kind == "labels":
        return _any((p.label != (p.target == 1)) & p.known)
    found: Tensor = ~p.correct
    return found


def _any(values: Tensor) -> Tensor:
    return values if values.dim() == 1 else values.any(dim=1)


def _most(values: Tensor) -> Tensor:
    return values if values.dim() == 1 else values.amax(dim=1)


def said(subject: Subject, split: str, row: int) -> str:
    """The answer."""
    p = subject.predictions[split]
    if subject.kind == "values":
        pairs = zip(p.mean[row].flatten().tolist(), p.std[row].flatten().tolist(), strict=True)
        return _listed(subject, [f"{mean:.3g} ± {std:.2g}" for mean, std in pairs])
    if subject.kind == "labels":
        return _yes(subject, p.label[row])
    return subject.class_name(int(p.label[row]), split)


def truth(subject: Subject, split: str, row: int) -> str:
    """The truth, as far as it is known."""
    p: Any = subject.predictions[split]
    if p.target is None:
        return "unknown"
    if subject.kind == "values":
        return _listed(subject, [f"{y:.3g}" for y in p.target[row].flatten().tolist()])
    if subject.kind == "labels":
        return _yes(subject, p.target[row] == 1)
    return subject.class_name(int(p.target[row]), split)


def of_target(subject: Subject, split: str, y: Any) -> str:
    """The truth that a graph holds, in the same words; empty where it holds none."""
    if not isinstance(y, Tensor) or y.numel() == 0:
        return ""
    if subject.kind == "values":
        return _listed(subject, [f"{value:.3g}" for value in y.flatten().tolist()])
    if subject.kind == "labels":
        return _yes(subject, y.flatten() == 1)
    return subject.class_name(int(y.flatten()[0]), split)


def amount(subject: Subject, split: str, row: int) -> str:
    """How sure it is."""
    p = subject.predictions[split]
    score = uncertainty_name(subject, split)
    number = f"{score} {float(uncertainty(subject, split)[row]):.2f}"
    if subject.kind == "values":
        if len(subject.names) > 1:
            return f"{number} of the usual"
        low, high = p[row].interval(PROMISED)
        return f"90 % interval {float(low):.3g} to {float(high):.3g}"
    sure = float(_mean(p.confidence)[row])
    return f"{100 * sure:.0f} % sure, {number}"


def _listed(subject: Subject, words: list[str]) -> str:
    if len(words) == 1:
        return words[0]
    return ", ".join(f"{name} {word}" for name, word in zip(subject.names, words, strict=True))


def _yes(subject: Subject, answers: Tensor) -> str:
    """The labels that are said to hold."""
    if len(answers) == 1:
        return "yes" if bool(answers[0]) else "no"
    names = [n for n, yes in zip(subject.names, answers.tolist(), strict=True) if yes]
    return ", ".join(names) or "none"
