"""What metrics read of a prediction about labels: every label as a task of two classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from gduq.metrics.rows import Rows, read, rows_of
from gduq.metrics.weighted import Uneven, WeightedRows

__all__ = ["LabelRows", "over_labels", "read_labels"]


@dataclass(eq=False)
class LabelRows(WeightedRows):
    """m rows of a `gduq.LabelPrediction`, label by label.

    `read_labels` makes one; every metric that takes labels takes one too.
    """

    kind: ClassVar[str] = "labels"

    source: Any

    def __len__(self) -> int:
        return len(self.source)

    @property
    def device(self) -> torch.device:
        found: torch.device = self.source.samples.device
        return found

    def weighted(self, counts: Tensor) -> LabelRows:
        parts, other = self.parts, super().weighted(counts)
        other.__dict__["parts"] = {
            t: (known, rows.weighted(counts[:, known.cpu()])) for t, (known, rows) in parts.items()
        }
        return other

    @cached_property
    def parts(self) -> dict[int, tuple[Tensor, Rows]]:
        """Per label that is known somewhere: the numbers of the rows where it is, and those rows
        as a task of two classes."""
        p, found = self.source, {}
        for t in range(p.num_labels):
            known = _known(p, t)
            if known.numel():
                found[t] = known, read(p.column(t), labelled=False)
        return found

    def take(self, index: Tensor) -> LabelRows:
        """Some of the rows."""
        return LabelRows(self.source[index])


def read_labels(p: Any, target: Tensor | None = None, *, labelled: bool = True) -> LabelRows:
    """Check a prediction about labels and hand it to a metric.

    Args:
        p: A `gduq.LabelPrediction` or `LabelRows`.
        target: Only ``None``: the truth is part of the prediction.
        labelled: Whether the truth must be there.
    """
    rows = rows_of(p, target, LabelRows, "labels")
    if labelled:
        rows.source.require_target()
    return rows


def over_labels(
    metric: Callable[..., float], p: Any, target: Tensor | None = None, **options: Any
) -> float:
    """The mean of a metric over the labels for which it is defined; NaN if that is none."""
    rows = read_labels(p, target, labelled=False)
    found = [_each(metric, part, options) for _, part in rows.parts.values()]
    if rows.counts is None:
        defined = [value for value in found if not math.isnan(value)]
        return sum(defined) / len(defined) if defined else math.nan
    return rows.out(torch.stack(cast("list[Tensor]", found)).nanmean(dim=0))


def _each(metric: Callable[..., float], rows: Rows, options: dict[str, Any]) -> float:
    """The metric of one label; resamples that differ in size go one by one, where order counts."""
    try:
        return metric(rows, **options)
    except Uneven:
        alone = [rows.weighted(count.unsqueeze(0)) for count in rows.weights]
        return cast(float, torch.cat([cast(Tensor, metric(r, **options)) for r in alone]))


def _known(p: Any, t: int) -> Tensor:
    """Numbers of the rows whose label ``t`` is known; all of them without targets."""
    if p.target is None:
        return torch.arange(len(p), device=p.samples.device)
    known: Tensor = (~p.target[:, t].isnan()).nonzero().flatten()
    return known
