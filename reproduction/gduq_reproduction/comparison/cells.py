"""The cells of the comparison: a dataset with a shift, a network, and how it is trained."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import PNAConv

from gduq.data.catalog import find, load
from gduq.data.splits import Splits
from gduq.nn.bond_gnn import BondGNN
from gduq.nn.gnn import GNN
from gduq.nn.gnn_settings import Conv, HeadKind, Readout
from gduq.training.candidates import PLANS
from gduq_reproduction.specs import ScaleName

__all__ = ["ShiftCell", "cells"]


@dataclass(frozen=True)
class ShiftCell:
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
        head: ``"mlp"`` or ``"linear"``, as `gduq.nn.GNN` has them, and so are the next two.
        dropout: Probability.
        readout: Of a graph task.
        weight_decay: Of every method alike.
        patience: Stop after so many epochs without a lower validation loss.
        calibrators: Whether all calibrators of the paper are tried.
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
    head: HeadKind = "mlp"
    dropout: float = 0.5
    readout: Readout = "mean"
    weight_decay: float = 1e-3
    patience: int | None = None
    calibrators: bool = False
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

    def fingerprint(self, part: str) -> str:
        """Tells figures of these settings from those of others: of what is trained, and of what
        `gduq.choose` tries where that is shown. Other changes of `gduq.choose` need a new root."""
        told = {k: v for k, v in asdict(self).items() if k not in ("search", "large")}
        text = repr(sorted(told.items())) + (repr(PLANS) if part == "methods" else "")
        return hashlib.sha256(text.encode()).hexdigest()[:8]

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
                dropout=self.dropout,
                head=self.head,
                readout=self.readout,
                degree=degree,
            )

    def at(self, scale: ScaleName) -> ShiftCell:
        """The cell at smoke scale: a few rows and epochs, whose figures say nothing."""
        if scale != "smoke":
            return self
        return replace(self, epochs=4, limit=None if self.on_nodes else 200, hidden=16)


_SHIFTS, _OF_MOLECULES, _CONVS = (
    ("concept", "covariate"),
    ("scaffold", "size"),
    ("gin", "gcn", "pna"),
)


def _citation(name: str, epochs: int, search: bool = False) -> list[ShiftCell]:
    return [
        ShiftCell(f"{name}/{domain}/{shift}", "gcn", epochs, 1e-2, search)
        for domain in ("degree", "word")
        for shift in _SHIFTS
    ]


_CBAS = [  # four features: more dropout than this leaves too little of them
    ShiftCell(f"cbas/color/{s}", "gcn", 1000, 3e-3, search=True, dropout=0.2) for s in _SHIFTS
]
_MOTIF = [
    ShiftCell(f"motif/{domain}/{shift}", "gin", 30, search=domain == "basis", limit=2000)
    for domain in ("basis", "size")
    for shift in _SHIFTS
]
_CELLS = [
    *_citation("cora-ml", 200, search=True),
    *_CBAS,
    *_citation("citeseer", 200),
    *(ShiftCell(f"webkb/university/{s}", "gcn", 200, 1e-2) for s in _SHIFTS),
    *(ShiftCell("tu/PROTEINS/size", conv, 40, search=conv != "pna") for conv in _CONVS),
    *_MOTIF,
    *(ShiftCell(f"molecules/bace/{s}", "bonds", 30, 3e-3, batch_size=64) for s in _OF_MOLECULES),
    *(ShiftCell(f"molecules/bbbp/{s}", "bonds", 30, 3e-3, batch_size=64) for s in _OF_MOLECULES),
    *(ShiftCell(f"tu/{n}/size", conv, 30, limit=2000)  # PNA: at paper scale only
      for n in ("NCI1", "NCI109") for conv in _CONVS[:2]),
    *_citation("coauthor-cs", 100),
]  # fmt: skip


# As published: GOOD's configurations for one graph (its ten sampled steps per epoch are ten epochs
# here), and those of SizeShiftReg, which the paper follows for sizes. Epochs are the most: weights
# are picked by validation loss, and training ends when it has not fallen for long.
_GOOD: dict[str, Any] = {
    "hidden": 300,
    "head": "linear",
    "weight_decay": 0.0,
    "patience": 200,
    "calibrators": True,
}
_SIZES: dict[str, Any] = {
    "readout": "sum",
    "dropout": 0.3,
    "weight_decay": 0.0,
    "patience": 100,
    "large": True,
}
_PAPER = [
    *(ShiftCell(f"webkb/university/{s}", "gcn", 1000, 1e-3, **_GOOD) for s in _SHIFTS),
    *(ShiftCell(f"cbas/color/{s}", "gcn", 2000, 3e-3, **_GOOD) for s in _SHIFTS),
    *(
        ShiftCell(f"tu/{name}/size", conv, 1000, lr, batch_size=batch, hidden=hidden, **_SIZES)
        for name, conv, lr, batch, hidden in (
            ("PROTEINS", "gcn", 1e-3, 128, 32),
            ("PROTEINS", "gin", 1e-2, 128, 32),
            ("PROTEINS", "pna", 1e-3, 64, 64),
            *((n, c, 5e-3, 128, h) for n in ("NCI1", "NCI109")
              for c, h in (("gcn", 64), ("gin", 32), ("pna", 32))),
        )
    ),
]  # fmt: skip


def cells(scale: ScaleName) -> list[ShiftCell]:
    """All cells; at smoke scale only those of generated data, at paper scale those whose published
    networks and schedules two cores can train."""
    found = {"smoke": [*_CBAS, *_MOTIF[:1]], "small": _CELLS, "paper": _PAPER}[scale]
    return [cell.at(scale) for cell in found]
