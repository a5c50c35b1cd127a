"""Evidence behind the price of shifted copies: what a temperature from them gains and costs.

``GDUQ_DATA=... python reproduction/benchmarks/copy_price.py [seed] [part of a cell ...]`` trains
the plain networks of the comparison and prints, per cell, temperature and mean negative
log-likelihood of ``id_test`` and ``ood_test`` for several rules: validation rows alone (``clean``),
these and copies half and half without a limit, with a limit on what validation rows may lose (0.1,
0.05 and 0.03 nats), with ``clean`` instead wherever they lose more than 0.05 (``or clean``), and
with a limit of 0.05 for copies whose mean novelty is at most 0.9 (``novel``).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.optimize import brentq, minimize_scalar

import gduq
from gduq import ClassPrediction, metrics
from gduq_reproduction.cells import Cell, comparison_cells
from gduq_reproduction.methods import METHODS, Work

RULES = ("clean", "no limit", "0.1", "0.05", "0.03", "or clean", "novel")


def loss(p: ClassPrediction, temperature: float) -> float:
    """Mean negative log-likelihood at a temperature."""
    return metrics.nll(ClassPrediction(p.samples / temperature, p.target, weights=p.weights))


def best(clean: ClassPrediction, copies: Sequence[ClassPrediction], price: float = 1e9) -> float:
    """The temperature of clean rows and copies, half and half, by which clean rows lose at most
    ``price``."""

    def both(log: float) -> float:
        shifted = np.mean([loss(p, np.exp(log)) for p in copies]) if copies else 0.0
        return 0.5 * loss(clean, np.exp(log)) + 0.5 * float(shifted)

    found = float(np.exp(minimize_scalar(both, bounds=(-3.0, 5.0), method="bounded").x))
    if price > 1e8 or not copies:
        return found
    alone = best(clean, ())
    most = loss(clean, alone) + price
    if loss(clean, found) <= most:
        return found
    return float(brentq(lambda t: loss(clean, t) - most, alone, found))


def temperatures(
    clean: ClassPrediction, copies: Sequence[ClassPrediction], novelty: Sequence[float]
) -> Iterator[float]:
    """One temperature per rule."""
    alone, most = best(clean, ()), best(clean, copies)
    yield alone
    yield from (best(clean, copies, price) for price in (1e9, 0.1, 0.05, 0.03))
    yield most if loss(clean, most) - loss(clean, alone) <= 0.05 else alone
    yield best(clean, [p for p, far in zip(copies, novelty, strict=True) if far <= 0.9], 0.05)


def row(cell: Cell, seed: int) -> list[list[float]]:
    """Temperatures, and losses of ``id_test`` and ``ood_test``, by rule."""
    work = Work(cell, seed)
    plain = METHODS["plain"](work)
    clean, *tests = (gduq.predict(plain, work.views[s]) for s in ("id_val", "id_test", "ood_test"))
    copies = [gduq.predict(plain, view) for view in work.copies]
    found = list(temperatures(clean, copies, [float(p.novelty.mean()) for p in copies]))
    return [found, *([loss(p, t) for t in found] for p in tests)]


def main(seed: int = 0, *names: str) -> None:
    """Print a line per cell, then the means."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"| cell | | {' | '.join(RULES)} |\n|---|---|{'---|' * len(RULES)}", flush=True)
    every = []
    for cell in comparison_cells("small"):
        if not names or any(name in cell.name for name in names):
            every.append(found := row(cell, seed))
            for what, figures in zip(("T", "ID", "OOD"), found, strict=True):
                shown = " | ".join(f"{x:.3f}" for x in figures)
                print(f"| {cell.name} | {what} | {shown} |", flush=True)
    means = np.mean(every, axis=0)
    for i, what in ((1, "ID"), (2, "OOD")):
        shown = " | ".join(f"{x:.3f}" for x in means[i])
        print(f"| mean of {len(every)} cells | {what} | {shown} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
