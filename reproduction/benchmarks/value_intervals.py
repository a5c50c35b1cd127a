"""Evidence behind the default intervals of values: do they hold the truth, and how wide are they?

``GDUQ_DATA=... python reproduction/benchmarks/value_intervals.py [seeds]`` prints a row per table
and seed: what ``gduq train`` makes of it (`BondGNN`, then `gduq.choose`), on random test rows,
which are like the training rows. ``against clean`` is the median width of 90 % intervals over that
of the same model with a scale fitted to validation rows alone; ``spread`` is the 5-95 % range of
the test values.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch_geometric.data import Data

import gduq
from gduq.calibration import DeviationScaling
from gduq.data import View

TABLES = {
    "esol": (
        "MoleculeNet/esol/raw/delaney-processed.csv",
        "measured log solubility in mols per litre",
    ),
    "freesolv": ("MoleculeNet/freesolv/raw/SAMPL.csv", "expt"),
    "lipo": ("MoleculeNet/lipo/raw/Lipophilicity.csv", "exp"),
}


def generated(count: int = 1150) -> list[Data]:
    """Chains of carbon, nitrogen and oxygen with a value that their atoms decide, and noise."""
    from torch_geometric.utils import from_smiles

    generator = torch.Generator().manual_seed(0)
    graphs = []
    for _ in range(count):
        size = int(torch.randint(4, 24, (1,), generator=generator))
        letters = torch.multinomial(
            torch.tensor([0.7, 0.15, 0.15]), size, True, generator=generator
        )
        text = "C" + "".join("CNO"[i] for i in letters) + "C"
        graph = from_smiles(text)
        noise = 0.4 * float(torch.randn(1, generator=generator))
        graph.y = torch.tensor(
            [0.3 * text.count("C") - 0.9 * text.count("NO") - 0.4 * text.count("O") + noise]
        )
        del graph.smiles
        graphs.append(graph)
    return graphs


def tables(root: Path) -> Iterator[tuple[str, list[Data]]]:
    """The graphs of every table."""
    yield "generated", generated()
    for name, (file, column) in TABLES.items():
        yield name, list(gduq.data.read(root / file, smiles="smiles", targets=[column]))


def row(name: str, graphs: list[Data], seed: int) -> str:
    """One line of the table."""
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed)).tolist()
    ends = [int(share * len(order)) for share in (0.6, 0.75)]
    train, val, test = (
        View([graphs[i] for i in part])
        for part in (order[: ends[0]], order[ends[0] : ends[1]], order[ends[1] :])
    )
    torch.manual_seed(seed)
    net = gduq.nn.BondGNN(1)
    options = {"epochs": 100, "patience": 15, "seed": seed, "progress": False}
    gduq.fit(net, train, val, calibrate=None, **options)
    model = gduq.choose(net, train, val, seed=seed, progress=False)
    p = gduq.predict(model, test)
    low, high = p.interval(0.9)
    y, width = test.target.flatten(), (high - low).flatten()
    held = ((y >= low.flatten()) & (y <= high.flatten())).float().mean()
    how = p.calibrated
    clean_low, clean_high = DeviationScaling().fit(gduq.predict(model, val))(p).interval(0.9)
    clean = (clean_high - clean_low).flatten()
    rmse = (p.mean.flatten() - y).square().mean().sqrt()
    spread = y.quantile(0.95) - y.quantile(0.05)
    std = p.std.flatten()
    error = (p.mean.flatten() - y).abs()
    ranks = torch.stack([std.argsort().argsort(), error.argsort().argsort()]).float()
    cells = [
        name, seed, f"{rmse:.2f}", f"{width.median():.2f}", f"{spread:.1f}", f"{held:.0%}",
        f"{width.median() / clean.median():.2f}", how,
        f"{std.quantile(0.05):.2f}-{std.quantile(0.95):.2f}", f"{torch.corrcoef(ranks)[0, 1]:.2f}",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def main(seeds: int = 3) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    head = (
        "table, seed, RMSE, width, spread, holds, against clean, calibrated, std 5-95 %, "
        "rank correlation of std and error"
    )
    print("| " + " | ".join(head.split(", ")) + " |\n|" + "---|" * 10, flush=True)
    for name, graphs in tables(Path(os.environ.get("GDUQ_DATA", "data"))):
        for seed in range(seeds):
            print(row(name, graphs, seed), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
