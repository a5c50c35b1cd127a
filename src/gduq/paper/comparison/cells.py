"""The cells of the comparison: a dataset with a shift, a network, and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import PNAConv

from gduq.data.catalog import find, load
from gduq.data.splits import Splits
from gduq.nn.bond_gnn import BondGNN
from gduq.nn.gnn import GNN
from gduq.nn.gnn_settings import Conv
from gduq.paper.specs import ScaleName

__all__ = ["Cell", "cells"]

WEIGHT_DECAY = 1e-3


@dataclass(frozen=True)
class Cell:
    """A dataset under shift with a network and its schedule.

    Args:
        data: Name of the dataset and shift.
        conv: The network's convolution; ``"bonds"`` is `gduq.nn.BondGNN`, for molecules.
        epochs: Passes over the training data.
        lr: Learning rate.
        search: Whether recipes were chosen with its validation rows.
        limit: Graphs at most, over all splits.
        batch_size: Graphs per step.
        hidden: Width of the network.
        large: Whether it takes long, so that its turn comes last.
    """

    data: str
    conv: str
    epochs: int
    lr: float = 1e-3
    search: bool = False
    limit: int | None = None
    batch_size: int = 32
    hidden: int = 64
    large: bool = False

    @property
    def name(self) -> str:
        return f"{self.data} {self.conv}"

    @property
    def on_nodes(self) -> bool:
        return find(self.data).task == "node"

    @property
    def shift(self) -> str:
        return self.data.rpartition("/")[2]

    def splits(self, seed: int) -> Splits:
        return load(self.data, seed=seed, limit=self.limit)

    def network(self, splits: Splits, seed: int) -> nn.Module:
        """A network with fresh weights."""
        classes = len(splits.class_names or ()) or int(splits.train.target.max()) + 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.conv == "bonds":
                return BondGNN(out_channels=classes)
            graphs = splits.train.graphs
            degree = None
            if self.conv == "pna":
                degree = PNAConv.get_degree_histogram(DataLoader(list(graphs), 256))
            return GNN(
                graphs[0].x.size(1),
                self.hidden,
                classes,
                num_layers=3,
                conv=cast(Conv, self.conv),
                task="node" if self.on_nodes else "graph",
                head="mlp",
                degree=degree,
            )

    def at(self, scale: ScaleName) -> Cell:
        """The cell at smoke scale: a few rows and epochs, whose figures say nothing."""
        if scale != "smoke":
            return self
        return replace(self, epochs=4, limit=None if self.on_nodes else 200, hidden=16)


def _citation(name: str, epochs: int, search: bool = False, large: bool = False) -> list[Cell]:
    return [
        Cell(f"{name}/{domain}/{shift}", "gcn", epochs, 1e-2, search, large=large)
        for domain in ("degree", "word")
        for shift in ("concept", "covariate")
    ]


_CBAS = [Cell(f"cbas/color/{s}", "gcn", 400, 3e-3, search=True) for s in ("concept", "covariate")]
_MOTIF = [
    Cell(f"motif/{domain}/{shift}", "gin", 30, search=domain == "basis", limit=2000)
    for domain in ("basis", "size")
    for shift in ("concept", "covariate")
]
_CELLS = [
    *_citation("cora-ml", 200, search=True),
    *_CBAS,
    *_citation("citeseer", 200),
    *(Cell(f"webkb/university/{s}", "gcn", 200, 1e-2) for s in ("concept", "covariate")),
    *(Cell("tu/PROTEINS/size", conv, 40, search=conv != "pna") for conv in ("gin", "gcn", "pna")),
    *_MOTIF,
    *(Cell(f"molecules/bace/{s}", "bonds", 30, 3e-3, batch_size=64) for s in ("scaffold", "size")),
    *(Cell(f"molecules/bbbp/{s}", "bonds", 30, 3e-3, batch_size=64) for s in ("scaffold", "size")),
    *(Cell(f"tu/{n}/size", conv, 30, limit=2000) for n in ("NCI1", "NCI109")
      for conv in ("gin", "gcn")),
    *_citation("coauthor-cs", 100, large=True),
]  # fmt: skip


def cells(scale: ScaleName) -> list[Cell]:
    """All cells; at smoke scale only those of generated data."""
    found = [*_CBAS, *_MOTIF[:1]] if scale == "smoke" else _CELLS
    return [cell.at(scale) for cell in found]
