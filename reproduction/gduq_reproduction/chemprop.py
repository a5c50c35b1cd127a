"""Chemprop beside us: in an environment of its own, on the same rows, with its defaults.

Nothing of gduq needs Chemprop. Its command line trains in a process with one thread, started with
the interpreter of ``gduq bench molecules --chemprop PYTHON``.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gduq import ClassPrediction, InputError, Prediction, ValuePrediction
from gduq.shifts.corruptions import changes_of
from gduq_reproduction import chemprop_script
from gduq_reproduction.methods import MEMBERS, SPLITS, Answers, Work

__all__ = ["CHEMPROP", "chemprop_answers"]

CHEMPROP = ("chemprop", "chemprop mve", "chemprop ensemble")
_TINY = 1e-7


def chemprop_answers(work: Work, method: str) -> Answers:
    """Train Chemprop's default, its mean-variance model, or an ensemble of three of the latter (for
    classes: of the default)."""
    if work.chemprop is None:
        do = "Pass --chemprop PYTHON, see docs/molecules-benchmark.md."
        raise InputError("an environment with Chemprop", "none", do)
    truth = work.splits.train.target
    task = "classification"
    if truth.is_floating_point():
        task = "regression" if method == "chemprop" else "regression-mve"
    elif method == "chemprop mve":
        raise InputError("values for Chemprop's mean-variance model", "classes")
    found = _trained(work, task, MEMBERS if method == "chemprop ensemble" else 1)
    seconds = float(found.pop("times")[:, 1].sum())
    parts = {name: _prediction(found.pop(name), work.views[name].target) for name in SPLITS}
    copies = [_prediction(part, work.views["id_val"].target) for part in found.values()]
    work.network(0)
    return Answers(parts, tuple(copies), seconds, seconds / work.seconds["network 0"])


def _trained(work: Work, task: str, members: int) -> dict[str, np.ndarray]:
    """Send rows to the other environment; what came back, by split and copy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split in ("train", *SPLITS):
            graphs = getattr(work.splits, split).graphs
            rows = [(graph.smiles, float(graph.y)) for graph in graphs]
            pd.DataFrame(rows, columns=["smiles", "y"]).to_csv(folder / f"{split}.csv", index=False)
        order = {
            "folder": name,
            "output": str(folder / "answers.npz"),
            "splits": SPLITS,
            "changes": [change.__name__ for change in changes_of(work.views["id_val"])],
            "task": task,
            "seed": work.seed,
            "members": members,
            "epochs": work.cell.epochs,
        }
        (folder / "job.json").write_text(json.dumps(order), encoding="utf-8")
        _start(work.chemprop, folder)
        with np.load(folder / "answers.npz") as arrays:
            return {key: arrays[key] for key in arrays.files}


def _start(python: Path | None, folder: Path) -> None:
    command = [str(python), str(Path(chemprop_script.__file__)), str(folder / "job.json")]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environ.pop("PYTHONPATH", None)  # what is ours is none of its business
    done = subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Chemprop ended with {done.returncode}: {done.stderr[-2000:]}")


def _prediction(numbers: np.ndarray, target: Tensor) -> Prediction:
    """Of means, of means and variances, or of probabilities ``[members, rows, numbers]``."""
    found, truth = torch.from_numpy(numbers), target.reshape(-1)
    if truth.is_floating_point():
        mean = found[..., :1]
        variance = found[..., 1:] if found.size(2) == 2 else torch.ones_like(mean)
        samples = torch.cat([mean, variance.clamp(min=1e-12).log()], dim=2)
        return ValuePrediction(samples.float(), truth.float())
    logit = torch.logit(found, eps=_TINY)
    return ClassPrediction(torch.cat([torch.zeros_like(logit), logit], dim=2).float(), truth)
