"""A dataset: a family of names that a package offers to gduq by an entry point."""

from pathlib import Path

import torch
from torch_geometric.data import Data

import gduq
from gduq import shifts
from gduq.data import Splits
from gduq.data.catalog import Family


def ring(nodes: int, generator: torch.Generator) -> Data:
    """A ring; its class says whether the first feature is above zero on average."""
    line = torch.arange(nodes)
    edges = torch.stack([line, line.roll(1)])
    x = torch.randn(nodes, 3, generator=generator)
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=int(x[:, 0].sum() > 0))


def load_rings(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    """What `gduq.data.load` calls: ``parts`` is the name at its slashes, the last is the shift."""
    generator = torch.Generator().manual_seed(seed)
    graphs = [ring(4 + i % 30, generator) for i in range(300)]
    kind = "no_shift" if parts[-1] == "no_shift" else "covariate"
    return shifts.size(graphs, kind, seed=seed)


FAMILIES = {
    "rings/size": Family(
        task="graph",
        rows="300 graphs",
        classes=2,
        domain="size of the ring",
        source="generated on the spot",
        load=load_rings,
        shifts=("covariate", "no_shift"),
    )
}

if __name__ == "__main__":  # with the entry point installed
    splits = gduq.data.load("rings/size/covariate", seed=1)
    print({name: len(view) for name, view in splits})
    net = gduq.nn.GNN(3, 16, 2, num_layers=2, head="mlp")
    gduq.fit(net, splits.train, splits.id_val, epochs=3)
    model = gduq.anchor(net)
    gduq.fit(model, splits.train, splits.id_val)
    print(gduq.predict(model, splits.ood_test))
