"""Predictions of any kind, checked and handed to metrics as rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gduq.metrics.label_rows import LabelRows, read_labels
from gduq.metrics.rows import Rows, kind_of, read
from gduq.metrics.value_rows import ValueRows, read_values

__all__ = ["AnyRows", "read_any", "read_ranked", "take"]

AnyRows = Rows | LabelRows | ValueRows


def read_any(p: Any, target: Tensor | None = None, *, labelled: bool = True) -> AnyRows:
    """Rows of any kind."""
    if kind_of(p) == "labels":
        return read_labels(p, target, labelled=labelled)
    return read_ranked(p, target, labelled=labelled)


def read_ranked(p: Any, target: Tensor | None = None, *, labelled: bool = True) -> Rows | ValueRows:
    """Rows of classes or of one value, which have a certainty and a loss each."""
    if kind_of(p) == "values":
        return read_values(p, target, labelled=labelled)
    return read(p, target, labelled=labelled)


def take(source: Any, index: Tensor) -> Any:
    """Some rows of a prediction or of what metrics read."""
    return source.take(index) if isinstance(source, AnyRows) else source[index]
