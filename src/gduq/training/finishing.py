"""The last steps of `gduq.fit`: a temperature, and what novelty is measured against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.data.view import View
from gduq.errors import warn_user
from gduq.graph import iterate, on_device, targets
from gduq.nn.call import evaluating
from gduq.prediction.predicting import device_of_model
from gduq.prediction.predictor import Calibrate, Predictor
from gduq.shifts.copies import shifted_copies
from gduq.targets.base import Part
from gduq.training.batches import Batches

__all__ = [
    "Judged",
    "copies_of",
    "features_of_rows",
    "finish_model",
    "fit_novelty",
    "fit_temperature",
    "judged",
    "settle",
    "warn_of_few",
]

MOST = 20_000  # rows that novelty looks at
FEW = 20  # validation rows below which a temperature says little


class Judged(NamedTuple):
    """What a model says of rows whose truth is known, before calibration."""

    outputs: Tensor  # [K, n, O]
    y: Tensor  # the truth [n]
    weights: Tensor | None = None  # of the hypotheses [K]; None means equal ones


def finish_model(
    model: Predictor,
    train: Batches,
    val: Batches | None,
    calibrate: Calibrate,
    batch_size: int,
    seed: int,
) -> None:
    """Calibrate a trained model on validation rows, and note what its training rows are like.

    Without validation rows the model says that it is not calibrated. The seed is for the copies and
    the choice of reference rows.
    """
    model.set_temperature(1.0, None)
    settle(model, lambda: judged(model, train if val is None else val, batch_size))
    if val is not None and calibrate is not None:
        clean = judged(model, val, batch_size)
        warn_of_few(clean.y.size(0))
        copies = copies_of(val, seed) if calibrate == "shifted" else []
        fit_temperature(model, clean, [judged(model, copy, batch_size) for copy in copies])
    rows = features_of_rows(model, train, batch_size, seed)
    if rows is not None:
        held = None if val is None else features_of_rows(model, val, batch_size, seed)
        fit_novelty(model, rows, held, seed)


def judged(model: Predictor, data: Any, batch_size: int | None = None) -> Judged:
    """What a model says of validation rows or of a copy of them, before calibration."""
    assert model.target is not None
    device = device_of_model(model)
    outputs, truth, weights = [], [], None
    with torch.no_grad(), evaluating(model):
        for graph in iterate(data, batch_size):
            graph = on_device(graph, device)
            found = model.answer(graph)
            y = targets(graph, found.outputs.size(1))
            assert y is not None  # all labels were read before the first epoch
            outputs.append(found.outputs)
            truth.append(model.target.check(y, "val"))
            weights = found.weights
    return Judged(torch.cat(outputs, dim=1), torch.cat(truth), weights)


def settle(model: Predictor, judge: Callable[[], Judged]) -> None:
    """Let the target note what a trained model leaves unexplained, where it needs to know."""
    assert model.target is not None
    if model.target.is_open:
        found = judge()
        model.target = model.target.settled(found.outputs, found.y, found.weights)


def copies_of(val: Batches, seed: int) -> Iterable[View]:
    """Shifted copies; none where the data cannot be copied (a loader, a heterogeneous graph)."""
    return shifted_copies(val, seed) if isinstance(val, View) else ()


def warn_of_few(rows: int) -> None:
    """Say that a temperature from so few validation rows is not worth much."""
    if rows < FEW:
        warn_user(
            f"calibrated on {rows} validation row{'' if rows == 1 else 's'} only: expect little "
            f"of it (from {FEW} rows on it helps; calibrate=None leaves it out)"
        )


def fit_temperature(model: Predictor, clean: Judged, copies: Sequence[Judged]) -> None:
    """Set the temperature that fits validation rows, half of the weight on their copies."""
    assert model.target is not None
    share = 0.5 / len(copies) if copies else 0.0
    parts: list[Part] = [(clean.outputs, clean.y, 0.5 if copies else 1.0)]
    parts += [(copy.outputs, copy.y, share) for copy in copies]
    value = model.target.best_temperature(parts, clean.weights)
    model.set_temperature(value, "shifted" if copies else "clean")


def fit_novelty(model: Predictor, train: Tensor, val: Tensor | None, seed: int) -> None:
    """Note the representations ``[n, d]`` that novelty is measured against."""
    model.novelty.fit(train, val, torch.Generator().manual_seed(seed))


def features_of_rows(model: Predictor, data: Batches, batch_size: int, seed: int) -> Tensor | None:
    """Representations of the rows that count ``[n, d]``; a random choice where there are many."""
    device, parts, seen = device_of_model(model), [], 0
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad(), evaluating(model):
        for graph in data.batches(batch_size, shuffle=True, generator=generator):
            found = model.represented(on_device(graph, device))
            if found is None:
                return None
            parts.append(found)
            seen += found.size(0)
            if seen >= MOST:  # batches come in random order: data may be sorted by class
                break
    return torch.cat(parts)
