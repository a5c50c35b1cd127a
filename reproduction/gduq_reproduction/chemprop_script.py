"""What runs in Chemprop's own environment: train by its command line, predict rows and copies.

The file is started as a script by `gduq_reproduction.chemprop`; it imports nothing of gduq.
Training is Chemprop's own command with its defaults. Predictions are made here, since its command
line does not take corrupted molecules: those are needed to calibrate it as everything else is.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["check", "corrupted", "main"]

LEVELS = {3: 0.2, 5: 0.5}  # the shares of `gduq.shifts.LEVELS` at the severities of its copies
_BATCH = 256
Graphs = list[Any]  # of chemprop.data.molgraph.MolGraph


def main(path: str) -> None:
    """Do the job that a JSON file describes, and write its predictions as ``.npz``."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    folder = Path(job["folder"])
    times = _train(job, folder)
    graphs = {name: _graphs(folder / f"{name}.csv") for name in job["splits"]}
    for change in job["changes"]:
        for severity, level in LEVELS.items():
            rng = np.random.default_rng([job["seed"], severity])
            graphs[f"{change}{severity}"] = corrupted(graphs["id_val"], change, level, rng)
    models = sorted((folder / "trained").glob("model_*/best.pt"))
    found: dict[str, Any] = {name: _predictions(models, some) for name, some in graphs.items()}
    check(found["id_test"], [path.parent / "test_predictions.csv" for path in models])
    found["times"] = np.array([[t["seconds"], t["cpu_seconds"]] for t in times])
    np.savez(job["output"], **found)


def _train(job: dict[str, Any], folder: Path) -> list[dict[str, float]]:
    """Chemprop's ``train`` with its defaults; seconds of every member's training."""
    import torch
    from chemprop.cli.main import main as chemprop  # type: ignore[import-not-found]
    from lightning import pytorch as pl  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    times: list[dict[str, float]] = []
    fit, start = pl.Trainer.fit, pl.Trainer.__init__

    def timed(*args: Any, **options: Any) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        fit(*args, **options)
        spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        times.append(spent)

    def silent(self: Any, *args: Any, **options: Any) -> None:  # a bar would cost it time
        start(self, *args, **{**options, "enable_progress_bar": False})

    pl.Trainer.fit, pl.Trainer.__init__ = timed, silent
    files = [str(folder / f"{name}.csv") for name in ("train", "id_val", "id_test")]
    values = {
        "--task-type": job["task"],
        "--epochs": job["epochs"],
        "--ensemble-size": job["members"],
        "--pytorch-seed": 100 * job["seed"],
        "--data-seed": job["seed"],
        "--output-dir": folder / "trained",
        "--num-workers": 0,
        "--accelerator": "cpu",
        "--smiles-columns": "smiles",
        "--target-columns": "y",
    }
    options = [str(part) for pair in values.items() for part in pair]
    sys.argv = ["chemprop", "train", "-q", "--data-path", *files, *options]
    chemprop()
    return times


def _graphs(path: Path) -> Graphs:
    """The molecules of a file, as Chemprop's ``train`` sees them by default."""
    from chemprop.featurizers import (  # type: ignore[import-not-found]
        SimpleMoleculeMolGraphFeaturizer,
    )
    from chemprop.utils import make_mol  # type: ignore[import-not-found]

    featurize = SimpleMoleculeMolGraphFeaturizer()
    with path.open(encoding="utf-8", newline="") as file:
        return [featurize(make_mol(row["smiles"])) for row in csv.DictReader(file)]


def _predictions(models: Sequence[Path], graphs: Graphs) -> np.ndarray:
    """What every model says ``[models, rows, numbers]``: a mean, a mean and a variance, or the
    probability of a yes."""
    import torch
    from chemprop.data import BatchMolGraph  # type: ignore[import-not-found]
    from chemprop.models import load_model  # type: ignore[import-not-found]

    found = []
    for path in models:
        model = load_model(path).eval()
        with torch.no_grad():
            parts = [
                model(BatchMolGraph(graphs[i : i + _BATCH])).double()
                for i in range(0, len(graphs), _BATCH)
            ]
        found.append(torch.cat(parts).reshape(len(graphs), -1).numpy())
    return np.stack(found)


