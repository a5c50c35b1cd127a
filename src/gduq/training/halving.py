r"""Where to anchor? Successive halving over the places of an `AutoAnchored`.

All places are trained for a few epochs and judged on validation data, the better half of them
for some more, and so on until one is left, which is trained to the end. It goes on where it
stopped, so it ends as if it had been trained alone from the start.

With :math:`s_j` places in round j, which ends after epoch :math:`e_j`, choosing among
:math:`s_1 = n` places costs :math:`\sum_j (s_j - 1)(e_j - e_{j-1})` epochs on top of the E of one
training. Every round gets an equal part of ``EXTRA`` E, so all of it stays below (1 + ``EXTRA``) E
epochs (unless E is so small that a round of one epoch costs more than its part).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from torch import nn

from gduq import metrics
from gduq.auto import AutoAnchored, Place
from gduq.data import tensorfile
from gduq.data.view import View
from gduq.errors import InputError
from gduq.evaluation.copies import changes_of
from gduq.prediction import predict
from gduq.training.batches import as_batches
from gduq.training.history import History
from gduq.training.randomness import isolated
from gduq.training.run import Run
from gduq.training.settings import Settings
from gduq.training.step import checked_fabric, evaluating_after

__all__ = ["EXTRA", "SEVERITY", "Judge", "choose", "rounds"]

EXTRA = 0.65  # epochs spent on places that are given up, relative to those of one training
SEVERITY = 4  # of the corruptions that stand in for a shift


def rounds(places: int, epochs: int) -> list[int]:
    """The epochs after which the better half of the places is kept, until one is left.

    Example:
        >>> rounds(4, 100)  # 4 places for 10 epochs, 2 for another 32, one for the rest
        [10, 42]
    """
    number = math.ceil(math.log2(places)) if places > 1 else 0
    ends: list[int] = []
    for _ in range(number):
        share = math.floor(EXTRA * epochs / (number * (places - 1)))
        ends.append(min(epochs, (ends[-1] if ends else 0) + max(1, share)))
        places = -(-places // 2)
    return ends


class Judge:
    """How well a model would do under shift, as far as validation data can tell.

    The score is the mean negative log-likelihood over the validation rows and corrupted copies of
    them (edges dropped and rewired; noise on features and features masked, where there are any).

    Args:
        val: Validation rows.
        batch_size: Graphs at a time.
    """

    def __init__(self, val: View, batch_size: int) -> None:
        self.batch_size = batch_size
        self.views = [val, *(change(val, SEVERITY) for change in changes_of(val))]

    def score(self, model: nn.Module) -> float:
        """The lower, the better."""
        found = [metrics.nll(predict(model, view, self.batch_size)) for view in self.views]
        return math.fsum(found) / len(found)


def choose(
    model: AutoAnchored,
    train_data: Any,
    val_data: Any,
    settings: Settings,
    fabric: Fabric | None,
    resume: str | Path | None,
    progress: bool,
    title: str = "",
) -> History:
    """Train the candidates, and the best of them to the end; `gduq.fit` describes the arguments."""
    fabric = checked_fabric(fabric)
    train, val = as_batches(train_data, "train"), _validation(val_data)
    with isolated(fabric.device), evaluating_after(model):
        notes = _Notes(resume, model.places, settings.epochs)
        runs: dict[Place, Run] = {}
        for at, candidate in zip(model.places, model.candidates, strict=True):
            runs[at] = Run(candidate, train, settings, fabric)
            runs[at].judge_by(val)
            runs[at].continue_from(None if resume is None else Path(resume) / f"at-{at}")
        given_up = _halve(runs, val, notes, progress, title)
        ((winner, run),) = runs.items()
        run.complete(progress, _named(title, f"at {winner}"))
        model.settle(winner, notes.scores)
        return replace(run.history, given_up=given_up)


def _halve(
    runs: dict[Place, Run], val: View, notes: _Notes, progress: bool, title: str
) -> tuple[History, ...]:
    """Take all but the best from ``runs``; the histories of the others."""
    first = next(iter(runs.values()))
    judge = Judge(val, first.eval_size)
    given_up: list[History] = []
    for number, epoch in enumerate(rounds(len(runs), first.settings.epochs)):
        for at, run in runs.items():
            if len(notes.scores[at]) == number:
                run.epochs(epoch, progress, _named(title, f"round {number + 1} at {at}"))
                with run.timed(), run.as_it_would_end():
                    score = run.fabric.broadcast(judge.score(run.model))
                run.keep()  # a score is of epochs that are on disk
                notes.add(at, score, write=run.fabric.is_global_zero)
        order = sorted(runs, key=lambda at: notes.scores[at][number])
        given_up += [runs.pop(at).history for at in order[-(-len(order) // 2) :]]
    return tuple(given_up)


def _named(title: str, part: str) -> str:
    return f"{title}, {part}" if title else part


def _validation(data: Any) -> View:
    found = None if data is None else as_batches(data, "val")
    if not isinstance(found, View):
        raise InputError(
            "validation data as a View, a dataset or a list of graphs, to choose the place by",
            "none" if data is None else "a loader",
            "Pass val, or name the place: gduq.anchor(net, at=...).",
        )
    return found


class _Notes:
    """Scores by place, one a round; in the folder of the checkpoints, if there is one.

    Every score is written before training goes on, so an interrupted choice ends as the whole.
    """

    def __init__(self, folder: str | Path | None, places: tuple[Place, ...], epochs: int) -> None:
        self.path = None if folder is None else Path(folder).expanduser() / "places.json"
        self.identity = {"epochs": epochs, "places": list(places)}
        self.scores: dict[Place, list[float]] = {place: [] for place in places}
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        do = "Delete the folder to start afresh, or pass another resume= folder."
        try:
            known = json.loads(path.read_text())
            scores = dict(zip(self.scores, known.pop("scores"), strict=True))
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise InputError(f"the scores of places in {path}", error, do) from error
        if known != self.identity:
            raise InputError(f"the choice that {path} is of ({known})", self.identity, do)
        self.scores = scores

    def add(self, at: Place, score: float, write: bool) -> None:
        """Note the score of a place in the next round."""
        self.scores[at].append(score)
        if self.path is not None and write:
            with tensorfile.atomic_path(self.path) as temporary:
                content = {**self.identity, "scores": list(self.scores.values())}
                temporary.write_text(json.dumps(content))
