"""What to do about a verdict, by rules that stand in the documentation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gduq.metrics import Interval
from gduq.report import rare, seeds
from gduq.report.scores import clear
from gduq.report.subject import Subject
from gduq.report.wording import words_of

__all__ = ["SMALL", "Advice", "advise", "home_of"]

Action = Literal["keep", "calibrate", "collect", "switch"]
SMALL = 0.02  # a gap below two points is left alone, however clear it is
_FINDS = 0.7  # an AUROC from which on a score is called one that finds shifted rows


@dataclass(frozen=True)
class Advice:
    """One of four things to do, and why."""

    action: Action
    text: str


def advise(subjects: Sequence[Subject], split: str) -> Advice:
    """What to do about the first subject; the first rule that applies.

    * switch: another one, judged on the same rows, has a clearly lower NLL, and no clearly lower
      balanced accuracy;
    * collect: it does no better than one answer for all rows would;
    * calibrate: it is clearly off, by two points or more, on data like its training data too;
    * collect: it promises clearly too much, by two points or more, under shift only;
    * keep: anything else.
    """
    first = subjects[0]
    better = _better(subjects, split)
    if better is not None:
        return better
    if not rare.skill(first, split):
        return Advice("collect", _without_skill(first))
    home, gap = home_of(first, split), seeds.number("gap", first, split)
    at_home = gap if home is None else seeds.number("gap", first, home)
    if _off(at_home):
        where = f"on {home or split}" if home is None else f"on {home} too"
        return Advice("calibrate", f"Calibrate: it is off {where}{_calibrated(first, split)}.")
    if _off(gap) and gap.value > 0:
        return Advice("collect", _shifted(first, split))
    if _off(gap):
        said = words_of(first).under
        return Advice("keep", f"Keep it: under shift it is {said}, which is on the safe side.")
    return Advice("keep", "Keep it: what it promises is near what it holds.")


def home_of(subject: Subject, split: str) -> str | None:
    """The labelled split of known kind to compare a shifted one with."""
    known = "id_test" if split != "id_test" else ""
    return known if known and subject.labelled(known) is not None else None


def _off(gap: Interval) -> bool:
    return clear(gap) and abs(gap.value) >= SMALL


def _better(subjects: Sequence[Subject], split: str) -> Advice | None:
    """The other subject with the clearly lowest NLL, if it loses no class for it."""
    first, found = subjects[0], []
    for other in subjects[1:]:
        if other.labelled(split) is None:
            continue
        change = seeds.change("nll", first, other, split)
        if change is None or not clear(change) or change.value > 0:
            continue
        fair = None
        if first.kind != "values":
            fair = seeds.change("balanced_accuracy", first, other, split)
        if fair is not None and clear(fair) and fair.value < 0:
            continue
        found.append((change.value, other.name, change))
    if not found:
        return None
    _, name, change = min(found, key=lambda entry: entry[:2])
    ends = f"{-change.high:.2g} to {-change.low:.2g}"
    return Advice("switch", f"Switch to {name}: its NLL is lower by {-change.value:.2g} ({ends}).")


def _without_skill(subject: Subject) -> str:
    if subject.kind == "values":
        return "Collect rows like these: it does no better than one number for all of them."
    kind = "classes" if subject.kind == "classes" else "labels"
    return (
        f"Collect rows of the rare {kind}, or give them weight in training: it does no better than "
        "the most common answer."
    )


def _calibrated(subject: Subject, split: str) -> str:
    """What the best calibrator of the evaluation brings, if there was one."""
    table = subject.result.table
    names = [name for name in dict.fromkeys(table["calibrator"]) if name != "none"]
    found = {name: seeds.number("nll", subject, split, name).value for name in names}
    known = {name: value for name, value in found.items() if not math.isnan(value)}
    plain = seeds.number("nll", subject, split).value
    best = min(known, key=known.__getitem__, default=None)
    if best is None or known[best] >= plain:
        return ""
    return f"; with {best} its NLL on {split} is {known[best]:.3g} instead of {plain:.3g}"


def _shifted(subject: Subject, split: str) -> str:
    text = "Collect labels of rows like these: it promises too much under shift only"
    found = subject.value(split, "auroc", variant="novelty").value
    if found >= _FINDS:
        return f"{text}; until then its novelty finds them (AUROC {found:.2f})."
    return f"{text}; until then pass rows of this kind on to a person."
