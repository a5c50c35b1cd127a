"""Statements of the verdict about what another subject changes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gduq.metrics import Interval
from gduq.report import wording
from gduq.report.differences import change, clear
from gduq.report.subject import Subject
from gduq.report.wording import Words, points, ranged, signed, state, words_of

__all__ = ["changed", "cost_ratios", "nearer_words"]

_COSTS = {"train_seconds": "training time", "predict_seconds": "prediction time"}


def changed(first: Subject, other: Subject, split: str, gap: Interval) -> tuple[str, int]:
    """What another subject changes, and whether all in all for the better (1) or worse (-1)."""
    if other.labelled(split) is None:
        return f"It has no labelled predictions on {split}.", 0
    nearer = change("distance", first, other, split)
    if nearer is None:
        return f"It was judged on other rows of {split}, so no difference is claimed.", 0
    # gaps of several runs may cancel, so their sizes are averaged
    before = fmean(abs(run.number("gap", split).value) for run in first.each_run)
    told = [nearer_words(nearer, gap, other.number("gap", split), before, words_of(first))]
    signs, text = (_errors if first.kind == "values" else _answers)(first, other, split)
    told += [text, _cost(first, other)]
    return " ".join(filter(None, told)), _balance([-_sign(nearer), *signs])


def _sign(change: Interval | None) -> int:
    """1 or -1 for a clear change, 0 for none."""
    return 0 if change is None or not clear(change) else 1 if change.value > 0 else -1


def _balance(signs: Sequence[int]) -> int:
    """Better only where nothing is worse."""
    return (max(signs) > 0) - (min(signs) < 0)


def _answers(first: Subject, other: Subject, split: str) -> tuple[list[int], str]:
    """Accuracy, and balanced accuracy where it tells another story; 1 is better."""
    plain, fair = (change(m, first, other, split) for m in ("accuracy", "balanced_accuracy"))
    assert plain is not None
    signs, text = [_sign(plain), _sign(fair)], _in_points("Accuracy", plain)
    if fair is None or signs[1] in (0, signs[0]):
        return signs, text
    text += " " + _in_points("Balanced accuracy", fair)
    if first.kind == "classes":  # the class whose recall changes most
        before = {r.name: r.share for r in wording.recalls(first, split)}
        now = wording.recalls(other, split)
        name, share, _ = max(now, key=lambda r: abs(r.share - before[r.name]))
        text += f" It finds {100 * share:.0f} % of “{name}” instead of {100 * before[name]:.0f} %."
    return signs, text


def _in_points(name: str, change: Interval) -> str:
    """A change of a share of rows."""
    if change == (0.0, 0.0, 0.0):
        return f"{name} is the same."
    if not clear(change):
        return f"{name}: no clear change ({signed(change.value)} points, {ranged(change)})."
    word = "higher" if change.value > 0 else "lower"
    return f"{name} is {points(abs(change.value))} {word} ({ranged(change)})."


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
    return [-_sign(differs)], f"{name} is {'higher' if differs.value > 0 else 'lower'}: {shown}."


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
