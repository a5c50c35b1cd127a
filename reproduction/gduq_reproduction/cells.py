"""Cells: a dataset under shift, a network, and how it is trained; those of all tables, by scale."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import PNAConv

import gduq
from gduq.data import Splits
from gduq.data.catalog import find
from gduq_reproduction.networks import EdgeGNN

__all__ = ["Cell", "Scale", "comparison_cells", "molecule_cells", "scaled"]

Scale = Literal["smoke", "small", "paper"]


@dataclass(frozen=True)
class Cell:
    """A dataset under shift, a network, its schedule; options of `gduq.fit` and `gduq.nn.GNN`."""

    data: str  # name of the dataset and shift
    conv: str = "gin"  # "bonds" is `gduq.nn.BondGNN`, for molecules
    epochs: int = 200  # at most, with patience
    lr: float = 1e-3
    num_layers: int = 3
    hidden: int = 300
    head: str = "linear"
    dropout: float = 0.5
    readout: str = "mean"
    virtual_node: bool = False
    positional: str | None = None  # "stable": distances of encodings, see `networks.EdgeGNN`
    batch_size: int = 32
    weight_decay: float = 0.0
    patience: int | None = None
    falls: tuple[float, ...] = ()  # the learning rate falls to 0.3 after these shares of epochs
    more_epochs: int = 0  # for anchors, as in the paper
    limit: int | None = None  # graphs at most, over all splits
    seeds: int | None = None  # at most, where it takes long
    bank: Literal["train", "id_val"] = "train"  # whose rows anchors of prediction are, if they move
    # One training gives both choices of weights: those it ends with, maybe by patience, are the
    # last epoch's. Else the last epoch's are trained without validation rows.
    both: bool = False

    @property
    def model(self) -> str:
        """Short name of the network: ``vgin`` has a virtual node, ``+lpe`` encodings."""
        encoded = "+lpe" if self.positional and not self.data.startswith("motif") else ""
        return f"{'v' if self.virtual_node else ''}{self.conv}{encoded}"

    @property
    def name(self) -> str:
        return f"{self.data} {self.model}"

    @property
    def task(self) -> Literal["node", "graph"]:
        return "node" if find(self.data).task == "node" else "graph"

    @property
    def settings(self) -> str:
        """Tells figures of these settings from those of others."""
        newer = [("bank", "train"), ("both", False)]  # which figures that are there do not know
        told = {k: v for k, v in asdict(self).items() if k != "seeds" and (k, v) not in newer}
        return hashlib.sha256(repr(sorted(told.items())).encode()).hexdigest()[:8]

    @property
    def schedule(self) -> dict[str, Any]:
        """Options of `gduq.fit` and `gduq.choose`."""
        return {k: getattr(self, k) for k in ("epochs", "lr", "batch_size", "weight_decay")}

    def network(self, splits: Splits, seed: int) -> nn.Module:
        """A network with fresh weights."""
        truth = splits.train.target
        classes = len(splits.class_names) or int(truth.max()) + 1
        outputs = 1 if truth.is_floating_point() else classes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.conv == "bonds":
                return gduq.nn.BondGNN(out_channels=outputs)
            graphs, degree = splits.train.graphs, None
            if self.conv == "pna":
                degree = PNAConv.get_degree_histogram(DataLoader(list(graphs), 256))
            channels = 0 if graphs[0].x is None else graphs[0].x.size(1)  # encodings alone
            return self.network_of(channels, outputs, degree=degree)

    def network_of(self, channels: int, outputs: int, **changes: Any) -> gduq.nn.GNN:
        """A network for features and outputs of given widths."""
        names = ("num_layers", "head", "dropout", "readout", "virtual_node", "positional", "conv")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        options |= {"task": self.task, **changes}
        if self.conv not in ("gated_gcn", "gps"):
            return gduq.nn.GNN(channels, self.hidden, outputs, **options)
        options["positional"], stable = None, self.positional == "stable"
        return EdgeGNN(channels, self.hidden, outputs, **options, stable=stable)


_OF_MOLECULES = ("scaffold", "size")


def _both(data: str, *options: Any, **more: Any) -> list[Cell]:
    """Under concept and covariate shift."""
    return [Cell(f"{data}/{shift}", *options, **more) for shift in ("concept", "covariate")]


# -- the paper's tables --------------------------------------------------------------------------

# As published. GOOD takes ten sampled steps an epoch on one graph; here an epoch is one step on all
# of it. Cora twice: two datasets stand in for it at small scale.
WEBKB, CBAS = _both("webkb/university", "gcn", 1000), _both("cbas/color", "gcn", 2000, 3e-3)
CORA = [cell for d in ("degree", "word") for cell in _both(f"cora/{d}", "gcn", 1000)]
NODES = [*WEBKB, *CORA, *CBAS]
_MORE: dict[str, Any] = {"more_epochs": 50}
_VIRTUAL = {**_MORE, "virtual_node": True}
CMNIST = _both("cmnist/color", "gin", 500, num_layers=5, batch_size=128, **_VIRTUAL)
MOTIF_BASIS, MOTIF_SIZE = (
    _both(f"motif-exact/{d}", positional="laplacian", **_MORE) for d in ("basis", "size")
)
_NOISY = [replace(cell, data=cell.data.replace("exact", "lpe")) for cell in MOTIF_BASIS]
_SST2 = _both("sst2/length", **_VIRTUAL)
SST2 = [replace(_SST2[0], epochs=100), replace(_SST2[1], epochs=200)]
GRAPHS = [*SST2, *MOTIF_BASIS, *CMNIST, *_NOISY]
_DIGITS = {**_MORE, "dropout": 0.0}  # as GraphGPS has it for superpixels
ROTATION = [
    Cell("rotmnist/rotation", conv, 100, num_layers=4, hidden=64, positional=places, **_DIGITS)
    for conv, places in (("gated_gcn", None), ("gated_gcn", "stable"), ("gps", "stable"))
]
NOISE = [replace(cell, data="rotmnist/noise") for cell in ROTATION[:2]]
# SizeShiftReg's networks, whose set-up the paper follows; they take longest
_SIZES: dict[str, Any] = {"head": "mlp", "readout": "sum", "dropout": 0.3, "patience": 100}
_NCI = (("gcn", 5e-3, 128, 64), ("gin", 5e-3, 128, 32), ("pna", 5e-3, 128, 32))
_PROTEINS = (("gcn", 1e-3, 128, 32), ("gin", 1e-2, 128, 32), ("pna", 1e-3, 64, 64))
SIZES = [
    Cell(f"tu/{name}/size", conv, 1000, lr, batch_size=batch, hidden=hidden, seeds=2, **_SIZES)
    for name, networks in (("PROTEINS", _PROTEINS), ("NCI1", _NCI), ("NCI109", _NCI))
    for conv, lr, batch, hidden in networks
]  # fmt: skip

# At small scale: width 64, a head of two layers, and this by dataset
_SMALL: dict[str, dict[str, Any]] = {
    "webkb": {"epochs": 400},
    "cbas": {"epochs": 400},
    "cmnist": {"limit": 2000, "epochs": 20},
    **{name: {"limit": 2000, "epochs": 50} for name in ("motif-exact", "motif-lpe")},
    "sst2": {"limit": 6000, "epochs": 50},
    "rotmnist": {"limit": 12000, "epochs": 5},
    "tu": {"epochs": 60, "patience": None, "lr": 1e-3, "batch_size": 32},
}


# At paper scale: as published, but for the epochs of graph tasks, which two cores cannot take
_LETTER: dict[str, Any] = {"bank": "id_val"}
_ALL_GRAPHS = {**_LETTER, "epochs": 50, "more_epochs": 0, "patience": 8, "both": True}
_NARROWER = {"hidden": 64, "epochs": 15, "seeds": 1}  # CMNIST, which takes longest


def scaled(cells: list[Cell], scale: Scale) -> list[Cell]:
    """Cells of the paper at a scale; smoke: one of generated data, whose figures say nothing."""
    if scale == "paper":
        found = {"node": _LETTER, "graph": _ALL_GRAPHS}
        narrower = {cell.data: _NARROWER for cell in CMNIST}
        return [replace(c, **found[c.task] | narrower.get(c.data, {})) for c in cells]
    if scale == "smoke":
        data = "cbas/color/concept" if cells[0].task == "node" else "motif/basis/covariate"
        changes: dict[str, Any] = {"data": data, "epochs": 10, "positional": None}
        changes |= {} if cells[0].task == "node" else {"epochs": 3, "limit": 240}
        changes |= {"conv": "gin"} if cells[0].conv == "gated_gcn" else {}  # which reads positions
        return [replace(cells[0], **_NARROW, hidden=16, num_layers=3, **changes)]
    return [small for cell in cells for small in _small(cell)]


_NARROW: dict[str, Any] = {"head": "mlp", "batch_size": 32, "more_epochs": 0}


def _small(cell: Cell) -> list[Cell]:
    family, _, rest = cell.data.partition("/")
    changes = {**_NARROW, "hidden": min(cell.hidden, 64), "weight_decay": 1e-3}
    if family != "cora":
        return [replace(cell, **(changes | _SMALL[family]))]
    return [
        replace(cell, **changes, data=f"{name}/{rest}", epochs=epochs, lr=1e-2)
        for name, epochs in (("cora-ml", 200), ("coauthor-cs", 100))
    ]


# -- the comparison of methods -------------------------------------------------------------------

_OURS: dict[str, Any] = {"hidden": 64, "head": "mlp", "weight_decay": 1e-3}


def _citation(name: str, epochs: int) -> list[Cell]:
    both = (_both(f"{name}/{d}", "gcn", epochs, 1e-2, **_OURS) for d in ("degree", "word"))
    return [cell for cells in both for cell in cells]


def _bonds(name: str, shift: str, epochs: int = 30, **changes: Any) -> Cell:
    options = {**_OURS, "batch_size": 64, **changes}
    return Cell(f"molecules/{name}/{shift}", "bonds", epochs, 3e-3, **options)


# four features: more dropout than this leaves too little of them
_OUR_CBAS = _both("cbas/color", "gcn", 1000, 3e-3, dropout=0.2, **_OURS)
_OUR_MOTIF = [*_both("motif/basis", "gin", 30, limit=2000, **_OURS),
              *_both("motif/size", "gin", 30, limit=2000, **_OURS)]  # fmt: skip
_COMPARED = [
    *_citation("cora-ml", 200),
    *_OUR_CBAS,
    *_citation("citeseer", 200),
    *_both("webkb/university", "gcn", 200, 1e-2, **_OURS),
    *(Cell("tu/PROTEINS/size", conv, 40, **_OURS) for conv in ("gin", "gcn", "pna")),
    *_OUR_MOTIF,
    *(_bonds(name, s) for name in ("bace", "bbbp") for s in _OF_MOLECULES),
    *(Cell(f"tu/{name}/size", conv, 30, limit=2000, **_OURS)
      for name in ("NCI1", "NCI109") for conv in ("gin", "gcn")),
    *_citation("coauthor-cs", 100),
]  # fmt: skip
# whose validation rows recipes were chosen with
SEARCHED = ("cora-ml/", "cbas/", "motif/basis/", "tu/PROTEINS/size gin", "tu/PROTEINS/size gcn")


def comparison_cells(scale: Scale) -> list[Cell]:
    """Of our comparison; at paper scale those whose published networks two cores can train."""
    if scale == "small":
        return _COMPARED
    if scale == "paper":
        return [replace(cell, patience=200) for cell in (*WEBKB, *CBAS)] + SIZES
    few = (_OUR_CBAS[0], _OUR_MOTIF[0])
    return [replace(c, epochs=4, hidden=16, limit=c.limit and 200) for c in few]


def molecule_cells(scale: Scale) -> list[Cell]:
    """Molecules, the small tables first; the learning rate falls as `gduq.nn.BondGNN` advises."""
    names = ("freesolv", "bace", "esol", "bbbp", "lipo")[: 2 if scale == "smoke" else None]
    epochs, falls = 2 if scale == "smoke" else 50, (0.6, 0.84)
    changes: dict[str, Any] = {"falls": falls, "weight_decay": 0.0}
    return [_bonds(name, shift, epochs, **changes) for name in names for shift in _OF_MOLECULES]