def check(found: np.ndarray, files: Sequence[Path]) -> None:
    """Raise unless predictions ``[models, rows, numbers]`` are those that Chemprop itself wrote."""
    for own, path in zip(found, files, strict=True):
        with path.open(encoding="utf-8", newline="") as file:
            theirs = np.array([float(row["y"]) for row in csv.DictReader(file)])
        if not np.allclose(own[:, 0], theirs, rtol=1e-4, atol=1e-4):
            raise RuntimeError(f"predictions differ from Chemprop's own in {path}")


# -- the corruptions of `gduq.shifts`, on Chemprop's graphs ----------------------------------------


def corrupted(graphs: Graphs, change: str, level: float, rng: np.random.Generator) -> Graphs:
    """Copies of molecules, changed as `gduq.shifts` changes them.

    Both directions of a bond (2i and 2i + 1 in Chemprop's order) change together, and shares are of
    all molecules together.

    Args:
        graphs: Chemprop's ``MolGraph`` objects; they stay as they are.
        change: ``edge_drop``, ``edge_rewire``, ``feature_noise`` or ``feature_mask``.
        level: The share, or the size of the noise.
        rng: For what is random.
    """
    changes: dict[str, Callable[[Graphs, float, np.random.Generator], Graphs]] = {
        "edge_drop": _dropped, "edge_rewire": _rewired, "feature_noise": _noised,
        "feature_mask": _masked,
    }  # fmt: skip
    return changes[change](graphs, level, rng)


def _chosen(graphs: Graphs, level: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Per graph, which of its bonds are among the share drawn from all bonds."""
    bonds = [graph.edge_index.shape[1] // 2 for graph in graphs]
    mark = np.zeros(sum(bonds), dtype=bool)
    mark[rng.permutation(sum(bonds))[: round(level * sum(bonds))]] = True
    return np.split(mark, np.cumsum(bonds)[:-1])


def _dropped(graphs: Graphs, level: float, rng: np.random.Generator) -> Graphs:
    copies = []
    for graph, gone in zip(graphs, _chosen(graphs, level, rng), strict=True):
        keep = np.repeat(~gone, 2)
        back = np.arange(int(keep.sum())).reshape(-1, 2)[:, ::-1].ravel()
        edges = graph.edge_index[:, keep]
        copies.append(graph._replace(E=graph.E[keep], edge_index=edges, rev_edge_index=back))
    return copies


def _rewired(graphs: Graphs, level: float, rng: np.random.Generator) -> Graphs:
    copies = []
    for graph, moved in zip(graphs, _chosen(graphs, level, rng), strict=True):
        pairs = graph.edge_index.reshape(2, -1, 2).copy()  # [end, bond, direction]
        new = rng.integers(len(graph.V), size=int(moved.sum()))
        pairs[1, moved, 0], pairs[0, moved, 1] = new, new
        copies.append(graph._replace(edge_index=pairs.reshape(2, -1)))
    return copies


def _noised(graphs: Graphs, level: float, rng: np.random.Generator) -> Graphs:
    atoms = np.concatenate([graph.V for graph in graphs])
    spread = atoms.std(axis=0)
    spread = np.where(spread > 0, spread, np.abs(atoms.mean(axis=0)))
    return [
        graph._replace(V=graph.V + level * spread * rng.standard_normal(graph.V.shape))
        for graph in graphs
    ]


def _masked(graphs: Graphs, level: float, rng: np.random.Generator) -> Graphs:
    return [graph._replace(V=graph.V * (rng.random(graph.V.shape) >= level)) for graph in graphs]


if __name__ == "__main__":
    main(sys.argv[1])
