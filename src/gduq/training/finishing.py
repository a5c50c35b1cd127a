"""The last steps of `gduq.fit`: a temperature, and what novelty is measured against."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gduq.data.view import View
from gduq.graph import iterate, on_device
from gduq.nn.modes import evaluating
from gduq.prediction.predicting import device_of_model, predict
from gduq.prediction.predictor import Calibrate, Predictor
from gduq.shifts.copies import shifted_copies
from gduq.targets.base import Part

__all__ = ["finish_model", "fit_novelty", "fit_temperature"]

MOST = 20_000  # training rows that novelty's reference is chosen from
FEW = 20  # validation rows below which a temperature says little


def finish_model(
    model: Predictor, train: Any, val: Any, calibrate: Calibrate, batch_size: int, seed: int
) -> None:
    """Calibrate a trained model on validation rows, and note what its training rows are like.

    Args:
        model: Trained; its temperature and novelty are set.
        train: Training rows, as batches.
        val: Validation rows, or ``None``: the model then says that it is not calibrated.
        calibrate: What to fit the temperature on.
        batch_size: Graphs at a time.
        seed: For the copies and the choice of reference rows.
    """
    model.set_temperature(1.0, None)
    if val is not None and calibrate is not None:
        copies = [] if calibrate == "clean" else list(_copies(val, seed))
        clean = _part(model, val, batch_size)
        spoilt = [_part(model, copy, batch_size) for copy in copies]
        fit_temperature(model, clean, spoilt)
    rows = _features(model, train, batch_size)
    if rows is not None:
        held = None if val is None else _features(model, val, batch_size)
        fit_novelty(model, rows, held, seed)


def fit_temperature(
    model: Predictor,
    clean: tuple[Tensor, Tensor],
    copies: Sequence[tuple[Tensor, Tensor]],
    weights: Tensor | None = None,
) -> None:
    """Set the temperature that fits validation rows, half of the weight on their copies.

    Args:
        model: Whose temperature is set.
        clean: Raw outputs ``[K, n, O]`` and truth ``[n]`` of validation rows.
        copies: The same of shifted copies of them.
        weights: Of the hypotheses, ``[K]``.
    """
    assert model.target is not None
    if clean[1].size(0) < FEW:
        warnings.warn(
            f"calibrated on {clean[1].size(0)} validation rows only: expect little of it",
            stacklevel=2,
        )
    share = 0.5 / len(copies) if copies else 0.0
    parts: list[Part] = [(*clean, 0.5 if copies else 1.0)]
    parts += [(*copy, share) for copy in copies]
    value = model.target.best_temperature(parts, weights)
    model.set_temperature(value, "shifted" if copies else "clean")


def fit_novelty(model: Predictor, train: Tensor, val: Tensor | None, seed: int) -> None:
    """Note the representations ``[n, d]`` that novelty is measured against."""
    model.novelty.fit(train, val, torch.Generator().manual_seed(seed))


def _copies(val: Any, seed: int) -> Sequence[View]:
    """Shifted copies; none where the data cannot be copied (a loader, a heterogeneous graph)."""
    return shifted_copies(val, seed) if isinstance(val, View) else []


def _part(model: Predictor, data: Any, batch_size: int) -> tuple[Tensor, Tensor]:
    p = predict(model, data, batch_size, novelty=False)
    return p.samples, p.require_target()


def _features(model: Predictor, data: Any, batch_size: int) -> Tensor | None:
    """Representations of the rows that count ``[n, d]``, at most some thousands."""
    device, parts, seen = device_of_model(model), [], 0
    with torch.no_grad(), evaluating(model):
        for graph in iterate(data, batch_size):
            found = model.answer(on_device(graph, device), features=True).features
            if found is None:
                return None
            parts.append(found)
            seen += found.size(0)
            if seen >= MOST:
                break
    return torch.cat(parts)
