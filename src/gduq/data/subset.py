"""Build only the graphs a ``limit`` asks for, in parts that survive a kill."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gduq.data.cache import cache_path, cached_shards
from gduq.data.packed import Packed
from gduq.data.view import View
from gduq.errors import InputError
from gduq.whole import whole

__all__ = ["LimitError", "build_rows", "shrink", "views_of"]


class LimitError(InputError):
    """A limit that keeps no row of some split, or more rows than there are."""

    def __init__(self, least: int, most: int, got: int) -> None:
        expected = f"a limit from {least} (one row per split) to {most} (all rows)"
        super().__init__(expected, got, "Leave limit out to take everything.")
        self.least, self.most = least, most

    def __reduce__(self) -> Any:
        return type(self), (self.least, self.most, self.got)


def shrink(
    cut: Mapping[str, Tensor],
    limit: int | None,
    seed: int = 0,
    labels: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Keep ``limit`` rows of a cut, each part in proportion and at least one row of it.

    Rows are drawn at random, and a larger limit keeps all rows of a smaller one. With ``labels``
    (class numbers of the rows of each part) every part keeps its shares of the classes, and
    ``train`` at least one row of each class if it has so many rows.

    Example:
        >>> cut = {"train": torch.arange(60), "id_test": torch.arange(60, 100)}
        >>> {name: len(rows) for name, rows in shrink(cut, 10).items()}
        {'train': 6, 'id_test': 4}
    """
    total = sum(rows.numel() for rows in cut.values())
    if limit is None:
        return dict(cut)
    limit = whole("limit", limit)
    if not len(cut) <= limit <= total:
        raise LimitError(len(cut), total, limit)
    generator = torch.Generator().manual_seed(whole("seed", seed))
    sizes = _sizes([rows.numel() for rows in cut.values()], limit)
    kept = {}
    for (name, rows), size in zip(cut.items(), sizes, strict=True):
        order = torch.randperm(rows.numel(), generator=generator)
        if labels is not None and name in labels:
            order = order[_by_class(labels[name][order], first=name == "train")]
        kept[name] = rows[order[:size]]
    return kept


def _sizes(full: list[int], limit: int) -> list[int]:
    """Parts of ``limit`` rows in all, none empty, by the rule of Webster and Sainte-Lague: of
    largest remainders a part may shrink as the limit grows."""
    claims = torch.cat([n / (torch.arange(1, n, dtype=torch.float64) + 0.5) for n in full])
    owner = torch.arange(len(full)).repeat_interleave(torch.tensor(full).sub(1).clamp(min=0))
    best = torch.sort(claims, descending=True, stable=True).indices[: limit - len(full)]
    return (torch.bincount(owner[best], minlength=len(full)) + 1).tolist()


def _by_class(labels: Tensor, first: bool) -> Tensor:
    """An order of rows of which every beginning holds the classes in proportion: the k-th of the n
    rows of a class stands at (k + 1/2) / n. ``first`` puts one of each class, the largest class
    first, before all others."""
    _, number, count = torch.unique(labels, return_inverse=True, return_counts=True)
    grouped = torch.sort(number, stable=True).indices
    place = torch.empty_like(number)
    place[grouped] = torch.arange(number.numel()) - (count.cumsum(0) - count)[number[grouped]]
    key = (place + 0.5) / count[number].double()
    if first:
        key = torch.where(place == 0, -count[number].double(), key)
    return torch.sort(key, stable=True).indices


def views_of(cut: Mapping[str, Tensor], graphs: Packed) -> dict[str, Any]:
    """A view of each part of a cut, given the graphs of all its rows one after the other."""
    parts = torch.arange(len(graphs)).split([rows.numel() for rows in cut.values()])
    return {name: View(graphs[part]) for name, part in zip(cut, parts, strict=True)}


def build_rows(
    root: str | Path | None,
    key: Mapping[str, Any],
    rows: Tensor,
    total: int,
    build: Callable[[Tensor], Packed],
    *,
    shard: int = 500,
    workers: int | None = None,
) -> Packed:
    """The graphs of some rows of a raw data set, from the cache or built in processes.

    A set of all ``total`` rows that is in the cache already is used; else only ``rows`` are built,
    ``shard`` of them at a time, under a key of their own. See `gduq.data.cache.cached_shards`.
    """
    everything = {**key, "rows": "all"}
    if rows.numel() == total or cache_path(root, everything).exists():
        job = partial(_part, build, range(total), shard)
        return cached_shards(root, everything, -(-total // shard), job, workers)[rows]
    some = {**key, "rows": hashlib.sha256(rows.numpy().tobytes()).hexdigest()[:16]}
    job = partial(_part, build, rows, shard)
    return cached_shards(root, some, -(-rows.numel() // shard), job, workers)


def _part(build: Callable[[Tensor], Packed], rows: Tensor | range, shard: int, i: int) -> Packed:
    return build(torch.as_tensor(rows[i * shard : (i + 1) * shard]))
