"""`predict`: what any model says of some data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from gduq._torch import device_of_model
from gduq.errors import InputError, warn_user
from gduq.graphs import Graph, View, iterate, num_graphs, on_device, row_kind, targets
from gduq.graphs.rows import check_graph, device_of, label_rows
from gduq.models.network import as_predictor
from gduq.models.predictor import Predictor
from gduq.prediction import Classes, Labels, Target, infer_target
from gduq.prediction.base import Prediction
from gduq.tracing.call import Call, evaluating

__all__ = ["predict"]


def predict(
    model: nn.Module,
    data: Any,
    batch_size: int | None = None,
    call: Call | None = None,
    features: bool = False,
    novelty: bool = True,
) -> Any:
    r"""What a model says of all labelled rows of some data.

    Args:
        model: What `gduq.anchor` or `gduq.choose` gave, a baseline, or a plain network (K = 1).
        data: A View, a graph, a list of graphs, a dataset or a loader.
        batch_size: Graphs at a time.
        call: As in `gduq.anchor`, for a plain network.
        features: Also keep the representation of every row: that at the anchors, or at the head.
        novelty: Also say how unlike the training data every row is, if `gduq.fit` has seen it.

    Returns:
        In the order of the data: a `ClassPrediction` for classes, a `LabelPrediction` for yes/no
        labels or a `ValuePrediction` for real values. Targets come from ``y`` where it exists.
    """
    known = as_predictor(model, call)
    device, parts, seen = device_of_model(known), [], 0
    # Tensors of inference mode cannot be cached, so the caller's one is left for the time.
    with torch.inference_mode(False), torch.no_grad(), evaluating(known):
        for graph in iterate(data, batch_size):
            check_graph(graph)
            graph = on_device(graph, device)
            values = (value for store in graph.stores for value in store.values())
            if any(isinstance(value, Tensor) and value.is_inference() for value in values):
                graph = graph.clone()
            (outputs, rows, weights), ranks, far = known.calibrated_samples(
                graph, features, novelty
            )
            y = targets(graph, outputs.size(1))
            target = known.target or _guessed(known, outputs.size(2), y)
            if target.kind == "classes" and y is not None and bool(y.isnan().all()):
                y = None  # as in files of new rows; others may have gaps
            part = target.prediction(
                outputs,
                None if y is None else target.encode(y),
                features=rows if features else None,
                novelty=ranks if novelty else None,
                weights=weights,
                calibrated=known.calibration,
                nodes=_nodes(graph, outputs.size(1), seen),
            )
            if novelty and far is not None:
                part = replace(part, trust=known.trust(part, far))
            parts.append(part)
            seen += int(graph.num_nodes or 0)
    found = Prediction.concatenate(parts)
    if found.target is not None and not bool(found.known.any()):
        found = replace(found, target=None)
    if isinstance(data, View):
        if data.order is not None:
            found = found[data.order.to(device)]
        if data.task == "node":  # batches without a row were left out
            found = replace(found, nodes=data.numbers.to(device))
    return found


def _nodes(graph: Graph, rows: int, seen: int) -> Tensor | None:
    """The numbers ``[m]`` of the nodes that rows are about, after those of graphs seen before or as
    PyG's ``NeighborLoader`` knows them; ``None`` where rows are no nodes of a homogeneous graph."""
    kind, count = row_kind(graph), int(graph.num_nodes or 0)
    of_nodes = kind == "node" or (kind is None and count == rows != num_graphs(graph))
    if not of_nodes or isinstance(graph, HeteroData):
        return None
    known = graph.get("n_id")
    numbers = torch.arange(seen, seen + count) if known is None else known
    found: Tensor = numbers.to(device_of(graph))[label_rows(graph, count)]
    return found if len(found) == rows else None


def _guessed(model: Predictor, outputs: int, y: Tensor | None) -> Target:
    """What the outputs of a network that was never fitted may mean: classes, or labels where it
    ends in a sigmoid of several columns."""
    ending = None if model.trunk is None else model.trunk.ending
    if outputs > 1 and ending == "sigmoid":
        return Labels(rates=(0.5,) * outputs)
    kind = "classes" if y is None else infer_target(y, outputs).kind
    if kind != "classes":
        got = f"one that gduq.fit has not seen, and y that seems to hold {kind}"
        do = "Call gduq.fit(model, train, val) first; epochs=0 leaves a trained network as it is."
        raise InputError("a model that knows what its outputs mean", got, do)
    if y is None and outputs == 1 and ending is None:
        warn_user(
            "gduq.fit has not seen this network, so its one output is taken as the logit of two "
            "classes; gduq.fit(model, train, val, epochs=0) tells what it means, and calibrates"
        )
    return Classes.of_outputs(outputs)
