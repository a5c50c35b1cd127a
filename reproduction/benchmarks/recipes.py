"""Which ways to train on with anchors `gduq.choose` should try: validation rows and copies only.

Per cell of the search half and per seed: a plain network is trained, then goes on with anchors in
many ways. Each way is calibrated and mixed with the plain network as `gduq.choose` does it. The
table shows by how much the mixture's loss on validation rows and shifted copies of them (half and
half) falls, and what the way costs in trainings of the network. Training never reads a
shifted split. The seed draws the split too: of cells whose shift is drawn at random, some of these
validation rows are shifted test rows of the table's seeds.

    python reproduction/benchmarks/recipes.py --workers 2 -o out/recipes.csv
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from gduq.errors import InputError
from gduq.jobs.engines import map_cells
from gduq.training.candidates import Plan
from gduq.training.choosing import mixture_weights
from gduq_reproduction.comparison.cells import ShiftCell, cells
from gduq_reproduction.comparison.methods import Work

SEEDS = (100,)  # which no table uses
_BASE = Plan(1.5, 1, 0.25)
_PLACES = [(1, "row"), (-1, "row"), ("input", "row"), ("input", "graph"), ("readout", "row")]
WAYS = [
    *(replace(_BASE, at=at, scope=scope, share=share)
      for at, scope in _PLACES for share in (0.1, 0.25, 0.5)),
    *(replace(_BASE, at=at, scope=scope, mask=mask)
      for at, scope in _PLACES for mask in (0.0, 0.1, 0.2)),
    *(replace(_BASE, at=at, scope=scope, draws=4) for at, scope in _PLACES[2:]),
    *(replace(_BASE, at=at, scope=scope, share=0.75, fresh=1) for at, scope in _PLACES),
]  # fmt: skip


def main() -> None:
    table, output = searched(tried, "recipes")
    text = to_markdown(summary(table))
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def searched(
    job: Callable[[tuple[ShiftCell, int]], list[dict[str, Any]]],
    title: str,
    seeds: Sequence[int] = SEEDS,
) -> tuple[pd.DataFrame, Path]:
    """A job on all cells of the search, its rows as a table, and the file they were written to."""
    parser = argparse.ArgumentParser(description=f"The search of {title}.")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("-o", "--output", type=Path, default=Path(f"out/{title}.csv"))
    options = parser.parse_args()
    jobs = [(cell, seed) for seed in seeds for cell in cells("small") if cell.search]
    found = map_cells(jobs, job, workers=options.workers, title=title, name=str)
    for outcome in found:
        if outcome.error:
            print(outcome.error)
    table = pd.DataFrame([row for outcome in found for row in outcome.value or ()])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.output, index=False, float_format="%.5f")
    return table, options.output


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Per way the mean gain of the mixture, in percent of the plain network's loss, and cost."""
    way = ["task", "at", "scope", "mask", "share", "draws", "fresh"]
    means = table.groupby(way)[["gain", "alone", "weight", "cost"]].mean().reset_index()
    return means.sort_values(["task", "gain"], ascending=[True, False])


def to_markdown(found: pd.DataFrame) -> str:
    lines = [list(found.columns), ["---"] * len(found.columns), *found.round(3).values.tolist()]
    table = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
    return (
        "# What to train on with anchors\n\nGain of the mixture with the plain network and of the "
        "way alone, in percent of the plain network's loss on validation rows and copies (half and "
        "half); the way's weight in the mixture; its cost in trainings of the network. Means over "
        f"the search cells. `python reproduction/benchmarks/recipes.py`\n\n{table}\n"
    )


def tried(job: tuple[ShiftCell, int]) -> list[dict[str, Any]]:
    """All ways on one cell."""
    cell, seed = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    work = Work(cell, seed)
    _ = work.plain
    training, candidates = work.seconds["plain"], work.candidates(1.0)
    base = next(iter(candidates)).losses
    rows = []
    for way in WAYS:
        if cell.on_nodes and (way.scope == "graph" or way.at == "readout"):
            continue
        start = time.process_time()
        try:
            model = candidates.planned(way)
        except InputError as error:
            print(cell.name, way, error)
            continue
        losses = candidates.judged("", 1.0, model, 0.0).losses
        cost = (time.process_time() - start) / training
        both = torch.stack([base, losses])
        weight = mixture_weights(-both, torch.tensor([2.0, 0.0]))
        mixed = -(weight.log()[:, None, None] - both).logsumexp(dim=0)
        rows.append(
            {
                "cell": cell.name, "task": "node" if cell.on_nodes else "graph", "seed": seed,
                "at": str(way.at), "scope": way.scope, "mask": way.mask, "share": way.share,
                "draws": way.draws, "fresh": way.fresh,
                "gain": 100 * (1 - _mean(mixed) / _mean(base)),
                "alone": 100 * (1 - _mean(losses) / _mean(base)), "weight": float(weight[1]),
                "cost": cost,
            }
        )  # fmt: skip
    return rows


def _mean(losses: torch.Tensor) -> float:
    """Half of the weight on validation rows, half on their copies."""
    return float(0.5 * losses[0].mean() + 0.5 * losses[1:].mean())


if __name__ == "__main__":
    main()
