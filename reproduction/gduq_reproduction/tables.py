"""Every table and figure of the paper by name, our comparison of methods, and molecules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gduq.errors import one_of
from gduq_reproduction import cells as known
from gduq_reproduction import other_tables as other
from gduq_reproduction.cells import Cell, Scale
from gduq_reproduction.chemprop import CHEMPROP
from gduq_reproduction.harness import Job, Rows
from gduq_reproduction.methods import LAST
from gduq_reproduction.scoring import LEVELS, POST_HOC, PUBLISHED, work_rows

__all__ = ["TABLES", "Table", "find_table"]

ALL = (*LEVELS, *POST_HOC, *PUBLISHED)
_SEEDS: dict[Scale, int] = {"smoke": 1, "small": 3, "paper": 10}
_SUPERPIXELS = "Superpixels are ours (SLIC), not the released graphs."


@dataclass(frozen=True)
class Table:
    """What is compared on which cells, and which figures are shown."""

    title: str
    cells: Callable[[Scale], Sequence[Cell]]
    methods: Callable[[Cell, Scale], Sequence[str]]  # names of `gduq_reproduction.methods.METHODS`
    measures: tuple[str, ...] = ("accuracy", "ece100", "ece", "nll", "brier", "aurc")
    splits: tuple[str, ...] = ("ood_test", "id_test")  # a block per measure and split
    last: bool = True  # whether weights of the last epoch, as the paper takes them, are there too
    labels: tuple[str, ...] = ()  # numbers of tables and figures in the paper
    seeds: int = 3  # how many the paper has; fewer at smaller scales
    calibrations: tuple[str, ...] = ALL  # of every method; tables of one store have the same
    store: str = "paper"  # tables with the same one share their figures
    rows: Rows = work_rows  # makes the figures of a job
    note: str = ""  # what to know when reading it

    def jobs(
        self, scale: Scale, seeds: int | None, root: Path, chemprop: Path | None = None
    ) -> list[Job]:
        """All jobs: every cell and method with one seed, then with the next. The published networks
        of nodes have the weights of the last epoch only: the comparison has picked ones."""
        options = (self.calibrations,) if self.rows is work_rows else ()
        ends = {"node": (LAST,) if scale == "paper" else ("", LAST), "graph": ("", LAST)}
        return [
            Job(cell, seed, name + end, self.rows, options, root, chemprop)
            for seed in range(seeds or min(self.seeds, _SEEDS[scale]))
            for cell in self.cells(scale)
            if seeds is not None or seed < (cell.seeds or seed + 1)
            for name in self.methods(cell, scale)
            for end in (ends[cell.task] if self.last else ("",))
        ]


def _paper(
    title: str, cells: list[Cell], methods: Sequence[str], /, *labels: str, **more: Any
) -> Table:
    """A table of trained networks."""
    options = {"labels": labels, "cells": lambda s: known.scaled(cells, s), **more}
    return Table(title, methods=lambda cell, scale: methods, **options)


def _other(
    title: str, label: str, rows: Rows, scaled: Callable[..., list[Cell]] | None,
    cells: list[Cell], note: str, store: str = "numbers",
) -> Table:  # fmt: skip
    """A table of numbers that are not from training."""
    options: Any = {"last": False, "seeds": 1, "rows": rows, "store": store, "note": note}
    by_scale = partial(scaled, cells) if scaled else lambda scale: cells
    return Table(title, by_scale, lambda cell, s: [label], labels=(label,), **options)


def _complete(cells: list[Cell], scale: Scale) -> list[Cell]:
    return known.scaled(cells, scale) if scale == "smoke" else cells


_ON_GRAPHS = [*known.SST2, *known.MOTIF_BASIS, *known.MOTIF_SIZE, *known.CMNIST]
_FROZEN = ("plain", "readout", "pretrained", "anchored head")
TABLES: dict[str, Table] = {
    "node-shift": _paper(
        "Node classification under concept and covariate shift", known.NODES,
        ("plain", "NFA", "anchored head"), "T12", seeds=5,
        note="Small scale: cora-ml and coauthor-cs stand in for cora.",
    ),
    "node-layerwise": _paper(
        "Node classification with Gaussian and shuffled anchors at hidden layers", known.NODES,
        ("plain", "NFA", "L1 gaussian", "L2 gaussian", "L1", "L2"), "T13", "T14", seeds=5,
        note="Small scale: cora-ml and coauthor-cs stand in for cora.",
    ),
    "size-shift": _paper(
        "Graph classification when test graphs are larger", known.SIZES,
        ("plain", "ensemble of 3", "L1", "L2", "readout", "anchored head"),
        "F3", seeds=10, note="The paper shows a figure without numbers.",
    ),
    "graph-shift": _paper(
        "Graph classification under concept and covariate shift", known.GRAPHS,
        (*_FROZEN, "ensemble of 3", "anchored ensemble"), "T1",
        note=f"{_SUPERPIXELS} SST2's encoder and parser are ours.",
    ),
    "anchor-source": _paper(
        "Shuffled against Gaussian anchors at the readout", [*known.SST2, *known.MOTIF_BASIS],
        ("plain", "readout", "readout gaussian"), "T15",
    ),
    "ood-detection": _paper(
        "Detecting shifted graphs by maximum softmax probability", _ON_GRAPHS, _FROZEN,
        "T2", measures=("auroc_val", "auroc"), splits=("detection",),
        note="auroc_val has id_val as negatives, as in the paper; auroc has id_test. The paper's "
        "figures for SST2 have the wrong sign.",
    ),
    "error-prediction": _paper(
        "Predicting the accuracy under shift by a threshold on confidence", _ON_GRAPHS, _FROZEN,
        "T16", measures=("gep_error",), splits=("estimation",),
    ),
    "rotation": _paper(
        "Rotated superpixel digits", known.ROTATION,
        ("plain", "ensemble of 3", "readout", "pretrained", "anchored ensemble"),
        "T3", "T4", "T5", "T6", "T7", measures=("accuracy", "ece100", "ece", "nll"),
        splits=("id_test", *(f"rotation={angle}" for angle in (10, 15, 25, 35, 40))),
        note=f"{_SUPERPIXELS} Widths and epochs are our choice.",
    ),
    "feature-noise": _paper(
        "Noise on the features of superpixel digits", known.NOISE, ("plain", "readout"),
        "T8", measures=("accuracy", "ece100", "ece", "nll"),
        splits=("id_test", *(f"noise={level}" for level in (0.1, 0.2, 0.3, 0.4))),
        note=f"{_SUPERPIXELS} Widths and epochs are our choice.",
    ),
    "pretrained": _paper(
        "A frozen pretrained network with an anchored head, against training from scratch",
        _ON_GRAPHS, _FROZEN, "F4", "F8", note="The paper shows figures without numbers.",
    ),
    "runtime": _other(
        "Seconds of an epoch and of a prediction", "T17", other.runtime_rows, known.scaled,
        [known.CMNIST[1], known.SST2[1], known.MOTIF_BASIS[1], *known.WEBKB[:1], *known.CBAS[:1]],
        "Compare ratios to the plain network, not seconds: the paper's are of another machine. "
        "Methods run one after the other in one process.", store="times",
    ),
    "parameters": _other(
        "Parameters of every model", "T19", other.parameter_rows, None,
        [known.CMNIST[0], known.MOTIF_BASIS[0], known.SST2[0], known.CORA[0], known.WEBKB[0],
         known.CBAS[0]],
        "Exact, at every scale. The paper's layerwise counts of CMNIST and SST2 are those of "
        "networks without a virtual node.",
    ),
    "anchor-gaussians": _other(
        "The Gaussians of features", "T18", other.gaussian_rows, known.scaled,
        [*known.SST2, *known.CMNIST, *known.MOTIF_SIZE, *known.MOTIF_BASIS, *known.NODES],
        "Node tasks: over training nodes, of which input anchors are drawn. Graph tasks: over "
        "means of training graphs, as the paper's figures say; anchors are drawn from their nodes.",
    ),
    "size-statistics": _other(
        "Graphs of the size shift", "T9", other.size_rows, _complete,
        [cell for cell in known.SIZES if cell.conv == "gin"], "D&D is not at hand.",
    ),
    "splits": _other(
        "Graphs or nodes per split", "T10", other.split_rows, _complete,
        [*known.SST2, *known.CMNIST, *known.MOTIF_BASIS, *known.MOTIF_SIZE, *known.CORA[2:],
         *known.CORA[:2], *known.WEBKB, *known.CBAS],
        "Cora's word and degree columns are exchanged in the paper.",
    ),
    "settings": _other(
        "Networks and hyper-parameters", "T11", other.setting_rows, None,
        [*known.SST2, *known.CMNIST, *known.MOTIF_BASIS, *known.CORA[:2], *known.WEBKB,
         *known.CBAS],
        "As published; at paper scale graph tasks have fewer epochs, for two cores. On one graph "
        "ten full-batch steps are an epoch. The paper prints 200/100 epochs for SST2 and "
        "1e-3/5e-3 for WebKB without saying which shift has which.",
    ),
    "comparison": Table(
        "All methods under shift, on the same networks, calibrated alike",
        known.comparison_cells, lambda cell, scale: _compared(cell, scale),
        ("nll", "brier", "ece", "ece_debiased", "aurc", "accuracy"), last=False, seeds=5,
        store="comparison",
    ),
    "molecules": Table(
        "Molecules: values and classes under scaffold and size shift, beside Chemprop",
        known.molecule_cells, lambda cell, scale: _on_molecules(cell, scale),
        ("rmse", "nll", "crps", "miscalibration_area", "coverage_90", "conformal90",
         "roc_auc", "ece", "seconds"),
        ("ood_test", "id_test", "training"), last=False, seeds=5, calibrations=LEVELS,
        store="molecules",
    ),
}  # fmt: skip


def find_table(name: str) -> Table:
    """A table by its name, or by its number in the paper."""
    numbers = {number: table for table in TABLES.values() for number in table.labels}
    one_of("the name of a table, or its number in the paper", name, [*TABLES, *numbers])
    return TABLES.get(name) or numbers[name]


_OURS = ("mc dropout", "head ensemble", "head ensemble, masked", "laplace", "neighbours",
         "anchored head", "choose 1.2", "choose 1.5", "choose 2.5", "novelty")  # fmt: skip


def _compared(cell: Cell, scale: Scale) -> list[str]:
    """Our methods at small scale, the paper's at all; controls first."""
    anchored = ["NFA", "L1", "L2"] if cell.task == "node" else ["L1", "L2", "readout"]
    ours = _OURS if scale != "paper" else ()
    return ["plain", *ours, "ensemble of 3", *anchored, "pretrained"]


def _on_molecules(cell: Cell, scale: Scale) -> list[str]:
    ours = ["plain", "anchored head", "trained on", "choose 1.2", "laplace", "mc dropout",
            "ensemble of 3"]  # fmt: skip
    values = not any(name in cell.data for name in ("bbbp", "bace"))
    theirs = [name for name in CHEMPROP if values or name != "chemprop mve"]
    return ours if scale == "smoke" else [*ours, *theirs]
