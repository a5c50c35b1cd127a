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
from gduq.errors import InputError

__all__ = ["build_rows", "shrink"]

Build = Callable[[Tensor], Packed]


def shrink(cut: Mapping[str, Tensor], limit: int | None, seed: int = 0) -> dict[str, Tensor]:
    """Keep about ``limit`` rows of a cut, each part in proportion and at least one row of it.

    Rows are drawn at random, and a larger limit keeps all rows of a smaller one.

    Example:
        >>> cut = {"train": torch.arange(60), "id_test": torch.arange(60, 100)}
        >>> {name: len(rows) for name, rows in shrink(cut, 10).items()}
        {'train': 6, 'id_test': 4}
    """
    total = sum(rows.numel() for rows in cut.values())
    if limit is None:
        return dict(cut)
    if not len(cut) <= limit <= total:
        raise InputError(
            f"a limit from {len(cut)} (one row a split) to {total} (all rows)",
            limit,
            "Leave limit out to take everything.",
        )
    generator = torch.Generator().manual_seed(seed)
    kept = {}
    for name, rows in cut.items():
        order = torch.randperm(rows.numel(), generator=generator)
        kept[name] = rows[order[: max(1, round(rows.numel() * limit / total))]]
    return kept


def build_rows(
    root: str | Path | None,
    key: Mapping[str, Any],
    rows: Tensor,
    total: int,
    build: Build,
    *,
    shard: int = 500,
    workers: int | None = None,
    progress: bool | None = None,
) -> Packed:
    """The graphs of some rows of a raw data set, from the cache or built in processes.

    A set of all rows that is in the cache already is used; else only ``rows`` are built, under a
    key of their own.

    Args:
        root: Cache folder.
        key: As in `gduq.data.cache`, without the rows.
        rows: Row numbers ``[m]``; the result has them in this order.
        total: Rows in the raw data set.
        build: Makes the graphs of given row numbers; runs in another process.
        shard: Rows built (and kept in memory) at a time.
        workers: Processes; ``None`` means one a core.
        progress: Show a progress bar; ``None`` means when a person is looking.
    """
    whole = {**key, "rows": "all"}
    options: dict[str, Any] = {"workers": workers, "progress": progress}
    if rows.numel() == total or cache_path(root, whole).exists():
        job = partial(_part, build, total, shard)
        return cached_shards(root, whole, -(-total // shard), job, **options).select(rows)
    marked = hashlib.sha256(rows.numpy().tobytes()).hexdigest()[:16]
    some = {**key, "rows": marked}
    job = partial(_part, build, rows, shard)
    return cached_shards(root, some, -(-rows.numel() // shard), job, **options)


def _part(build: Build, rows: Tensor | int, shard: int, i: int) -> Packed:
    """Part i of the given rows (or of all, given their number)."""
    start, stop = i * shard, (i + 1) * shard
    if isinstance(rows, int):
        return build(torch.arange(start, min(stop, rows)))
    return build(rows[start:stop])
