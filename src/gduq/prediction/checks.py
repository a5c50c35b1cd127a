"""What a `ClassPrediction` is made from, brought into one form or refused."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import torch
from torch import Tensor

from gduq._torch import exporting
from gduq.errors import InputError

__all__ = [
    "RowChoice",
    "as_features",
    "as_labels",
    "as_names",
    "as_nodes",
    "as_novelty",
    "as_outputs",
    "as_samples",
    "as_weights",
    "check_nodes",
    "row_index",
]

RowChoice = Tensor | slice | Sequence[int]

_ROUNDING = 1e-12  # how far from 1 the sum of normalised weights may be


def as_outputs(samples: Tensor, wanted: str) -> Tensor:
    """Finite outputs ``[K, m, O]`` in single or double precision; ``wanted`` describes them."""
    shape = list(samples.shape)
    if samples.dim() == 2:
        samples = samples.unsqueeze(0)
    if samples.dim() != 3 or 0 in (samples.size(0), samples.size(2)):
        raise InputError(wanted, shape)
    what = wanted.split(" of shape")[0]
    if not samples.is_floating_point():
        raise InputError(f"floating-point {what}", samples.dtype, "Convert with .float().")
    if not exporting() and not torch.isfinite(samples).all():
        raise InputError(
            f"finite {what}",
            f"{int((~torch.isfinite(samples)).sum())} NaN or infinite values",
            "Look for NaN in the input features; else train with a lower learning rate.",
        )
    return _precise(samples)


def as_samples(samples: Tensor) -> Tensor:
    """Logits of classes ``[K, m, C]`` with C >= 2; one logit becomes two, the first of them 0."""
    samples = as_outputs(samples, "logits of shape [K, m, C] or [m, C] with K, C >= 1")
    if samples.size(2) > 1:
        return samples
    return torch.cat([torch.zeros_like(samples), samples], dim=2)


def as_labels(target: Tensor, rows: int, classes: int) -> Tensor:
    """Integer labels ``[m]``.

    Example:
        >>> as_labels(torch.tensor([[0.0], [1.0]]), rows=2, classes=2)
        tensor([0, 1])
    """
    target = torch.as_tensor(target)
    if target.dim() == 2 and target.size(1) == 1:
        target = target.squeeze(1)
    if target.shape != (rows,):
        raise InputError(f"targets of shape [{rows}], one per row", list(target.shape))
    labels = target.long()
    if not torch.equal(labels.to(target.dtype), target):
        raise InputError("integer class labels", f"{target.dtype} values with fractions or NaN")
    if rows and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise InputError(
            f"labels from 0 to {classes - 1}",
            f"{int(labels.min())} to {int(labels.max())}",
            "Of a graph, mark the rows that have labels with gduq.data.View(data, rows).",
        )
    return labels


def as_names(given: Sequence[str] | None, count: int, kind: str) -> tuple[str, ...]:
    """One name per class, label or value; ``kind`` says what these are."""
    if given is None or len(given) == 0:
        return ()
    names = tuple(str(name) for name in given)
    if len(names) != count or len(set(names)) != len(names):
        raise InputError(f"{count} different {kind}", list(names))
    return names


def as_features(given: Tensor, rows: int) -> Tensor:
    """Representations ``[m, d]``."""
    features = _precise(torch.as_tensor(given).detach())
    if features.dim() != 2 or features.size(0) != rows:
        raise InputError(f"features of shape [{rows}, d]", list(features.shape))
    return features


def as_weights(given: Tensor, count: int) -> Tensor:
    """Weights ``[K]`` in float64 that sum to 1, as they are if they do so but for rounding.

    Example:
        >>> as_weights(torch.tensor([0.25, 0.75]), count=2)
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    weights = torch.as_tensor(given).detach().double()
    if weights.shape != (count,):
        raise InputError(f"weights of shape [{count}], one per hypothesis", list(weights.shape))
    if exporting():
        return weights
    total = float(weights.sum())
    if not (bool((weights >= 0).all()) and abs(total - 1.0) < 1e-4):
        raise InputError("weights of at least 0 that sum to 1", weights.tolist())
    return weights if abs(total - 1.0) < _ROUNDING else weights / total


def as_nodes(given: Tensor, rows: int) -> Tensor:
    """Node numbers ``[m]``."""
    nodes = torch.as_tensor(given)
    if nodes.shape != (rows,) or nodes.dtype != torch.int64:
        got = f"{nodes.dtype} of shape {list(nodes.shape)}"
        raise InputError(f"{rows} node numbers, one per row", got)
    return nodes


def as_novelty(given: Tensor, rows: int) -> Tensor:
    """Novelty ``[m]``, from 0 to 1."""
    novelty = _precise(torch.as_tensor(given).detach())
    if novelty.shape != (rows,):
        raise InputError(f"novelty of shape [{rows}], one per row", list(novelty.shape))
    if not bool(((novelty >= 0) & (novelty <= 1)).all()):
        raise InputError("novelty from 0 to 1", "values outside, or NaN")
    return novelty


def _precise(values: Tensor) -> Tensor:
    """Half floats become single; integers too."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def row_index(rows: RowChoice | None, length: int) -> Tensor | slice:
    """Rows as a mask, slice or index tensor that fits ``length`` rows.

    Example:
        >>> row_index([0, 2], length=3)
        tensor([0, 2])
    """
    if rows is None or isinstance(rows, slice):
        return rows or slice(None)
    index = torch.as_tensor(rows).cpu()
    if index.dtype == torch.bool:
        if index.shape != (length,):
            raise InputError(f"a mask of {length} entries, one per row", list(index.shape))
        return index
    if index.is_floating_point() and index.numel():
        raise InputError("rows as a mask, a slice or integers", index.dtype)
    low, high = (int(index.min()), int(index.max())) if index.numel() else (0, -1)
    if not -length <= low or high >= length:
        raise InputError(f"row numbers from 0 to {length - 1}", high if high >= length else low)
    return index.long()


def check_nodes(graph: Any, p: Sized, name: str) -> Any:
    """The graph of a method for nodes, when it is there and ``p`` is about all its nodes."""
    if graph is None:
        do = f"Pass {name}(graph=data), or bind a restored one with .on(data)."
        raise InputError(f"a graph for {name}", "none", do)
    if len(p) != graph.num_nodes:
        wanted = f"a prediction for each of the {graph.num_nodes} nodes of the graph"
        do = f"Predict all nodes and choose with rows=; {name} is for node tasks."
        raise InputError(wanted, f"{len(p)} rows", do)
    return graph
