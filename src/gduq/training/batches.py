"""What training reads: mini-batches of a View or of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gduq.errors import InputError, warn_user
from gduq.graphs import Batches, Graph, Loader, View, as_graph, label_rows, row_kind, targets
from gduq.graphs import as_batches as any_batches
from gduq.graphs.packed import try_pack
from gduq.graphs.view import overlap
from gduq.prediction import Target, TargetSample
from gduq.training.loop import short_hash

__all__ = ["Batches", "InferTarget", "Loader", "as_batches", "described", "even_size", "labels",
           "packed", "random_batches", "truths", "warn_of_overlap"]  # fmt: skip

InferTarget = Callable[[TargetSample], Target]  # what the outputs of a network mean


def as_batches(data: object, name: str) -> Batches:
    """Whatever holds labelled rows, as something that hands out mini-batches.

    ``name`` is what the caller calls it, ``"train"`` or ``"val"``.
    """
    if isinstance(data, HeteroData):
        wanted = f"the rows of a HeteroData that count in {name}"
        do = "Pass gduq.data.View(data, mask, node_type=...)."
        raise InputError(wanted, "the graph alone", do)
    source = any_batches(data)
    if isinstance(source, Loader):
        if isinstance(source.own, (Iterator, list, tuple)):
            wanted = f"a View, a Data, a list of graphs, a PyG dataset or a loader as {name}"
            do = "Of sampled neighbourhoods, torch.utils.data.DataLoader(batches, batch_size=None)."
            raise InputError(wanted, type(data).__name__, do)
        if name == "train" or not source.is_plain:  # training keeps the loader's order
            return source
        source = View(cast(Any, data).dataset)
    view = source if source is data else _labelled(source.graphs)
    if view.task == "graph":
        _check_leak(as_graph(view.graphs[0]))
    if len(view) == 0:
        raise InputError(f"at least one labelled row in {name}", "none", "Check the mask.")
    return view


def _labelled(graphs: Sequence[Graph]) -> View:
    """All graphs; where each of them labels its nodes (of a lone one: or edges to predict),
    those that count."""
    first = as_graph(graphs[0])
    if len(graphs) == 1 and isinstance(first, Data) and row_kind(first) == "edge":
        return View(graphs, edges=True)
    if not all(_labels_nodes(graph) for graph in graphs):
        return View(graphs)
    masks = []
    for graph in graphs:
        _check_leak(graph)
        masks.append(torch.zeros(graph.y.size(0), dtype=torch.bool))
        masks[-1][label_rows(graph, graph.y.size(0))] = True
    return View(graphs, torch.cat(masks))


def _labels_nodes(graph: object) -> bool:
    y = graph.get("y") if isinstance(graph, Data) else None
    return isinstance(y, Tensor) and y.dim() > 0 and 1 < y.size(0) == cast(Data, graph).num_nodes


def _check_leak(graph: Graph) -> None:
    """Refuse a graph whose own mask says that not all of its labels are for training."""
    masked = isinstance(graph, Data) and graph.get("train_mask") is not None
    if masked and row_kind(graph) is None and _labels_nodes(graph):
        raise InputError(
            "a choice of nodes",
            "a whole graph with a train_mask, whose test labels would be used too",
            "Pass gduq.data.View(data, data.train_mask) and, as val, View(data, data.val_mask).",
        )


def packed(data: Batches) -> Batches:
    """The same rows, of graphs that are packed once where they can be."""
    if not isinstance(data, View) or len(data.graphs) == 1:
        return data
    found = data._packed if data.mask is None else try_pack(data.graphs)
    return data if found is None else replace(data, graphs=found)


def warn_of_overlap(train: Batches, val: Batches) -> None:
    """Say so where validation rows are training rows too, as far as the same objects show it."""
    one, two = (data if isinstance(data, View) else data.rows for data in (train, val))
    if one is not None and two is not None and (shared := overlap(one, two)):
        warn_user(
            f"{shared} of {len(two)} validation rows are training rows too: the epoch chosen and "
            "the calibration will be overconfident (pass rows it is not trained on as val)"
        )


def labels(graph: Graph, rows: int | None = None) -> Tensor:
    """The truth of the rows of a batch that count, ``[m, ...]``; of ``rows`` answers, if given."""
    _check_leak(graph)
    y = targets(graph, rows)
    if y is None:
        raise InputError("graphs with labels y", "a batch without")
    return y


def truths(source: Batches) -> Tensor:
    """The truth of all rows, ``[m, ...]``."""
    if isinstance(source, View):
        return source.target
    found = torch.cat([labels(graph).cpu() for graph in source.batches()])
    if found.numel() == 0:
        raise InputError("at least one labelled row in every loader", "none")
    return found


def described(source: Batches, y: Tensor) -> str:
    """Rows in few words: by their labels, one after the other if their order is known."""
    known = y.tolist() if isinstance(source, View) else sorted(y.flatten().tolist())
    return f"{y.size(0)} rows ({short_hash(known)})"


def random_batches(
    source: Batches, rows: int, batch_size: int, generator: torch.Generator
) -> Iterator[Graph]:
    """A few random batches with at least ``rows`` labelled rows, if there are as many."""
    seen = 0
    for graph in source.batches(batch_size, shuffle=True, generator=generator):
        yield graph
        seen += labels(graph).size(0)
        if seen >= rows:
            break


def even_size(count: int, batch_size: int) -> int:
    """A slightly larger batch size where the last batch would be tiny: BatchNorm needs two rows."""
    least = 4 if batch_size >= 8 else 2
    while batch_size < count and 0 < count % batch_size < least:
        batch_size += 1
    return batch_size
