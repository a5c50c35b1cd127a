"""What bars are made of: numbers with a wish, pairs of numbers, shares of cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results_cells import OOD, Cell, Index, Method, joined, mean, rounded

Bar = dict[str, Any]
Part = dict[str, Any]
Pairs = Mapping[Cell, tuple[float, float]]
Measured = tuple[Method, str]  # a method and the metric it is judged by


def part(what: str, value: float | None, sign: str, wanted: float | None, unit: str) -> Part:
    """One number and what was wanted of it; without a wish it is only shown."""
    value = None if value is None else rounded(value)
    met = None
    if value is not None and wanted is not None:
        met = value >= wanted if sign == ">=" else value <= wanted
    return {"what": what, "value": value, "sign": sign, "wanted": wanted, "unit": unit, "met": met}


def bar(name: str, what: str, parts: Sequence[Part], losing: Pairs) -> Bar:
    """A bar is met if all its parts are; unknown if none is known to fail and one is unknown."""
    verdicts = [p["met"] for p in parts if p["wanted"] is not None]
    met = False if False in verdicts else None if None in verdicts else True
    lost = [{"cell": str(cell), "ours": a, "theirs": b} for cell, (a, b) in losing.items()]
    return {"name": name, "what": what, "met": met, "parts": list(parts), "losing": lost}


def pairs_of(
    index: Index, cells: Iterable[Cell], ours: Measured, theirs: Measured, split: str = OOD
) -> dict[Cell, tuple[float, float]]:
    """Both numbers of every cell that has them, each by a metric of its own."""
    found = {}
    for cell in cells:
        a, b = (index.mean(cell, method, metric, split) for method, metric in (ours, theirs))
        if a is not None and b is not None:
            found[cell] = (a, b)
    return found


def mean_or_none(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def share(pairs: Mapping[Any, tuple[float, float]], equal: bool = False) -> float | None:
    """The share of pairs with a lower (or equal) first number."""
    return mean_or_none([a < b or (equal and a == b) for a, b in pairs.values()])


def losing(pairs: Pairs, equal: bool = False) -> Pairs:
    return {c: (a, b) for c, (a, b) in pairs.items() if not (a < b or (equal and a == b))}


def share_parts(pairs: Pairs, least: float, equal: bool = False) -> list[Part]:
    """The share of cells, networks averaged, which is judged, and that of all, which is shown."""
    sets = joined(pairs)
    return [
        part(f"of {len(sets)} cells", share(sets, equal), ">=", least, "share"),
        part(f"of {len(pairs)} with every network by itself", share(pairs, equal), ">=", None,
             "share"),
    ]  # fmt: skip
