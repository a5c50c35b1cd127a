"""`predict`: what any model says of some data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gduq.baselines.network import as_predictor
from gduq.graph import iterate, on_device, targets
from gduq.nn.call import Call
from gduq.nn.modes import evaluating
from gduq.prediction.predictor import Predictor
from gduq.prediction.result import Prediction
from gduq.targets.classes import Classes

__all__ = ["device_of_model", "predict"]


def predict(
    model: nn.Module,
    data: Any,
    batch_size: int | None = None,
    call: Call | None = None,
    features: bool = False,
    novelty: bool = True,
) -> Prediction:
    r"""What a model says of all labelled rows of some data.

    Args:
        model: What `gduq.anchor` or `gduq.choose` gave, a baseline, or a plain network (K = 1).
        data: A View, a graph, a list of graphs, a dataset or a loader.
        batch_size: Graphs at a time.
        call: As in `gduq.anchor`, for a plain network.
        features: Also keep the representation of every row: that at the anchors, or at the head.
        novelty: Also say how unlike the training data every row is, if `gduq.fit` has seen it.

    Returns:
        A `Prediction` in the order of the data; targets come from ``y`` where it exists.
    """
    known = as_predictor(model, call)
    device, parts = device_of_model(known), []
    asks = novelty and known.novelty.fitted
    # Tensors of inference mode cannot be cached, so the caller's one is left for the time.
    with torch.inference_mode(False), torch.no_grad(), evaluating(known):
        for graph in iterate(data, batch_size):
            graph = on_device(graph, device)
            if any(isinstance(v, Tensor) and v.is_inference() for v in _tensors(graph)):
                graph = graph.clone()
            found = known.answer(graph, features=features or asks)
            outputs = known.calibrated(found.outputs)
            width = outputs.size(2)
            target = known.target or Classes(max(2, width), one_logit=width == 1)
            rows = found.features
            parts.append(
                target.prediction(
                    outputs,
                    targets(graph, outputs.size(1)),
                    features=rows if features else None,
                    novelty=known.novelty(rows) if asks and rows is not None else None,
                    weights=found.weights,
                    calibrated=known.calibration,
                )
            )
    found: Prediction = Prediction.concatenate(parts)
    return found


def device_of_model(model: Predictor) -> torch.device:
    """Where a model computes."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _tensors(graph: Any) -> Any:
    for store in graph.stores:
        yield from store.values()
