"""Tables that are not trained and evaluated: who makes their numbers, and who draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gduq.paper import gaussians, ntk, parameters, runtime
from gduq.paper.specs import ScaleName, Table

__all__ = ["PRODUCERS", "Producer", "work"]

Made = dict[str, Any]  # "numbers": (key, value) pairs; "data": what figures are drawn from


def _no_figures(root: Path, name: str, scale: str, data: Sequence[Any]) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Producer:
    """How a table is made.

    Args:
        cells: What there is to do at a scale; sent to workers.
        make: One cell's ``numbers`` and ``data``.
        title: What to call a cell.
        draw: Pictures from the data of all cells, as file names.
        alone: Whether only one cell may run at a time.
    """

    cells: Callable[[Table, ScaleName], Sequence[Any]]
    make: Callable[[Any], Made]
    title: Callable[[Any], str] = str
    draw: Callable[[Path, str, str, Sequence[Any]], tuple[str, ...]] = _no_figures
    alone: bool = False


PRODUCERS: dict[str, Producer] = {
    "runtime": Producer(runtime.cells, runtime.make, runtime.title, alone=True),
    "parameters": Producer(parameters.cells, parameters.make, parameters.title),
    "gaussians": Producer(gaussians.cells, gaussians.make, gaussians.title, gaussians.draw),
    "ntk": Producer(ntk.cells, ntk.make, ntk.title, ntk.draw),
}


def work(cell: tuple[str, Any]) -> Made:
    """What a worker does with a cell: a producer's name and one of its cells."""
    name, item = cell
    return PRODUCERS[name].make(item)
