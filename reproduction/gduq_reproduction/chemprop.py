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
from gduq_reproduction import chemprop_script
from gduq_reproduction.methods import MEMBERS, SPLITS, Answers, Work

__all__ = ["CHEMPROP", "chemprop_answers"]

CHEMPROP = ("chemprop", "chemprop mve", "chemprop ensemble")


def chemprop_answers(work: Work, method: str) -> Answers:
    """Train Chemprop's default, its mean-variance model, or an ensemble of three of the latter (for
    classes: of the default)."""
    if work.chemprop is None:
        do = "Pass --chemprop PYTHON, see docs/molecules-benchmark.md."
        raise InputError("an environment with Chemprop", "none", do)
    task = "classification"
    if work.splits.train.target.is_floating_point():
        task = "regression" if method == "chemprop" else "regression-mve"
    elif method == "chemprop mve":
        raise InputError("values for Chemprop's mean-variance model", "classes")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split in ("train", *SPLITS):
            graphs = getattr(work.splits, split).graphs
            table = pd.DataFrame([{"smiles": g.smiles, "y": float(g.y)} for g in graphs])
            table.to_csv(folder / f"{split}.csv", index=False)
        job = {"folder": name, "splits": SPLITS, "task": task, "seed": work.seed,
               "members": MEMBERS if method == "chemprop ensemble" else 1,
               "epochs": work.cell.epochs}  # fmt: skip
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        _start(work.chemprop, folder)
        with np.load(folder / "answers.npz") as found:
            seconds = float(found["seconds"])
            parts = {s: _prediction(found[s], work.views[s].target) for s in SPLITS}
    return Answers(parts, (), seconds, seconds / work.trained(1))


def _start(python: Path, folder: Path) -> None:
    command = [str(python), str(Path(chemprop_script.__file__)), str(folder / "job.json")]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environ.pop("PYTHONPATH", None)  # what is ours is none of its business
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True)
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
    logit = torch.logit(found, eps=1e-7)
    return ClassPrediction(torch.cat([torch.zeros_like(logit), logit], dim=2).float(), truth)
