"""The verdict: what the numbers say, in plain words, and never more than they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gduq.report import rare, wording
from gduq.report.advice import Advice, advise
from gduq.report.changes import changed
from gduq.report.points import Point, Tone, at_home, tone_of, within
from gduq.report.split_names import main_split, shift_name
from gduq.report.subject import Subject

__all__ = ["Verdict", "verdict"]


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
        >>> p = Prediction(torch.eye(2).repeat(20, 1), torch.tensor([0, 1, 1, 1] * 10))
        >>> verdict([Subject("vanilla", {"ood_test": p})]).headline.split(":")[0]
        'Under shift, vanilla is neither clearly over- nor under-confident'
    """
    first, split = subjects[0], main_split(subjects)
    p = first.labelled(split) if split is not None else None
    if p is None or split is None:
        text = "The true labels are not known, so nothing can be said about right and wrong."
        return Verdict(text, "neutral", (), "Predict on labelled data to get a verdict.")
    gap = first.number("gap", split)
    points = [*at_home(first, split), *within(first, split)]
    points += [changed(first, other, split, gap) for other in subjects[1:]]
    said = wording.promise(first, split, gap) + rare.skill_words(first, split)
    return Verdict(
        f"{shift_name(subjects, split)}, {said}.",
        "bad" if not rare.skill(first, split) else tone_of(gap),
        tuple(points),
        _note(subjects, split, len(p)),
        advise(subjects, split),
    )


def _note(subjects: Sequence[Subject], split: str, rows: int) -> str:
    level = 100 * subjects[0].sampling["level"]
    note = (
        f"Judged on {rows} rows of {split}. Points are percentage points; in brackets stands the "
        f"{level:g} % interval from resampling these rows"
    )
    if any(s.runs for s in subjects):
        note += ", with the spread over training seeds where there are several"
    if all(s.runs for s in subjects):
        return f"{note}."
    return f"{note}. Training again with another seed can move the numbers further than that."
