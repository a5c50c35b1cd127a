r"""Where to anchor? Successive halving over the places of an `AutoAnchored`.

All places are trained for a few epochs and judged on validation data, the better half of them
for some more, and so on until one is left, which is trained to the end. It goes on where it
stopped, so it ends as if it had been trained alone from the start.

Of places that validation data cannot tell apart the latest is best: the fewer layers come behind
the anchors, the less ten of them cost. So a place has to be *clearly* better than later ones, by
two standard errors of the difference between the losses of the same rows (as if rows were
independent; nodes of a graph are not quite). All are judged as they are trained: what validation
rows have to say about confidence (`gduq.tempering`) comes at the end, for the one that is left.

With :math:`s_j` places in round j, which ends after epoch :math:`e_j`, choosing among
:math:`s_1 = n` places costs :math:`\sum_j (s_j - 1)(e_j - e_{j-1})` epochs on top of the E of one
training. Every round gets an equal part of ``EXTRA`` E, so all of it stays below (1 + ``EXTRA``) E
epochs (unless E is so small that a round of one epoch costs more than its part).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from gduq.auto import AutoAnchored, Place
from gduq.data import tensorfile
from gduq.data.view import View
from gduq.errors import InputError
from gduq.evaluation.copies import changes_of
from gduq.metrics.rows import read
from gduq.metrics.scores import row_nll
from gduq.prediction import predict
from gduq.training.batches import as_batches, described
from gduq.training.history import History
from gduq.training.randomness import isolated
from gduq.training.run import Run
from gduq.training.settings import Settings
from gduq.training.step import checked_fabric, evaluating_after

__all__ = ["EXTRA", "SEVERITY", "Judge", "choose", "kept", "ranked", "rounds"]

EXTRA = 0.65  # epochs spent on places that are given up, relative to those of one training
SEVERITY = 4  # of the corruptions that stand in for a shift
CLEAR = 2.0  # standard errors


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

    A row's loss is the mean negative log-likelihood of the validation row and of corrupted copies
    of it (edges dropped and rewired; noise on features and features masked, where there are any).

    Args:
        val: Validation rows.
        batch_size: Graphs at a time.
    """

    def __init__(self, val: View, batch_size: int) -> None:
        self.batch_size = batch_size
        self.views = [val, *(change(val, SEVERITY) for change in changes_of(val))]

    def losses(self, model: nn.Module) -> list[float]:
        """One a row; the lower, the better."""
        found = [row_nll(read(predict(model, view, self.batch_size))) for view in self.views]
        return torch.stack(found).mean(dim=0).tolist()


def ranked(losses: Mapping[Place, Sequence[float]]) -> list[Place]:
    """Places from the best to the worst, by the losses of the same rows at each.

    First those that are not clearly worse than the one with the lowest mean, latest first; then
    the others by their means.

    Example:
        >>> ranked({"input": [1.0, 1.2], 1: [3.0, 3.1], "readout": [1.2, 1.1]})
        ['readout', 'input', 1]
    """
    rows = {at: torch.tensor(found, dtype=torch.float64) for at, found in losses.items()}
    lowest, *others = _by_mean(losses)
    worse = [at for at in others if _is_worse(rows[at] - rows[lowest])]
    return [*(at for at in list(rows)[::-1] if at not in worse), *worse]


def kept(losses: Mapping[Place, Sequence[float]]) -> list[Place]:
    """The half of the places that goes on: the lowest mean, then as they are ranked.

    What looks best after a few epochs is not given up for what cannot be told from it; only the
    last one left is the first of the ranking.
    """
    number, order = -(-len(losses) // 2), ranked(losses)
    if number == 1:
        return order[:1]
    lowest = _by_mean(losses)[0]
    return [lowest, *(at for at in order if at != lowest)][:number]


def _by_mean(losses: Mapping[Place, Sequence[float]]) -> list[Place]:
    """Places by their mean loss, of equals the latest first; a loss that is no number is last."""
    means = {at: _mean(losses[at]) for at in list(losses)[::-1]}
    return sorted(means, key=lambda at: math.inf if math.isnan(means[at]) else means[at])


def _mean(losses: Sequence[float]) -> float:
    return math.fsum(losses) / len(losses)


def _is_worse(excess: Tensor) -> bool:
    """Whether the mean is above zero by more than chance, or no number.

    Of a single row nothing is known about chance: then any excess counts.
    """
    error = excess.std() / math.sqrt(len(excess)) if len(excess) > 1 else torch.tensor(0.0)
    return not bool(excess.mean() <= CLEAR * error)


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
        notes = _Notes(resume, model.places, settings.epochs, described(val, "val"))
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
            if len(notes.losses[at]) == number:
                run.epochs(epoch, progress, _named(title, f"round {number + 1} at {at}"))
                with run.timed(), run.as_it_would_end():
                    losses = run.fabric.broadcast(judge.losses(run.model))
                run.keep()  # losses are of epochs that are on disk
                notes.add(at, losses, write=run.fabric.is_global_zero)
        left = kept({at: notes.losses[at][number] for at in runs})
        given_up += [runs.pop(at).history for at in list(runs) if at not in left]
    return tuple(given_up)


def _named(title: str, part: str) -> str:
    return f"{title}, {part}" if title else part


def _validation(data: Any) -> View:
    found = None if data is None else as_batches(data, "val")
    if not isinstance(found, View):
        raise InputError(
            "validation data as a View, a dataset or a list of graphs, to choose the place by",
            "none" if data is None else "a loader",
            "Pass val (the graphs themselves), or name the place: gduq.anchor(net, at=...).",
        )
    return found


class _Notes:
    """Losses of rows by place and round; in the folder of the checkpoints, if there is one.

    They are written before training goes on, so an interrupted choice ends as the whole.
    """

    def __init__(
        self, folder: str | Path | None, places: tuple[Place, ...], epochs: int, val: str
    ) -> None:
        self.path = None if folder is None else Path(folder).expanduser() / "places.json"
        self.identity = {"epochs": epochs, "places": list(places), "val": val}
        self.losses: dict[Place, list[list[float]]] = {place: [] for place in places}
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        do = "Delete the folder to start afresh, or pass another resume= folder."
        try:
            known = json.loads(path.read_text())
            losses = dict(zip(self.losses, known.pop("losses"), strict=True))
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise InputError(f"the losses of places in {path}", error, do) from error
        if known != self.identity:
            raise InputError(f"the choice that {path} is of ({known})", self.identity, do)
        self.losses = losses

    @property
    def scores(self) -> dict[Place, list[float]]:
        """Mean losses by place, one a round."""
        return {at: list(map(_mean, own)) for at, own in self.losses.items()}

    def add(self, at: Place, losses: list[float], write: bool) -> None:
        """Note what rows lose at a place in the next round."""
        self.losses[at].append(losses)
        if self.path is not None and write:
            with tensorfile.atomic_path(self.path) as temporary:
                content = {**self.identity, "losses": list(self.losses.values())}
                temporary.write_text(json.dumps(content))
