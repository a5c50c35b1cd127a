"""The members of an ensemble, each trained by itself: one after the other, or in processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gduq.data.parallel import progress_bar
from gduq.errors import InputError
from gduq.prediction.predictor import Predictor
from gduq.targets import Target
from gduq.training.batches import first_graph
from gduq.training.checkpoint import weights
from gduq.training.history import History

if TYPE_CHECKING:
    from gduq.training.fitting import Fit

__all__ = ["PartJob", "in_processes"]


@dataclass(frozen=True)
class PartJob:
    """A part of a model that is to be trained."""

    fit: Fit  # the call of `gduq.fit`, with the part's own seed
    part: Predictor
    folder: Path | None  # for its checkpoint
    title: str  # for the progress bar

    def run(self) -> History:
        """Train the part here; the whole is calibrated later."""
        return self.fit.run(self.part, None, self.folder, self.title)


def in_processes(jobs: Sequence[PartJob], processes: int, progress: bool) -> list[History]:
    """Train parts in processes of their own; the weights come back."""
    import joblib  # type: ignore[import-untyped]

    calls = [joblib.delayed(_remote)(i, job) for i, job in enumerate(jobs)]
    histories: dict[int, History] = {}
    pool = joblib.Parallel(n_jobs=processes, return_as="generator_unordered")
    with progress_bar("ensemble", len(jobs), None if progress else False) as advance:
        try:
            for i, history, target, state in pool(calls):
                part = jobs[i].part
                part.locate(first_graph(jobs[i].fit.train))
                part.load_state_dict(state)
                part.target = target
                part.eval()
                histories[i] = history
                advance()
        except PicklingError as error:
            raise InputError(
                "a model and data that can be sent to another process", error, "Use processes=1."
            ) from error
    return [histories[i] for i in range(len(jobs))]


def _remote(i: int, job: PartJob) -> tuple[int, History, Target | None, dict[str, Tensor]]:
    """Train one part in a process of its own."""
    torch.set_num_threads(1)
    history = replace(job, fit=replace(job.fit, progress=False, processes=1)).run()
    return i, history, job.part.target, weights(job.part)
