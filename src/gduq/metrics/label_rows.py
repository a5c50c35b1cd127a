"""What metrics read of a prediction about labels: every label as a task of two classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.rows import Rows, kind_of, read

__all__ = ["LabelRows", "over_labels", "read_labels"]


@dataclass(frozen=True, eq=False)
class LabelRows:
    """m rows of a `gduq.LabelPrediction`, label by label.

    `read_labels` makes one; every metric that takes labels takes one too.
    """

    kind: ClassVar[str] = "labels"

    source: Any

    def __len__(self) -> int:
        return len(self.source)

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


def read_labels(p: Any, target: Tensor | None = None, *, labelled: bool = True) -> LabelRows:
    """Check a prediction about labels and hand it to a metric.

    Args:
        p: A `gduq.LabelPrediction` or `LabelRows`.
        target: Only ``None``: the truth is part of the prediction.
        labelled: Whether the truth must be there.
    """
    if kind_of(p) != "labels":
        got = f"one about {kind_of(p)}" if hasattr(p, "kind") else type(p).__name__
        raise InputError("a prediction about labels (gduq.LabelPrediction)", got)
    if target is not None:
        raise InputError("true labels in the prediction", "target=", "Leave target out.")
    rows = p if isinstance(p, LabelRows) else LabelRows(p)
    if len(rows) == 0:
        raise InputError("at least one row", "an empty prediction", "Leave empty splits out.")
    if labelled:
        rows.source.require_target()
    return rows


def over_labels(
    metric: Callable[..., float], p: Any, target: Tensor | None = None, **options: Any
) -> float:
    """The mean of a metric over the labels for which it is defined; NaN if that is none."""
    rows = read_labels(p, target, labelled=False)
    found = [metric(part, **options) for _, part in rows.parts.values()]
    defined = [value for value in found if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


def _known(p: Any, t: int) -> Tensor:
    """Numbers of the rows whose label ``t`` is known; all of them without targets."""
    if p.target is None:
        return torch.arange(len(p), device=p.samples.device)
    known: Tensor = (~p.target[:, t].isnan()).nonzero().flatten()
    return known
