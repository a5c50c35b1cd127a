"""Chemprop beside us: in an environment of its own, on the same rows, with its defaults.

Nothing of gduq needs Chemprop. The environment is made once, in the cache folder, and Chemprop's
command line trains in a process with one thread.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import tempfile
import venv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gduq.data.cache import cache_root
from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.disk import locked
from gduq.errors import InputError
from gduq.prediction import Hypotheses, Prediction, ValuePrediction
from gduq_reproduction.molecules import chemprop_side
from gduq_reproduction.molecules.answers import COPY, SPLITS, StoredAnswers
from gduq_reproduction.molecules.plan import MEMBERS, MoleculeJob

__all__ = ["VERSION", "environment", "run"]

VERSION = "2.3.1"
_TORCH = "2.13.0"  # ours: the same kernels on both sides
CHANGES = ("edge_drop", "edge_rewire", "feature_noise", "feature_mask")  # all that we know
_TINY = 1e-7


def environment() -> Path:
    """The interpreter of Chemprop's environment, which is made if it is not there yet."""
    folder = cache_root() / "peers" / f"chemprop-{VERSION}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent):
        if (folder / "installed").is_file():
            return python
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "-q", f"torch=={_TORCH}"]
        for command in (pip, [*pip, f"chemprop=={VERSION}"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
                raise InputError(
                    f"an environment with Chemprop {VERSION} in {folder}",
                    f"pip, which said: {said}",
                    "Check the network, or use --scale smoke, which does without.",
                )
        (folder / "installed").touch()
    return python


def run(job: MoleculeJob, python: Path | None = None) -> None:
    """Train one model of the peer and keep its answers.

    The ensemble is that of one model and two more: mean-variance models for values, classifiers for
    classes.

    Args:
        job: Which.
        python: The interpreter to use; the environment's by default.
    """
    python = python or environment()
    splits = job.splits()
    first = job.file("chemprop-mve" if job.is_values else "chemprop")
    if job.side == "ensemble" and not first.is_file():
        raise InputError("the first member of the ensemble", f"no {first.name}", "Ask again.")
    found = _trained(job, splits, python)
    times = found.pop("times")
    parts = {name: _prediction(part, _truth(splits, name)) for name, part in found.items()}
    seconds = float(times[:, 1].sum())
    if job.side == "ensemble":
        alone = StoredAnswers.load(first)
        seconds += alone.seconds
        parts = {name: _joined(alone.parts[name], p) for name, p in parts.items()}
    StoredAnswers(parts, seconds, {"clock": times[:, 0].tolist()}).save(job.file(job.methods[0]))


def _trained(job: MoleculeJob, splits: Splits, python: Path) -> dict[str, np.ndarray]:
    """Send rows to the other environment; what came back, by split and copy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split in ("train", *SPLITS):
            _write(getattr(splits, split), folder / f"{split}.csv")
        order = {
            "folder": name,
            "output": str(folder / "answers.npz"),
            "splits": SPLITS,
            "changes": CHANGES,
            "task": _task(job),
            "seed": job.seed,
            "first_seed": 100 * job.seed + (job.side == "ensemble"),
            "members": MEMBERS - 1 if job.side == "ensemble" else 1,
            "epochs": job.epochs,
        }
        (folder / "job.json").write_text(json.dumps(order), encoding="utf-8")
        _start(python, folder)
        with np.load(folder / "answers.npz") as arrays:
            found = {key: arrays[key] for key in arrays.files}
    return {key if key in SPLITS or key == "times" else COPY + key: v for key, v in found.items()}


def _start(python: Path, folder: Path) -> None:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [str(python), str(Path(chemprop_side.__file__)), str(folder / "job.json")]
    environ = {**os.environ, **threads}
    environ.pop("PYTHONPATH", None)  # what is ours is none of its business
    done = subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Chemprop ended with {done.returncode}: {done.stderr[-2000:]}")


def _task(job: MoleculeJob) -> str:
    if not job.is_values:
        return "classification"
    return "regression" if job.side == "default" else "regression-mve"


def _write(view: View, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", "y"])
        writer.writerows([graph.smiles, float(graph.y)] for graph in view.graphs)


def _truth(splits: Splits, part: str) -> Tensor:
    view = getattr(splits, "id_val" if part.startswith(COPY) else part)
    target = view.target
    assert isinstance(target, Tensor)
    return target.reshape(-1)


def _prediction(said: np.ndarray, truth: Tensor) -> Hypotheses:
    """Of means, of means and variances, or of probabilities ``[members, rows, numbers]``."""
    numbers = torch.from_numpy(said)
    if truth.is_floating_point():
        mean = numbers[..., :1]
        variance = numbers[..., 1:] if numbers.size(2) == 2 else torch.ones_like(mean)
        samples = torch.cat([mean, variance.clamp(min=1e-12).log()], dim=2)
        return ValuePrediction(samples.float(), truth.float())
    logit = torch.logit(numbers, eps=_TINY)
    return Prediction(torch.cat([torch.zeros_like(logit), logit], dim=2).float(), truth)


def _joined(one: Hypotheses, more: Hypotheses) -> Hypotheses:
    return one.with_samples(torch.cat([one.samples, more.samples]))
