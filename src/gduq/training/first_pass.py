"""A first pass over some rows, without consequences: it tells what the outputs of a model mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gduq.graph import targets
from gduq.prediction.predictor import Predictor
from gduq.targets import FirstLook, Target, Values
from gduq.training.batches import labels

__all__ = ["ReadTarget", "told_target"]

ReadTarget = Callable[[FirstLook], Target]


@torch.no_grad()
def told_target(
    model: Predictor, batches: Iterable[Any], y: Tensor, stays: bool, read_target: ReadTarget
) -> Target:
    """The target that some batches, on the device of a model that can answer, tell.

    ``y`` is the truth of all training rows; a network that ``stays`` is not trained any more.
    """
    model.target = Values()  # nothing is known: these are the bare outputs
    outputs: list[Tensor] = []
    truth: list[Tensor] = []
    for graph in batches:
        outputs.append(model.sample(graph).mean(dim=0))
        found = targets(graph, outputs[-1].size(0))
        truth.append(labels(graph) if found is None else found)
    look = FirstLook(y, torch.cat(outputs), torch.cat(truth), stays, model.bounded)
    return read_target(look)
