"""Models that stand on a frozen trunk: it runs once, and everything else reads its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.graph import check_graph, on_device
from gduq.nn.call import evaluating
from gduq.nn.trunk import Trunk
from gduq.prediction.predictor import Calibrate, HeadJob, Predictor
from gduq.targets import FirstLook, Target
from gduq.training.batches import Batches, ReadTarget, check_leak, labels
from gduq.training.finishing import (
    Described,
    Evidence,
    Judged,
    half_and_half,
    warn_of_one_voice,
    whole_structure,
)
from gduq.training.fit_settings import FitSettings
from gduq.training.history import Epoch, History
from gduq.training.side_by_side import TEMPERATURES, RowSet, train_heads

__all__ = ["TrunkRows", "fit_on_rows", "learn_on_rows"]


@dataclass(frozen=True, eq=False)
class Seen(RowSet):
    """Rows with what the network itself says of them, and how novelty sees them."""

    outputs: Tensor  # [m, O]
    structure: Tensor | None  # [m, s]


@dataclass(frozen=True, eq=False)
class TrunkRows(Evidence):
    """All rows that training needs, each seen once by the trunk."""

    train: Seen
    val: Seen | None
    copies: tuple[Seen, ...]
    trunk: Trunk
    target: Target
    seconds: float  # that the trunk took

    @classmethod
    def collect(
        cls,
        trunk: Trunk,
        train: Batches,
        val: Batches | None,
        read_target: ReadTarget,
        copies: Iterable[Batches] = (),
    ) -> TrunkRows:
        """Run the trunk over training rows, validation rows and copies of these."""
        start = time.perf_counter()
        first, held = _seen(trunk, train, "train"), None
        target = read_target(FirstLook(first.y, first.outputs, first.y, True, trunk.bounded))
        if val is not None:
            held = _seen(trunk, val, "val")
            held = replace(held, y=target.check_val(held.y, first.y))
        first = replace(first, y=target.check(first.y, "train"))
        found = (_seen(trunk, copy, "val") for copy in copies)
        shifted = tuple(replace(copy, y=target.check(copy.y, "val")) for copy in found)
        return cls(first, held, shifted, trunk, target, time.perf_counter() - start)

    @property
    def held(self) -> Seen:
        """Validation rows, or training rows where there are none."""
        return self.train if self.val is None else self.val

    def judged(self, model: Predictor, rows: Any) -> Judged:
        with torch.no_grad(), evaluating(model):
            described = Described(rows.h, rows.structure)
            return Judged(model.from_rows(rows.h, rows.outputs), rows.y, None, described)

    def described(self, model: Predictor, rows: Any) -> Described | None:
        return Described(rows.h, rows.structure)


def _seen(trunk: Trunk, data: Batches, name: str) -> Seen:
    device = next((p.device for p in trunk.parameters()), torch.device("cpu"))
    truth, outputs, rows = list[Tensor](), list[Tensor](), list[Described]()
    with torch.no_grad(), evaluating(trunk):
        for graph in data.batches(256):
            check_leak(graph, name)
            graph = on_device(graph, device)
            check_graph(graph)
            h, said = (trunk.labelled(found, graph) for found in trunk.run(graph))
            if bool(said.isnan().any()):
                raise InputError(f"a network whose outputs for {name} are numbers", "NaN")
            truth.append(labels(graph, said.size(0)))
            outputs.append(said)
            rows.append(Described(h, whole_structure(graph, trunk.answers, data)))
    h, structure = Described.joined(rows)
    return Seen(h, torch.cat(truth), torch.cat(outputs), structure)


def fit_on_rows(
    model: Predictor,
    rows: TrunkRows,
    settings: FitSettings,
    calibrate: Calibrate,
    on_epoch: Callable[[Epoch], None],
) -> History:
    """Train the heads of a model that reads the rows of a trunk, keep the best (or all), calibrate,
    note the training rows."""
    start = time.perf_counter()
    heads, kept = learn_on_rows(model, rows, settings, on_epoch, tempered=calibrate is not None)
    rows.finish(model, calibrate, settings.seed)
    spent = time.perf_counter() - start - sum(head.seconds for head in heads)
    if kept is None:
        return History(members=tuple(heads), overhead_seconds=spent)
    if rows.val is not None:
        warn_of_one_voice(model, rows.judged(model, rows.val))
    best = heads.pop(kept)
    return replace(best, rejected=tuple(heads), overhead_seconds=spent)


def learn_on_rows(
    model: Predictor,
    rows: TrunkRows,
    settings: FitSettings,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    tempered: bool = True,
) -> tuple[list[History], int | None]:
    """Train what of a model reads rows, without calibration.

    Returns what happened to each head, and which of them stayed (``None``: all).
    """
    before, model.target = model.target, rows.target
    model.adapt(rows.held.outputs, rows.held.y, before)
    model.check_target()
    model.set_temperature(1.0, None)
    job = model.head_job(rows.train.h)
    heads: list[History] = [History()]
    kept: int | None = 0
    if job is not None:
        job = _with_one_mask(job) if rows.val is None else job
        heads = train_heads(job, rows.train, rows.val, model.target, settings, tempered, on_epoch)
        kept = _take(model, job, rows)
    model.fit_rows(rows.train.h, rows.train.y)
    return heads, kept


def _with_one_mask(job: HeadJob) -> HeadJob:
    """Without validation rows nothing can be chosen: a small mask, which hardly ever hurts."""
    if job.keep_all:
        return job
    index = min(range(len(job.masks)), key=lambda i: abs(job.masks[i] - 0.05))
    return replace(job, heads=[job.heads[index]], masks=[job.masks[index]])


def _take(model: Predictor, job: HeadJob, rows: TrunkRows) -> int | None:
    """Give the model its heads; of several that compete, the most likely one."""
    if job.keep_all:
        model.take_heads(job.heads)
        return None
    best = 0
    if len(job.heads) > 1:
        found = []
        for head in job.heads:
            model.take_heads([head])
            found.append(_loss(model, rows))
        best = found.index(min(found))
    model.take_heads([job.heads[best]])
    return best


def _loss(model: Predictor, rows: TrunkRows) -> float:
    """The mean loss of validation rows and, half and half, of their copies, at the best of a few
    temperatures: masking leaves a head less sure of itself, and likelihood without the temperature
    that is fitted afterwards would blame it for that."""
    target = model.target
    assert target is not None
    sets = [rows.judged(model, seen) for seen in (rows.val, *rows.copies)]
    return min(
        sum(
            share * float(target.nll(target.scaled(one.outputs, t), one.y).mean())
            for share, one in zip(half_and_half(len(rows.copies)), sets, strict=True)
        )
        for t in map(torch.tensor, TEMPERATURES)
    )
