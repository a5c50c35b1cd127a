"""Rules of novelty that also read structure, for novelty_choices.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.utils import degree, scatter

from gduq.graph import label_rows, structure_of


class Seen(NamedTuple):
    """Rows: features ``[m, d]``, how far off the network is ``[m]``, `numbers` ``[m, s]``."""

    h: Tensor
    off: Tensor
    structure: Tensor


class Shares(NamedTuple):
    """Distances to training rows by features and by structure, and their shares, ``[m]`` each."""

    h: Tensor
    structure: Tensor
    nearer: Tensor
    odder: Tensor


Join = Callable[[Shares, Shares], Tensor]  # of rows and of validation rows -> how far rows are


def numbers(graph: Any, task: str) -> Tensor:
    """What gduq reads, and one number more: of a node the mean logarithm of its neighbours'
    degrees, of a graph the logarithm of its largest degree."""
    edges, nodes = graph.edge_index, graph.num_nodes
    degrees = degree(edges[1], nodes, dtype=torch.float64)
    more = scatter(degrees.log1p()[edges[0]], edges[1], dim_size=nodes, reduce="mean")
    if task == "graph":
        more = scatter(degrees.log1p(), graph.batch, reduce="max")
    own = structure_of(graph, task)  # type: ignore[arg-type]
    assert own is not None
    return torch.cat([own, more[label_rows(graph, len(more)), None]], dim=1)


def share(known: Tensor, far: Tensor, ties: float = 0.5) -> Tensor:
    """Share of known distances that are smaller; how much ties count."""
    known, far = known.sort().values, far.contiguous()
    less, least = torch.searchsorted(known, far), torch.searchsorted(known, far, right=True)
    return (less + ties * (least - less)) / len(known)


# -- how both shares become one ------------------------------------------------------------------


def larger(rows: Shares, val: Shares) -> Tensor:
    """gduq's rule."""
    return torch.maximum(rows.nearer, rows.odder)


def added(rows: Shares, val: Shares) -> Tensor:
    """The mean of both shares."""
    return rows.nearer + rows.odder


def fisher(rows: Shares, val: Shares) -> Tensor:
    """Fisher's sum of logarithms of p-values."""
    least = 0.5 / len(val.h)
    return -(1 - rows.nearer + least).log() - (1 - rows.odder + least).log()


def distances(rows: Shares, val: Shares) -> Tensor:
    """The sum of both distances, each in units of validation rows."""
    unit = val.h.median().clamp_min(1e-12), val.structure.mean().clamp_min(0.02)
    return rows.h / unit[0] + rows.structure / unit[1]


def alone(rows: Shares, val: Shares) -> Tensor:
    """Structure without features."""
    return rows.structure


def structured(
    by_h: Callable[[Tensor], Tensor],
    known: Tensor,
    val: Seen,
    join: Join = larger,
    k: int = 3,
    ties: float = 0.0,
    columns: slice = slice(-1),
    scaled: bool = False,
    order: float = 0.001,
) -> Callable[[Seen], Tensor]:
    """Novelty of rows by features and structure, against training rows with structure ``[R, s]``.

    Args:
        by_h: How far they are by features.
        known: Structure of the training rows.
        val: Validation rows.
        join: How both become one.
        k: How many nearest training rows by structure to average over.
        ties: How much validation rows of equal distance by structure count.
        columns: Which numbers of structure count; all but the last is what gduq reads.
        scaled: Whether structure is measured in deviations of the training rows.
        order: How much of novelty is that by features alone: it orders rows that are all farther
            than any validation row.
    """
    unit = known.std(dim=0).clamp_min(0.1) if scaled else torch.ones(known.size(1)).to(known)

    def by_structure(rows: Tensor) -> Tensor:
        one, two = (rows / unit)[:, columns], (known / unit)[:, columns]
        apart: Tensor = torch.cdist(one, two, p=torch.inf)
        return apart.topk(min(k, len(known)), largest=False).values.mean(dim=1)

    own = by_h(val.h), by_structure(val.structure)

    def shares(rows: Seen) -> Shares:
        far = by_h(rows.h), by_structure(rows.structure)
        return Shares(*far, share(own[0], far[0]), share(own[1], far[1], ties))

    among = shares(val)
    joined = join(among, among)

    def novelty(rows: Seen) -> Tensor:
        found = shares(rows)
        return (1 - order) * share(joined, join(found, among)) + order * found.nearer

    return novelty


STRUCTURED: dict[str, dict[str, Any]] = {
    "and structure, larger share": {},
    **{f"and structure, larger share, k={k}": {"k": k} for k in (1, 10)},
    "and structure, larger share, no order beyond": {"order": 0.0},
    "and structure, larger share, ties half": {"ties": 0.5},
    "and structure, larger share, in deviations": {"scaled": True},
    "and structure, larger share, first number": {"columns": slice(1)},
    "and structure, larger share, one number more": {"columns": slice(None)},
    "and structure, sum of shares": {"join": added},
    "and structure, Fisher's sum": {"join": fisher},
    "and structure, sum of distances": {"join": distances},
    "structure alone": {"join": alone, "order": 0.0},
}
