"""Models that stand on a frozen trunk: it runs once, and everything else reads its rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gduq.errors import warn_user
from gduq.graph import on_device, targets
from gduq.nn.call import evaluating
from gduq.nn.trunk import Trunk
from gduq.prediction.predictor import Calibrate, HeadJob, Predictor
from gduq.targets import FirstLook, Target
from gduq.training.batches import Batches, labels
from gduq.training.finishing import (
    Judged,
    copies_of,
    fit_novelty,
    fit_temperature,
    settle,
    warn_of_few,
)
from gduq.training.first_pass import ReadTarget
from gduq.training.fit_settings import FitSettings
from gduq.training.history import Epoch, History
from gduq.training.side_by_side import TEMPERATURES, HeadRun, RowSet, train_heads

__all__ = [
    "Learned",
    "TrunkRows",
    "calibrate_on_rows",
    "fit_on_rows",
    "judged_on_rows",
    "learn_on_rows",
]


_ONE_VOICE = (
    "the hypotheses hardly disagree (epistemic is about 0): the model answers much as the network "
    "does, calibrated and with novelty; use p.novelty as the alarm, or gduq.choose with a larger "
    "budget"
)


@dataclass(frozen=True, eq=False)
class Seen(RowSet):
    """Rows with what the network itself says of them, ``outputs`` ``[m, O]``."""

    outputs: Tensor


@dataclass(frozen=True, eq=False)
class TrunkRows:
    """All rows that training needs, each seen once by the trunk."""

    train: Seen
    val: Seen | None
    copies: tuple[Seen, ...]  # shifted copies of the validation rows
    target: Target
    seconds: float  # that the trunk took

    @classmethod
    def collect(
        cls,
        trunk: Trunk,
        train: Batches,
        val: Batches | None,
        read_target: ReadTarget,
        calibrate: Calibrate,
        batch_size: int,
        seed: int,
    ) -> TrunkRows:
        """Run the trunk over training rows, validation rows and copies of these."""
        start = time.perf_counter()
        first, held, copies = _seen(trunk, train, batch_size), None, []
        target = read_target(FirstLook(first.y, first.outputs, first.y, True, trunk.bounded))
        first = replace(first, y=target.check(first.y, "train"))
        if val is not None:
            held = _seen(trunk, val, batch_size)
            held = replace(held, y=target.check_val(held.y))
            if calibrate == "shifted":
                found = (_seen(trunk, copy, batch_size) for copy in copies_of(val, seed))
                copies = [replace(copy, y=target.check(copy.y, "val")) for copy in found]
        return cls(first, held, tuple(copies), target, time.perf_counter() - start)


def _seen(trunk: Trunk, data: Batches, batch_size: int) -> Seen:
    device = next((p.device for p in trunk.parameters()), torch.device("cpu"))
    parts: list[tuple[Tensor, ...]] = []
    with torch.no_grad(), evaluating(trunk):
        for graph in data.batches(batch_size):
            graph = on_device(graph, device)
            h, outputs = trunk.run(graph)
            outputs = trunk.labelled(outputs, graph)
            y = targets(graph, outputs.size(0))
            parts.append((trunk.labelled(h, graph), labels(graph) if y is None else y, outputs))
    return Seen(*(torch.cat(column) for column in zip(*parts, strict=True)))


def fit_on_rows(
    model: Predictor,
    rows: TrunkRows,
    settings: FitSettings,
    calibrate: Calibrate,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> History:
    """Train the heads of a model that reads the rows of a trunk, keep the best (or all), calibrate,
    note the training rows."""
    start = time.perf_counter()
    learned = learn_on_rows(model, rows, settings, on_epoch, tempered=calibrate is not None)
    if rows.val is not None and calibrate is not None:
        warn_of_few(rows.val.y.size(0))
    calibrate_on_rows(model, rows, calibrate)
    fit_novelty(model, rows.train.h, None if rows.val is None else rows.val.h, settings.seed)
    epochs = sum(record.seconds for run in learned.runs for record in run.records)
    spent = time.perf_counter() - start - epochs
    histories = [History(run.records, run.kept_epoch) for run in learned.runs]
    if learned.kept is None:
        return History(members=tuple(histories), overhead_seconds=spent)
    best = histories.pop(learned.kept)
    if _agrees(model, rows):
        warn_user(_ONE_VOICE)
    return replace(best, rejected=tuple(histories), overhead_seconds=spent)


def _agrees(model: Predictor, rows: TrunkRows) -> bool:
    """Whether several hypotheses say one thing of the validation rows."""
    if rows.val is None:
        return False
    assert model.target is not None
    found = judged_on_rows(model, rows.val)
    return model.target.agree(model.calibrated(found.outputs, found.weights))


class Learned(NamedTuple):
    """What happened to the heads of a model, and which of them stayed (``None``: all)."""

    runs: list[HeadRun]
    kept: int | None


def learn_on_rows(
    model: Predictor,
    rows: TrunkRows,
    settings: FitSettings,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    tempered: bool = True,
) -> Learned:
    """Train what of a model reads rows, without calibration; see `fit_on_rows`."""
    before, model.target = model.target, rows.target
    held = rows.train if rows.val is None else rows.val
    model.adapt(held.outputs, held.y, before)
    model.check_target()
    model.set_temperature(1.0, None)
    job = model.head_job(rows.train.h)
    found = Learned([HeadRun()], 0)
    if job is not None:
        job = _with_one_mask(job) if rows.val is None else job
        # Masking leaves a head less sure of itself, and likelihood without the temperature that
        # is fitted afterwards would blame it for that.
        known = rows.train, rows.val, model.target
        runs = train_heads(job, *known, settings, tempered, on_epoch)
        kept = _take(model, job, rows)
        found = Learned(runs, None if job.keep_all else kept)
    model.fit_rows(rows.train.h, rows.train.y)
    return found


def _with_one_mask(job: HeadJob) -> HeadJob:
    """Without validation rows nothing can be chosen: a small mask, which hardly ever hurts."""
    if job.keep_all or len(job.heads) == 1:
        return job
    index = min(range(len(job.masks)), key=lambda i: abs(job.masks[i] - 0.05))
    return replace(job, heads=[job.heads[index]], masks=[job.masks[index]])


def _take(model: Predictor, job: HeadJob, rows: TrunkRows) -> int:
    """Give the model its heads; of several that compete, the most likely one."""
    if job.keep_all or len(job.heads) == 1:
        model.take_heads(job.heads)
        return 0
    found = []
    for head in job.heads:
        model.take_heads([head])
        found.append(_loss(model, rows))
    best = min(range(len(found)), key=found.__getitem__)
    model.take_heads([job.heads[best]])
    return best


def calibrate_on_rows(model: Predictor, rows: TrunkRows, calibrate: Calibrate) -> None:
    """Fit the temperature on rows of the trunk."""
    model.set_temperature(1.0, None)
    held = rows.train if rows.val is None else rows.val
    settle(model, lambda: judged_on_rows(model, held))
    if rows.val is None or calibrate is None:
        return
    copies = rows.copies if calibrate == "shifted" else ()
    fit_temperature(
        model, judged_on_rows(model, rows.val), [judged_on_rows(model, seen) for seen in copies]
    )


def _loss(model: Predictor, rows: TrunkRows) -> float:
    """The mean loss of validation rows and, half and half, of their copies, at the best of a few
    temperatures."""
    assert rows.val is not None
    target = model.target
    assert target is not None
    sets = [judged_on_rows(model, seen) for seen in (rows.val, *rows.copies)]
    shares = [0.5, *[0.5 / len(rows.copies)] * len(rows.copies)] if rows.copies else [1.0]
    return min(
        sum(
            share * float(target.nll(target.scaled(one.outputs, t), one.y).mean())
            for share, one in zip(shares, sets, strict=True)
        )
        for t in map(torch.tensor, TEMPERATURES)
    )


def judged_on_rows(model: Predictor, seen: Seen) -> Judged:
    """What a model says of rows that the trunk has seen, before calibration."""
    with torch.no_grad(), evaluating(model):
        return Judged(model.from_rows(seen.h, seen.outputs), seen.y)
