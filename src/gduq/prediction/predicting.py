"""`predict`: what any model says of some data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.anchored import Anchored
from gduq.auto import settled
from gduq.baselines import sample
from gduq.errors import InputError
from gduq.graph import iterate, label_rows, num_graphs, on_device, targets
from gduq.nn.call import Call
from gduq.nn.cut import evaluating
from gduq.nn.gnn import GNN
from gduq.prediction.result import Prediction

__all__ = ["predict"]


def predict(
    model: nn.Module,
    data: Any,
    batch_size: int | None = None,
    call: Call | None = None,
    features: bool = False,
) -> Prediction:
    r"""What a model says of all labelled rows of some data.

    Args:
        model: `Anchored`, `AutoAnchored`, `Ensemble`, `MCDropout`, or a plain network (K = 1).
        data: A View, a ``Data``, a list of graphs, a dataset or a loader.
        batch_size: Graphs at a time.
        call: As in `gduq.anchor`, for a plain network.
        features: Also keep the representation at the cut (at the readout, for a `GNN`), averaged
            over the nodes of a graph where rows are graphs. Of a sparse input it is the
            anchored layer's :math:`h W_h^\top`.

    Returns:
        A `Prediction` in the order of the data; targets come from ``y`` where it exists.
    """
    model = settled(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    parts = []
    # Tensors of inference mode cannot be cached, so the caller's one is left for the time.
    with torch.inference_mode(False), torch.no_grad():
        for graph in iterate(data, batch_size):
            graph = on_device(graph, device)
            if any(isinstance(v, Tensor) and v.is_inference() for _, v in graph):
                graph = graph.clone()
            samples = sample(model, graph, call)
            labelled = samples.size(1)
            hidden = _features(model, graph, labelled) if features else None
            parts.append(Prediction(samples, targets(graph, labelled), features=hidden))
    whole = Prediction.concatenate(parts)
    names = getattr(model, "class_names", None)  # a loaded model knows them
    return whole if names is None else replace(whole, class_names=names)


def _features(model: nn.Module, graph: Data, labelled: int) -> Tensor:
    represent: Any = getattr(model, "represent", None)
    if represent is not None:
        h: Tensor = represent(graph)
    elif isinstance(model, GNN):
        with evaluating(model):
            h = model.prefix(graph, "readout")[0]
    else:
        raise InputError(
            "an anchored model or a gduq.nn.GNN for features=True", type(model).__name__
        )
    if h.layout != torch.strided:  # bag-of-words input: what the anchored layer makes of it
        h = model.linear.residual(h) if isinstance(model, Anchored) else h.to_dense()
    rows = h[label_rows(graph, h.size(0))]
    return rows if rows.size(0) == labelled else _mean_by_graph(h, graph)


def _mean_by_graph(h: Tensor, graph: Data) -> Tensor:
    batch, graphs = graph.get("batch"), num_graphs(graph)
    batch = h.new_zeros(h.size(0), dtype=torch.int64) if batch is None else batch
    total = h.new_zeros(graphs, h.size(1)).index_add_(0, batch, h)
    return total / torch.bincount(batch, minlength=graphs).unsqueeze(1)
