"""Statements of the verdict about what another subject changes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gduq.metrics import Interval
from gduq.report import rare, wording
from gduq.report.differences import change, clear
from gduq.report.points import Point, Tone
from gduq.report.seeds import runs_of
from gduq.report.subject import Subject
from gduq.report.wording import Words, change_in, ranged, signed, state, words_of

__all__ = ["changed", "cost_ratios", "nearer_words"]

_COSTS = {"train_seconds": "training time", "predict_seconds": "prediction time"}


def changed(first: Subject, other: Subject, split: str, gap: Interval) -> Point:
    """What another subject changes: the gap, right and wrong, the cost."""
    if other.labelled(split) is None:
        return Point(other.name, f"It has no labelled predictions on {split}.")
    nearer = change("distance", first, other, split)
    if nearer is None:
        text = f"It was judged on other rows of {split}, so no difference is claimed."
        return Point(other.name, text)
    before = fmean(abs(run.number("gap", split).value) for run in runs_of(first))
    told = [nearer_words(nearer, gap, other.number("gap", split), before, words_of(first))]
    if first.kind == "values":
        signs, text = _errors(first, other, split)
    else:
        signs, text = _answers(first, other, split)
    told += [text, _cost(first, other)]
    return Point(other.name, " ".join(filter(None, told)), _tone([-_sign(nearer), *signs]))


def _sign(change: Interval | None) -> int:
    """1 or -1 for a clear change, 0 for none."""
    return 0 if change is None or not clear(change) else 1 if change.value > 0 else -1


def _tone(signs: Sequence[int]) -> Tone:
    """Good only where nothing is worse."""
    if min(signs) < 0 < max(signs):
        return "neutral"
    return "good" if max(signs) > 0 else "bad" if min(signs) < 0 else "neutral"


def _answers(first: Subject, other: Subject, split: str) -> tuple[list[int], str]:
    """Accuracy, and balanced accuracy where it tells another story; 1 is better."""
    plain, fair = (change(m, first, other, split) for m in ("accuracy", "balanced_accuracy"))
    assert plain is not None
    signs, text = [_sign(plain), _sign(fair)], change_in("Accuracy", plain)
    if fair is None or signs[1] in (0, signs[0]):
        return signs, text
    text += " " + change_in("Balanced accuracy", fair)
    if first.kind == "classes":
        text += _lost(first, other, split)
    return signs, text


def _lost(first: Subject, other: Subject, split: str) -> str:
    """The class whose recall changes most."""
    before = {r.name: r for r in rare.recalls(first, split)}
    now = rare.recalls(other, split)
    most = max(now, key=lambda r: abs(r.share - before[r.name].share))
    return (
        f" It finds {100 * most.share:.0f} % of “{most.name}” instead of "
        f"{100 * before[most.name].share:.0f} %."
    )


def _errors(first: Subject, other: Subject, split: str) -> tuple[list[int], str]:
    """RMSE of one value; of several, which have units of their own, the NLL. 1 is better."""
    measure, name = ("rmse", "RMSE") if len(first.names) == 1 else ("nll", "NLL")
    differs = change(measure, first, other, split)
    assert differs is not None
    now = other.number(measure, split).value
    shown = f"{now:.3g} instead of {now - differs.value:.3g}"
    if differs == (0.0, 0.0, 0.0):
        return [0], f"{name} is the same."
    if not clear(differs):
        return [0], f"{name}: no clear change ({shown})."
    word = "higher" if differs.value > 0 else "lower"
    return [-_sign(differs)], f"{name} is {word}: {shown}."


def nearer_words(
    change: Interval,
    gap: Interval,
    now: Interval,
    before: float | None = None,
    words: Words = wording.CONFIDENCE,
) -> str:
    """What becomes of the gap between promise and truth, whose size was ``before``."""
    if not clear(change):
        return (
            f"No clear change in {words.distance}: a gap of {signed(now.value)} instead of "
            f"{signed(gap.value)}; the difference in size is within its interval {ranged(change)}."
        )
    said = f"{state(now, words)} (gap {signed(now.value)}, {ranged(now)[1:]}"
    if change.value > 0:
        return f"{words.further}: {said}."
    crossed = " and crosses over" if clear(now) and now.value * gap.value < 0 else ""
    size = abs(gap.value) if before is None else before  # gaps of several runs may cancel
    return f"{_cut(1 + change.value / size)}{crossed}: {said}."


def _cut(ratio: float) -> str:
    if ratio < 0.1:
        return "Nearly closes the gap"
    if 0.45 <= ratio <= 0.55:
        return "Halves the gap"
    return f"Cuts the gap by {100 * (1 - ratio):.0f} %"


def _cost(first: Subject, other: Subject) -> str:
    ratios = cost_ratios(first, other)
    parts = [f"{ratios[key]:.2g}× the {name}" for key, name in _COSTS.items() if key in ratios]
    return f"It costs {' and '.join(parts)} of {first.name}." if parts else ""


def cost_ratios(first: Subject, other: Subject) -> dict[str, float]:
    """Each cost relative to the first subject, where both have it.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = {"test": Prediction(torch.eye(2))}
        >>> cost_ratios(Subject("a", p, {"train": 2}), Subject("b", p, {"train": 6}))
        {'train': 3.0}
    """
    base, cost = first.cost or {}, other.cost or {}
    return {key: cost[key] / base[key] for key in base if key in cost and base[key] > 0}
