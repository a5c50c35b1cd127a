"""A first pass over some rows, without consequences: it tells what the outputs of a model mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gduq.graph import targets
from gduq.prediction.predictor import Predictor
from gduq.targets import Target, Values
from gduq.training.batches import labels

__all__ = ["ReadTarget", "told_target"]

# From y of all rows, outputs and y of some of them, whether the network stays, and is bounded.
ReadTarget = Callable[[Tensor, Tensor, Tensor, bool, bool], Target]


@torch.no_grad()
def told_target(
    model: Predictor, batches: Iterable[Any], y: Tensor, stays: bool, read_target: ReadTarget
) -> Target:
    """The target that some batches tell.

    Args:
        model: Able to answer; its target is forgotten.
        batches: On its device.
        y: The truth of all training rows.
        stays: Whether the network is not trained any more.
        read_target: Decides.
    """
    model.target = Values()  # nothing is known: these are the bare outputs
    outputs: list[Tensor] = []
    truth: list[Tensor] = []
    for graph in batches:
        outputs.append(model.sample(graph).mean(dim=0))
        found = targets(graph, outputs[-1].size(0))
        truth.append(labels(graph) if found is None else found)
    return read_target(y, torch.cat(outputs), torch.cat(truth), stays, model.bounded)
