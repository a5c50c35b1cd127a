"""Do the default intervals of values hold the truth on rows like the training rows, and how wide
are they? What `gduq train` makes of four tables (`BondGNN`, then `choose`), on random test rows.

``GDUQ_DATA=... python reproduction/benchmarks/value_intervals.py [seeds [table ...]]``. ``spread``
is the 5-95 % range of the test values; ``against clean`` is the median width of 90 % intervals over
that with a scale fitted to validation rows alone.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
from torch_geometric.data import Data

import gduq
from gduq.calibration import DeviationScaling
from gduq.data import View
from gduq.data.smiles import molecules

TABLES = {
    "esol": ("esol/raw/delaney-processed.csv", "measured log solubility in mols per litre"),
    "freesolv": ("freesolv/raw/SAMPL.csv", "expt"),
    "lipo": ("lipo/raw/Lipophilicity.csv", "exp"),
}


def generated(count: int = 1150) -> list[Data]:
    """Chains of carbon, nitrogen and oxygen with a value that their atoms decide, and noise."""
    generator, texts = torch.Generator().manual_seed(0), []
    for size in torch.randint(4, 24, (count,), generator=generator).tolist():
        shares = torch.tensor([0.7, 0.15, 0.15])
        drawn = torch.multinomial(shares, size, True, generator=generator).tolist()
        texts.append("C" + "".join("CNO"[i] for i in drawn) + "C")
    graphs = [graph for graph in molecules(texts) if isinstance(graph, Data)]
    for text, graph in zip(texts, graphs, strict=True):
        value = 0.3 * text.count("C") - 0.9 * text.count("NO") - 0.4 * text.count("O")
        graph.y = value + 0.4 * torch.randn(1, generator=generator)
    return graphs


def graphs_of(table: str) -> list[Data]:
    if table == "generated":
        return generated()
    file, column = TABLES[table]
    path = Path(os.environ.get("GDUQ_DATA", "data")) / "MoleculeNet" / file
    return list(gduq.data.read(path, smiles="smiles", targets=[column]))


def row(table: str, graphs: list[Data], seed: int) -> str:
    """One line of the table."""
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split([int(0.6 * len(order)), int(0.75 * len(order))])
    train, val, test = (View([graphs[i] for i in part]) for part in parts)
    torch.manual_seed(seed)
    net = gduq.nn.BondGNN(1)
    gduq.fit(net, train, val, epochs=100, patience=15, calibrate=None, seed=seed, progress=False)
    model = gduq.choose(net, train, val, seed=seed, progress=False)
    p = gduq.predict(model, test)
    clean = DeviationScaling().fit(gduq.predict(model, val))(p)
    (low, high), (least, most) = p.interval(0.9), clean.interval(0.9)
    y, std, width = test.target.flatten(), p.std.flatten(), (high - low).median()
    low, high = low.flatten(), high.flatten()
    cells = {
        "RMSE": (p.mean.flatten() - y).square().mean().sqrt(),
        "width": width,
        "spread": y.quantile(0.95) - y.quantile(0.05),
        "holds": ((y >= low) & (y <= high)).float().mean(),
        "against clean": width / (most - least).median(),
        "std 5 %": std.quantile(0.05),
        "std 95 %": std.quantile(0.95),
    }
    return f"| {table} | {seed} | " + " | ".join(f"{v:.2f}" for v in cells.values()) + " |"


def main(seeds: str = "3", *tables: str) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| table | seed | RMSE | width | spread | holds | against clean | std 5 % | std 95 % |")
    print("|" + "---|" * 9, flush=True)
    for table in tables or ("generated", *TABLES):
        graphs = graphs_of(table)
        for seed in range(int(seeds)):
            print(row(table, graphs, seed), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
