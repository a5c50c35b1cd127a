"""The verdict: what the numbers say, in plain words, and never more than they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gduq.metrics import Interval
from gduq.report import wording
from gduq.report.advice import SMALL, Advice, advise
from gduq.report.changes import changed
from gduq.report.differences import clear
from gduq.report.split_names import home_of, main_split, shift_name
from gduq.report.subject import Subject
from gduq.report.wording import ranged, state, words_of

__all__ = ["Verdict", "verdict"]

Tone = Literal["good", "bad", "care", "neutral"]
_MUCH = 0.05  # over-confidence from here on is bad, less of it asks for care
_WEAK = 3  # classes or labels named as weak


@dataclass(frozen=True)
class Point:
    """One statement: about whom, what, and whether that is good."""

    about: str
    text: str
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Verdict:
    """One sentence that says it all, what stands behind it, and what to do."""

    headline: str
    tone: Tone
    points: tuple[Point, ...]
    note: str
    advice: Advice | None = None


def verdict(subjects: Sequence[Subject]) -> Verdict:
    """Judge the first subject, and what each other one changes.

    A change is only called one if the interval of the paired difference leaves out 0.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1), torch.tensor([0, 1, 0, 1, 0, 1, 1, 0] * 5))
        >>> verdict([Subject("vanilla", {"ood_test": p})]).headline.split(":")[0]
        'Under shift, vanilla is neither clearly over- nor under-confident'
    """
    first, split = subjects[0], main_split(subjects)
    if split is None:
        text = "The true labels are not known, so nothing can be said about right and wrong."
        return Verdict(text, "neutral", (), "Predict on labelled data to get a verdict.")
    gap = first.number("gap", split)
    within = {"classes": _classes, "labels": _labels, "values": _values}[first.kind]
    points = [*_at_home(first, split), *within(first, split)]
    tones: dict[int, Tone] = {1: "good", 0: "neutral", -1: "bad"}
    for other in subjects[1:]:
        text, better = changed(first, other, split, gap)
        points.append(Point(other.name, text, tones[better]))
    said, tone = wording.promise(first, split, gap), _tone(gap)
    if not wording.skill(first, split):
        said, tone = f"{wording.no_skill(first, split)}; {wording.held(first, split)}", "bad"
    headline = f"{shift_name(subjects, split)}, {said}."
    note = _note(subjects, split)
    return Verdict(headline, tone, tuple(points), note, advise(subjects, split))


def _tone(gap: Interval) -> Tone:
    """How bad a gap is: promising too much is worse than too little."""
    if not clear(gap):
        return "neutral"
    if gap.value >= _MUCH:
        return "bad"
    return "care" if gap.value >= SMALL or gap.value <= -_MUCH else "neutral"


def _note(subjects: Sequence[Subject], split: str) -> str:
    level, rows = 100 * subjects[0].sampling["level"], len(subjects[0].labelled(split))
    note = (
        f"Judged on {rows} rows of {split}. Points are percentage points; in brackets stands the "
        f"{level:g} % interval from resampling these rows"
    )
    if any(s.runs for s in subjects):
        note += ", with the spread over training seeds where there are several"
    if all(s.runs for s in subjects):
        return f"{note}."
    return f"{note}. Training again with another seed can move the numbers further than that."


# -- about the first subject ---------------------------------------------------------------------


def _at_home(first: Subject, split: str) -> list[Point]:
    """The same without shift, if there is such a split."""
    home = home_of(first, split)
    if home is None:
        return []
    gap, words = first.number("gap", home), words_of(first)
    said = f"{words.who} {state(gap, words)} ({ranged(gap)}): {wording.held(first, home)}"
    return [Point(first.name, f"On data like its training data ({home}) {said}.")]


def _values(first: Subject, split: str) -> list[Point]:
    """Each of several values by itself."""
    found = []
    for part, name in zip(first.parts, first.names, strict=True):
        if name:
            gap, error = (part.number(m, split) for m in ("gap", "rmse"))
            unit = f" {part.units[0]}" if part.units and part.units[0] else ""
            said = f"{state(gap, words_of(part))} ({ranged(gap)}). RMSE {error.value:.3g}{unit}."
            text = f"{wording.held(part, split, 'Its {}')}: {said}"
            found.append(Point(f"{part.name}: {name}", text, _tone(gap)))
    return found


def _classes(first: Subject, split: str) -> list[Point]:
    """What becomes of rare classes, where some are rare or hardly found."""
    found, always = wording.recalls(first, split), wording.common_share(first, split)
    lost = min(r.share for r in found) < first.number("accuracy", split).value / 2
    if always < wording.UNEVEN / len(found) and not lost:
        return []
    balanced, many = first.number("balanced_accuracy", split), len(found) > _WEAK
    shown = sorted(found, key=lambda r: r.share)[:_WEAK] if many else found
    parts = [f"{100 * r.share:.0f} % of “{r.name}” ({r.rows:,} rows)" for r in shown]
    listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    ends = f" ({100 * balanced.low:.0f} to {100 * balanced.high:.0f})"
    text = (
        f"Balanced accuracy is {100 * balanced.value:.0f} %"
        f"{'' if math.isnan(balanced.low) else ends}: it finds {listed}"
        f"{', its weakest classes' if many else ''}. Always answering "
        f"“{wording.common_class(first, split)}” would be right {100 * always:.0f} % of the time."
    )
    return [Point(first.name, text, "bad" if lost else "neutral")]


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
    share = 100 * wording.common_share(first, split)
    text += f"Always giving the more common answer would be right {share:.0f} % of the time."
    return [Point(first.name, text, "bad" if len(weak) == len(known) else "neutral")]
