"""Rare classes: whether a model does more than give the most common answer, and what it misses."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from gduq import metrics
from gduq.report.seeds import runs_of
from gduq.report.subject import Subject

__all__ = ["UNEVEN", "Recall", "common_class", "common_share", "recalls", "skill", "skill_words"]


UNEVEN = 1.5  # times its fair share of the rows make a class so common that others are rare


@dataclass(frozen=True)
class Recall:
    """How much of a class a model finds.

    Args:
        name: The class.
        share: Share of its rows that are found, from 0 to 1.
        rows: How many rows it has.
    """

    name: str
    share: float
    rows: int


def recalls(subject: Subject, split: str) -> list[Recall]:
    """Of every class with rows, rarest first; means over the runs of a subject."""
    known = [p for run in runs_of(subject) if (p := run.labelled(split)) is not None]
    target = known[0].require_target()
    counts = target.bincount().tolist()
    found = []
    for label in sorted((c for c, rows in enumerate(counts) if rows), key=counts.__getitem__):
        shares = [float(p.correct[p.target == label].double().mean()) for p in known]
        found.append(Recall(subject.class_name(label, split), fmean(shares), counts[label]))
    return found


def common_class(subject: Subject, split: str) -> str:
    """The name of the class with most rows."""
    return max(recalls(subject, split), key=lambda r: r.rows).name


def common_share(subject: Subject, split: str) -> float:
    """How often always giving the most common answer would be right; of labels on average."""
    return metrics.majority(subject.labelled(split)).accuracy


def skill(subject: Subject, split: str) -> bool:
    """Whether it does more than one answer for all rows would.

    Of classes and labels its accuracy is above that of the most common answer; of values its mean
    squared error is below the variance of the truth (of several values: on average). Rows that all
    have the same truth cannot tell, and nothing is held against it.
    """
    if subject.kind == "values":
        return not subject.number("r2", split).value <= 0
    always = common_share(subject, split)
    return always == 1 or subject.number("accuracy", split).value > always


def skill_words(subject: Subject, split: str) -> str:
    """What to add to a verdict on a model without skill; empty for one with it."""
    if skill(subject, split):
        return ""
    if subject.kind == "values":
        return "; its means are no nearer to the truth than one number for all rows would be"
    share = 100 * common_share(subject, split)
    if subject.kind == "labels":
        return f"; always giving each label's more common answer would be right {share:.0f} %"
    name = common_class(subject, split)
    return f"; always answering “{name}” would be right {share:.0f} % of the time"
