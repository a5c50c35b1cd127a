"""The verdict: what the numbers say, in plain words, and never more than they say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from gduq.metrics import Interval
from gduq.report.advice import SMALL, Advice, advise
from gduq.report.comparing import change, clear
from gduq.report.subject import Subject, home_of, main_split, shift_name
from gduq.report.wording import JudgedSplit, Words, points, ranged, signed, state

__all__ = ["Verdict", "cost_ratios", "nearer_words", "verdict"]

Tone = Literal["good", "bad", "care", "neutral"]
_MUCH = 0.05  # over-confidence from here on is bad, less of it asks for care
_WEAK = 3  # classes or labels named as weak
_COSTS = {"train_seconds": "training time", "predict_seconds": "prediction time"}


@dataclass(frozen=True)
class Statement:
    """One statement: about whom, what, and whether that is good."""

    about: str
    text: str
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Verdict:
    """One sentence that says it all, what stands behind it, and what to do."""

    headline: str
    tone: Tone
    points: tuple[Statement, ...]
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
    here = JudgedSplit(first, split)
    within = {"classes": _classes, "labels": _labels, "values": _values}[first.kind]
    found = [*_at_home(here), *within(here), *(_changed(here, other) for other in subjects[1:])]
    headline = f"{shift_name(first, split)}, {here.promise}."
    misled = here.fault and clear(here.gap) and here.gap.value < 0
    tone = _tone(here.gap) if here.skill and not misled else "bad"
    return Verdict(headline, tone, tuple(found), _note(subjects, here), advise(subjects, here))


def _tone(gap: Interval) -> Tone:
    """How bad a gap is: promising too much is worse than too little."""
    if not clear(gap):
        return "neutral"
    if gap.value >= _MUCH:
        return "bad"
    return "care" if gap.value >= SMALL or gap.value <= -_MUCH else "neutral"


def _note(subjects: Sequence[Subject], here: JudgedSplit) -> str:
    level, rows = 100 * here.subject.sampling["level"], len(here.subject.labelled(here.split))
    several = [bool(s.runs) for s in subjects]
    seeds = ", with the spread over training seeds where there are several" if any(several) else ""
    more = " Training again with another seed can move the numbers further than that."
    return (
        f"Judged on {rows} rows of {here.split}. Points are percentage points; in brackets stands "
        f"the {level:g} % interval from resampling these rows{seeds}.{'' if all(several) else more}"
    )


# -- about the first subject ---------------------------------------------------------------------


def _at_home(here: JudgedSplit) -> Iterator[Statement]:
    """The same without shift, if there is such a split."""
    if (home := home_of(here.subject, here.split)) is not None:
        there = JudgedSplit(here.subject, home)
        said = f"{there.words.who} {there.state} ({ranged(there.gap)}): {there.held()}"
        yield Statement(here.subject.name, f"On data like its training data ({home}) {said}.")


def _values(here: JudgedSplit) -> Iterator[Statement]:
    """Each of several values by itself."""
    for part, name in zip(here.subject.parts, here.subject.names, strict=True):
        if name:
            one = JudgedSplit(part, here.split)
            error = f"RMSE {one.value('rmse').value:.3g}{part.unit and f' {part.unit}'}."
            text = f"{one.held('Its {}')}: {one.state} ({ranged(one.gap)}). {error}"
            yield Statement(f"{part.name}: {name}", text, _tone(one.gap))


def _classes(here: JudgedSplit) -> Iterator[Statement]:
    """What becomes of rare classes, where some are rare or hardly found."""
    found, balanced = here.recalls, here.value("balanced_accuracy")
    lost = min(r.share for r in found) < here.value("accuracy").value / 2
    if not here.uneven(len(found)) and not lost:
        return
    many = len(found) > _WEAK
    shown = sorted(found, key=lambda r: r.share)[:_WEAK] if many else found
    parts = [f"{100 * r.share:.0f} % of “{r.name}” ({r.rows:,} rows)" for r in shown]
    listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    ends = f" ({100 * balanced.low:.0f} to {100 * balanced.high:.0f})"
    text = (
        f"Balanced accuracy is {100 * balanced.value:.0f} %"
        f"{'' if math.isnan(balanced.low) else ends}: it finds {listed}"
        f"{', its weakest classes' if many else ''}. Always answering “{here.common_class}” would "
        f"be right {100 * here.common_share:.0f} % of the time."
    )
    yield Statement(here.subject.name, text, "bad" if lost else "neutral")


def _labels(here: JudgedSplit) -> Iterator[Statement]:
    """How far labels are told apart, and which are not."""
    values = [part.value(here.split, "roc_auc") for part in here.subject.parts]
    named = zip(here.subject.names, values, strict=True)
    known = [(name, value) for name, value in named if not math.isnan(value.value)]
    if not known:
        return
    weak = sorted((value.value, name) for name, value in known if value.low <= 0.5)
    fair, mean = 100 * here.value("balanced_accuracy").value, len(known) > 1
    text = f"ROC-AUC is {here.value('roc_auc').value:.2f}, balanced accuracy {fair:.0f} %"
    text += " on average. " if mean else ". "
    if weak and mean:
        names = ", ".join(f"“{name}” ({value:.2f})" for value, name in weak[:_WEAK])
        more = f" and {len(weak) - _WEAK} more" if len(weak) > _WEAK else ""
        text += f"Of {len(known)} labels, {len(weak)} may be ranked by chance: {names}{more}. "
    share = f"{100 * here.common_share:.0f} % of the time"
    text += f"Always giving the more common answer would be right {share}."
    yield Statement(here.subject.name, text, "bad" if len(weak) == len(known) else "neutral")


# -- what another subject changes ----------------------------------------------------------------


def _changed(here: JudgedSplit, other: Subject) -> Statement:
    """What another subject changes; good only where nothing is worse."""
    first, split = here.subject, here.split
    if other.labelled(split) is None:
        return Statement(other.name, f"It has no labelled predictions on {split}.")
    nearer = change("distance", first, other, split)
    if nearer is None:
        text = f"It was judged on other rows of {split}, so no difference is claimed."
        return Statement(other.name, text)
    there = JudgedSplit(other, split)
    # gaps of several runs may cancel, so their sizes are averaged
    before = fmean(abs(run.value(split, "gap").value) for run in first.each_run)
    signs, told = (_errors if first.kind == "values" else _answers)(here, there)
    text = " ".join(filter(None, (
        nearer_words(nearer, here.gap, there.gap, before, here.words), told, _cost(first, other)
    )))  # fmt: skip
    signs = [-_sign(nearer), *signs]
    tones: tuple[Tone, ...] = ("neutral", "good", "bad")  # of 0, 1 and -1
    return Statement(other.name, text, tones[(max(signs) > 0) - (min(signs) < 0)])


def _sign(change: Interval | None) -> int:
    """1 or -1 for a clear change, 0 for none."""
    return 0 if change is None or not clear(change) else 1 if change.value > 0 else -1


def _answers(here: JudgedSplit, there: JudgedSplit) -> tuple[list[int], str]:
    """Accuracy, and balanced accuracy where it tells another story; 1 is better."""
    both = here.subject, there.subject, here.split
    plain, fair = (change(measure, *both) for measure in ("accuracy", "balanced_accuracy"))
    assert plain is not None
    signs, text = [_sign(plain), _sign(fair)], _in_points("Accuracy", plain)
    if fair is None or signs[1] in (0, signs[0]):
        return signs, text
    text += " " + _in_points("Balanced accuracy", fair)
    if here.subject.kind == "classes":  # the class whose recall changes most
        before = {r.name: r.share for r in here.recalls}
        name, share, _ = max(there.recalls, key=lambda r: abs(r.share - before[r.name]))
        text += f" It finds {100 * share:.0f} % of “{name}” instead of {100 * before[name]:.0f} %."
    return signs, text


def _in_points(name: str, change: Interval) -> str:
    unclear = f"{signed(change.value)} points, {ranged(change)}"
    return _told(name, change, unclear, f"{points(abs(change.value))} {{}} ({ranged(change)})")


def _errors(here: JudgedSplit, there: JudgedSplit) -> tuple[list[int], str]:
    """RMSE of one value; of several, which have units of their own, the NLL; 1 is better."""
    measure = "rmse" if len(here.subject.names) == 1 else "nll"
    differs = change(measure, here.subject, there.subject, here.split)
    assert differs is not None
    now = there.value(measure).value
    shown = f"{now:.3g} instead of {now - differs.value:.3g}"
    return [-_sign(differs)], _told(measure.upper(), differs, shown, f"{{}}: {shown}")


def _told(name: str, change: Interval, unclear: str, clearly: str) -> str:
    """A change in words: none, no clear one, or one for which the higher or lower is said."""
    if change == (0.0, 0.0, 0.0):
        return f"{name} is the same."
    if not clear(change):
        return f"{name}: no clear change ({unclear})."
    return f"{name} is {clearly.format('higher' if change.value > 0 else 'lower')}."


def nearer_words(
    change: Interval, gap: Interval, now: Interval, before: float, words: Words
) -> str:
    """What becomes of the gap between promise and truth, whose size was ``before``."""
    if not clear(change):
        said = f"{signed(now.value)} instead of {signed(gap.value)} points"
        return f"No clear change of the gap: {said} (its size changes by {ranged(change)})."
    said = f"{state(now, words)} (gap {signed(now.value)} points, {ranged(now)})"
    if change.value > 0:
        return f"{words.further}: {said}."
    ratio = 1 + change.value / before
    cut = f"Cuts the gap by {100 * (1 - ratio):.0f} %"
    cut = "Nearly closes the gap" if ratio < 0.1 else cut
    cut = "Halves the gap" if 0.45 <= ratio <= 0.55 else cut
    crossed = " and crosses over" if clear(now) and now.value * gap.value < 0 else ""
    return f"{cut}{crossed}: {said}."


def _cost(first: Subject, other: Subject) -> str:
    ratios = cost_ratios(first, other)
    parts = [f"{ratios[key]:.2g}× the {name}" for key, name in _COSTS.items() if key in ratios]
    return f"It costs {' and '.join(parts)} of {first.name}." if parts else ""


def cost_ratios(first: Subject, other: Subject) -> dict[str, float]:
    """Each cost relative to the first subject, where both have it."""
    base, cost = first.cost or {}, other.cost or {}
    return {key: cost[key] / base[key] for key in base if key in cost and base[key] > 0}
