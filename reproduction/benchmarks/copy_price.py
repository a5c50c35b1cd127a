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
from collections.abc import Iterator

import torch

import gduq
from gduq.baselines.network import Network
from gduq.training.finishing import Judged, affordable, judged
from gduq_reproduction.comparison.cells import ShiftCell, cells
from gduq_reproduction.comparison.methods import Work

RULES = ("clean", "no limit", "0.1", "0.05", "0.03", "or clean", "novel")


def temperatures(
    target: gduq.targets.Target, clean: Judged, copies: list[Judged], novelty: list[float]
) -> Iterator[float]:
    """One temperature per rule."""
    alone = target.best_temperature([(clean.outputs, clean.y, 1.0)])

    def limited(sets: list[Judged], price: float) -> float:
        parts = [(one.outputs, one.y, 0.5 / len(sets)) for one in sets]
        both = target.best_temperature([(clean.outputs, clean.y, 0.5), *parts]) if sets else alone
        return affordable(target, clean, both, price)

    yield alone
    yield from (limited(copies, price) for price in (1e9, 0.1, 0.05, 0.03))
    most = limited(copies, 1e9)
    yield most if limited(copies, 0.05) == most else alone
    yield limited([one for one, far in zip(copies, novelty, strict=True) if far <= 0.9], 0.05)


def row(cell: ShiftCell, seed: int) -> tuple[list[float], list[float], list[float]]:
    """Temperatures, and losses of ``id_test`` and ``ood_test``, by rule."""
    work = Work(cell, seed)
    plain = Network(work.plain)
    work.train(plain, epochs=0)
    clean, *tests = (judged(plain, work.views[s], 256) for s in ("id_val", "id_test", "ood_test"))
    copies = [judged(plain, view, 256) for view in work.copies]
    far = [float(gduq.predict(plain, view).novelty.mean()) for view in work.copies]
    target = plain.target
    assert target is not None
    found = list(temperatures(target, clean, copies, far))
    losses = [
        [float(target.nll(target.scaled(t.outputs, torch.tensor(x)), t.y).mean()) for x in found]
        for t in tests
    ]
    return found, losses[0], losses[1]


def main(seed: int = 0, *names: str) -> None:
    """Print a line per cell, then the means."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"| cell | | {' | '.join(RULES)} |\n|---|---|{'---|' * len(RULES)}", flush=True)
    every = []
    for cell in cells("small"):
        if not names or any(name in cell.name for name in names):
            every.append(found := row(cell, seed))
            for what, figures in zip(("T", "ID", "OOD"), found, strict=True):
                shown = " | ".join(f"{x:.3f}" for x in figures)
                print(f"| {cell.name} | {what} | {shown} |", flush=True)
    for i, what in ((1, "ID"), (2, "OOD")):
        means = torch.tensor([found[i] for found in every]).mean(dim=0).tolist()
        print(f"| mean of {len(every)} cells | {what} | {' | '.join(f'{x:.3f}' for x in means)} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
