"""The bars the benchmark has to clear, each with the cells that clear it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import NamedTuple

from gduq_reproduction.molecules.plan import SHIFTS, VALUES
from gduq_reproduction.molecules.scoring import LEVELS, Scores

__all__ = ["Bar", "Found", "bars"]

BEST = "gduq-best"
_OURS = "copies"  # the level `gduq.fit` ends with
_SAID = {"none": "none", "validation": "validation rows", "copies": "shifted copies too"}


class Found(NamedTuple):
    """A method on one split and seed."""

    scores: Scores
    seconds: float


_CELLS = len(VALUES) * len(SHIFTS)
Cell = tuple[str, str]  # dataset and shift
Table = Mapping[tuple[str, str, int], Mapping[str, Found]]  # dataset, shift and seed; method
Read = Callable[[Mapping[str, Found]], float]


@dataclass(frozen=True)
class Bar:
    """One bar.

    Args:
        what: What is compared.
        wanted: The bar.
        got: What was found, in words.
        met: Whether the bar is cleared; ``None`` where nothing can be said yet.
    """

    what: str
    wanted: str
    got: str
    met: bool | None


def bars(table: Table) -> list[Bar]:
    """All bars, on the out-of-distribution test rows unless said otherwise."""
    return [
        _network(table),
        *(_proper(table, measure) for measure in ("nll", "crps")),
        _area(table),
        _conformal(table),
        _time(table),
    ]


def _network(table: Table) -> Bar:
    what, wanted = "RMSE, our network against Chemprop's default", "≤ 1.05× on ≥ 4 of 6 cells"
    pairs = _pairs(table, _of("vanilla", "none", "rmse"), _of("chemprop", "none", "rmse"))
    return _counted(what, wanted, pairs, lambda a, b: a <= 1.05 * b, 4)


def _proper(table: Table, measure: str) -> Bar:
    """Judged against the best of Chemprop's calibrations in hindsight, cell by cell."""
    what = f"{measure.upper()}, G-ΔUQ against Chemprop MVE"
    by_level = {
        level: _pairs(table, _of(BEST, _OURS, measure), _of("chemprop-mve", level, measure))
        for level in LEVELS
    }
    hardest = {
        cell: (ours, min(pairs[cell][1] for pairs in by_level.values()))
        for cell, (ours, _) in by_level[_OURS].items()
    }
    bar = _counted(what, "lower on ≥ 5 of 6 cells", hardest, lambda a, b: a < b, 5)
    if not hardest:
        return bar
    wins = {level: sum(a < b for a, b in pairs.values()) for level, pairs in by_level.items()}
    known = ", ".join(f"{count} with {_SAID[level]}" for level, count in wins.items())
    return replace(bar, got=f"against its best calibration {bar.got}; {known}")


def _area(table: Table) -> Bar:
    what, wanted = "miscalibration area, G-ΔUQ against the plain network", "≤ 0.5× on average"
    pairs = _pairs(
        table, _of(BEST, _OURS, "miscalibration"), _of("vanilla", "none", "miscalibration")
    )
    if not pairs:
        return Bar(what, wanted, "no cell yet", None)
    ours, plain = (statistics.fmean(pair[i] for pair in pairs.values()) for i in (0, 1))
    got = f"{ours:.3f} against {plain:.3f} ({ours / plain:.2f}×) over {_cells(pairs)}"
    return Bar(what, wanted, got, ours <= 0.5 * plain)


def _conformal(table: Table) -> Bar:
    what, wanted = "90 % conformal intervals of G-ΔUQ on ID test", "88–92 % over seeds"
    read = _of(BEST, _OURS, "conformal90", "id_test")
    means = {cell: value for cell, (value, _) in _pairs(table, read, read).items()}
    if not means:
        return Bar(what, wanted, "no cell yet", None)
    mean = statistics.fmean(means.values())
    inside = sum(0.88 <= value <= 0.92 for value in means.values())
    got = f"{mean:.1%} on average; {inside} of {len(means)} cells by themselves"
    return Bar(what, wanted, got, 0.88 <= mean <= 0.92)


def _time(table: Table) -> Bar:
    what, wanted = "training of network and head against Chemprop's, one thread", "≤ 0.5×"
    pairs = _pairs(table, lambda m: m["gduq"].seconds, lambda m: m["chemprop"].seconds)
    if not pairs:
        return Bar(what, wanted, "no cell yet", None)
    ratios = [ours / theirs for ours, theirs in pairs.values()]
    mean = statistics.fmean(ratios)
    got = f"{mean:.2f}× on average, {min(ratios):.2f}–{max(ratios):.2f}× over {_cells(ratios)}"
    return Bar(what, wanted, got, mean <= 0.5)


def _cells(found: Sized) -> str:
    return f"{len(found)} cell{'s' * (len(found) > 1)}"


def _of(method: str, level: str, measure: str, split: str = "ood_test") -> Read:
    return lambda methods: methods[method].scores[level][split][measure]


def _pairs(table: Table, ours: Read, theirs: Read) -> dict[Cell, tuple[float, float]]:
    """Means over the seeds for which both are there, by cell with values."""
    found: dict[Cell, list[tuple[float, float]]] = {}
    for cell, methods in _regression(table):
        try:
            pair = ours(methods), theirs(methods)
        except KeyError:  # one of the two is not there yet
            continue
        found.setdefault(cell, []).append(pair)
    return {cell: (_mean(pairs, 0), _mean(pairs, 1)) for cell, pairs in found.items()}


def _regression(table: Table) -> Iterator[tuple[Cell, Mapping[str, Found]]]:
    for (dataset, shift, _), methods in table.items():
        if dataset in VALUES:
            yield (dataset, shift), methods


def _mean(pairs: Sequence[tuple[float, float]], i: int) -> float:
    return statistics.fmean(pair[i] for pair in pairs)


def _counted(
    what: str,
    wanted: str,
    pairs: Mapping[Cell, tuple[float, float]],
    good: Callable[[float, float], bool],
    least: int,
) -> Bar:
    if not pairs:
        return Bar(what, wanted, "no cell yet", None)
    wins = sum(good(*pair) for pair in pairs.values())
    shown = ", ".join(f"{d}/{s} {a:.3f} : {b:.3f}" for (d, s), (a, b) in pairs.items())
    could = wins + _CELLS - len(pairs)  # if all that is missing clears it
    met = True if wins >= least else None if could >= least else False
    return Bar(what, wanted, f"{wins} of {len(pairs)} ({shown})", met)
