"""What runs in Chemprop's own environment: train by its command line, then predict rows.

The file is started as a script by `gduq_reproduction.chemprop`; it imports nothing of gduq.
Training is Chemprop's own command with its defaults, on one thread.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def main(path: str) -> None:
    """Do the job that a JSON file describes, and write its predictions as ``.npz``."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    folder = Path(job["folder"])
    found: dict[str, Any] = {"seconds": train(job, folder)}
    models = sorted((folder / "trained").glob("model_*/best.pt"))
    for name in job["splits"]:
        found[name] = np.stack([predictions(model, folder / f"{name}.csv") for model in models])
    np.savez(folder / "answers.npz", **found)


def train(job: dict[str, Any], folder: Path) -> float:
    """Chemprop's ``train`` with its defaults; seconds of processor time of the training alone."""
    import torch
    from chemprop.cli.main import main as chemprop  # type: ignore[import-not-found]
    from lightning import pytorch as pl  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    seconds: list[float] = []
    fit, start = pl.Trainer.fit, pl.Trainer.__init__

    def timed(*args: Any, **options: Any) -> None:
        began = time.process_time()
        fit(*args, **options)
        seconds.append(time.process_time() - began)

    def silent(self: Any, *args: Any, **options: Any) -> None:  # a bar would cost it time
        start(self, *args, **{**options, "enable_progress_bar": False})

    pl.Trainer.fit, pl.Trainer.__init__ = timed, silent
    values = {
        "--task-type": job["task"], "--epochs": job["epochs"], "--ensemble-size": job["members"],
        "--pytorch-seed": 100 * job["seed"], "--data-seed": job["seed"], "--num-workers": 0,
        "--output-dir": folder / "trained", "--accelerator": "cpu",
        "--smiles-columns": "smiles", "--target-columns": "y",
    }  # fmt: skip
    files = [str(folder / f"{name}.csv") for name in ("train", "id_val", "id_test")]
    options = [str(part) for pair in values.items() for part in pair]
    sys.argv = ["chemprop", "train", "-q", "--data-path", *files, *options]
    chemprop()
    return sum(seconds)


def predictions(path: Path, table: Path) -> np.ndarray:
    """What a model says ``[rows, numbers]``: a mean, a mean and a variance, or the probability of a
    yes."""
    import torch
    from chemprop.data import BatchMolGraph  # type: ignore[import-not-found]
    from chemprop.featurizers import (  # type: ignore[import-not-found]
        SimpleMoleculeMolGraphFeaturizer,
    )
    from chemprop.models import load_model  # type: ignore[import-not-found]
    from chemprop.utils import make_mol  # type: ignore[import-not-found]

    featurize, model = SimpleMoleculeMolGraphFeaturizer(), load_model(path).eval()
    with table.open(encoding="utf-8", newline="") as file:
        graphs = [featurize(make_mol(row["smiles"])) for row in csv.DictReader(file)]
    with torch.no_grad():
        found = [model(BatchMolGraph(graphs[i : i + 256])) for i in range(0, len(graphs), 256)]
    numbers: np.ndarray = torch.cat(found).double().reshape(len(graphs), -1).numpy()
    return numbers


if __name__ == "__main__":
    main(sys.argv[1])
