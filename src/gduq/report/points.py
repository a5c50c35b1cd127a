"""Statements of the verdict about one subject: at home, and what an average hides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gduq.metrics import Interval
from gduq.report import rare, wording
from gduq.report.advice import SMALL
from gduq.report.differences import clear
from gduq.report.split_names import home_of
from gduq.report.subject import Subject
from gduq.report.wording import ranged, state, words_of

__all__ = ["Point", "Tone", "at_home", "tone_of", "within"]

Tone = Literal["good", "bad", "care", "neutral"]
_MUCH = 0.05  # over-confidence from here on is bad, less of it asks for care
_WEAK = 3  # classes or labels named as weak


@dataclass(frozen=True)
class Point:
    """One statement: about whom, what, and whether that is good."""

    about: str
    text: str
    tone: Tone = "neutral"


def tone_of(gap: Interval) -> Tone:
    """How bad a gap is: promising too much is worse than too little.

    Example:
        >>> [tone_of(Interval(g, g, g)) for g in (0.14, 0.03, -0.02, -0.14)]
        ['bad', 'care', 'neutral', 'care']
    """
    if not clear(gap):
        return "neutral"
    if gap.value > 0:
        return "bad" if gap.value >= _MUCH else "care" if gap.value >= SMALL else "neutral"
    return "care" if -gap.value >= _MUCH else "neutral"


def at_home(first: Subject, split: str) -> list[Point]:
    """The same without shift, if there is such a split."""
    home = home_of(first, split)
    if home is None:
        return []
    gap, words = first.number("gap", home), words_of(first)
    who = "its intervals are" if first.kind == "values" else "it is"
    said = f"{who} {state(gap, words)} {ranged(gap)}: {wording.held(first, home)}"
    return [Point(first.name, f"On data like its training data ({home}) {said}.")]


def within(first: Subject, split: str) -> list[Point]:
    """What an average hides: rare classes, weak labels, single values."""
    if first.kind == "values":
        return [_value(part, name, split)
                for part, name in zip(first.parts, first.names, strict=True) if name]  # fmt: skip
    return _labels(first, split) if first.kind == "labels" else _classes(first, split)


def _value(part: Subject, name: str, split: str) -> Point:
    gap, error = (part.number(m, split) for m in ("gap", "rmse"))
    said = f"{state(gap, words_of(part))} {ranged(gap)}"
    unit = f" {part.units[0]}" if part.units and part.units[0] else ""
    text = f"{wording.held(part, split).capitalize()}: {said}. RMSE {error.value:.3g}{unit}."
    return Point(f"{part.name}: {name}", text, tone_of(gap))


def _classes(first: Subject, split: str) -> list[Point]:
    """What becomes of rare classes, where some are rare or hardly found."""
    found = rare.recalls(first, split)
    accuracy = first.number("accuracy", split).value
    weakest = min(found, key=lambda r: r.share)
    lost = weakest.share < accuracy / 2
    if rare.common_share(first, split) < rare.UNEVEN / len(found) and not lost:
        return []
    balanced = first.number("balanced_accuracy", split)
    shown = found if len(found) <= _WEAK else sorted(found, key=lambda r: r.share)[:_WEAK]
    parts = [f"{100 * r.share:.0f} % of “{r.name}” ({r.rows:,} rows)" for r in shown]
    most = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    weak = "" if len(found) <= _WEAK else ", its weakest classes"
    text = (
        f"Balanced accuracy is {100 * balanced.value:.0f} %{_ends(balanced)}: it finds "
        f"{most}{weak}. Always answering “{rare.common_class(first, split)}” would be right "
        f"{100 * rare.common_share(first, split):.0f} % of the time."
    )
    return [Point(first.name, text, "bad" if lost else "neutral")]


def _ends(share: Interval) -> str:
    """The interval of a share in percent; empty where too few rows give none."""
    if math.isnan(share.low):
        return ""
    return f" ({100 * share.low:.0f} to {100 * share.high:.0f})"


def _labels(first: Subject, split: str) -> list[Point]:
    """How far labels are told apart, and which are not."""
    values = [part.value(split, "roc_auc") for part in first.parts]
    known = [(n, v) for n, v in zip(first.names, values, strict=True) if not math.isnan(v.value)]
    if not known:
        return []
    weak = sorted((v.value, n) for n, v in known if v.low <= 0.5)
    mean, fair = (first.number(m, split) for m in ("roc_auc", "balanced_accuracy"))
    text = f"ROC-AUC is {mean.value:.2f}, balanced accuracy {100 * fair.value:.0f} %"
    text += " on average. " if len(known) > 1 else ". "
    if weak and len(known) > 1:
        names = ", ".join(f"“{n}” ({v:.2f})" for v, n in weak[:_WEAK])
        more = f" and {len(weak) - _WEAK} more" if len(weak) > _WEAK else ""
        text += f"Of {len(known)} labels, {len(weak)} may be ranked by chance: {names}{more}. "
    share = 100 * rare.common_share(first, split)
    text += f"Always giving the more common answer would be right {share:.0f} % of the time."
    return [Point(first.name, text, "bad" if len(weak) == len(known) else "neutral")]
