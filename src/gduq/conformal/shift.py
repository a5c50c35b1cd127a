"""Do two sets of predictions come from the same distribution?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction import Prediction

__all__ = ["ShiftTest", "ShiftWarning", "shift_test"]

_MOST_ROWS, _MOST_COLUMNS = 2000, 512


class ShiftWarning(UserWarning):
    """The data differ from those a conformal predictor was fitted on: no guarantee holds."""


class ShiftTest(NamedTuple):
    """The outcome of a two-sample test."""

    pvalue: float  # of "no shift", corrected for the number of columns
    statistic: float  # the largest distance between two distribution functions
    columns: int  # how many were compared


def shift_test(p: Prediction, q: Prediction, *, seed: int = 0) -> ShiftTest:
    r"""A two-sample test on representations and what is predicted, column by column.

    Every column of what is predicted (`Prediction.shift_columns`) and of ``features`` is compared
    by a Kolmogorov-Smirnov test, and the smallest p-value is multiplied by the number of columns
    (Rabanser et al., 2019). What only one of both has does not count. At most 2000 rows of each set
    are looked at, and 512 random directions of wider features. Distant parts of one graph seem
    shifted too easily.

    Args:
        p: Predictions of one set.
        q: Predictions of the other, by the same model.
        seed: Seed of the choice of rows and directions.

    Example:
        >>> from gduq.prediction import ClassPrediction
        >>> logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> shift_test(ClassPrediction(logits), ClassPrediction(logits * 3)).pvalue < 0.001
        True
    """
    return compare(columns_of(p, seed), columns_of(q, seed))


class Columns(NamedTuple):
    """What a set of predictions is compared by, ``[m, ...]`` each."""

    parts: dict[str, Tensor]
    size: str  # what the predictions are about: "3 classes"


def columns_of(p: Prediction, seed: int) -> Columns:
    """What is predicted, and features if there are any; of at most 2000 rows."""
    if not len(p):
        raise InputError("at least one row", "none", "Leave empty splits out.")
    keep = torch.arange(len(p))
    if len(p) > _MOST_ROWS:
        generator = torch.Generator().manual_seed(seed)
        keep = torch.randperm(len(p), generator=generator)[:_MOST_ROWS]
    found = {name: getattr(p, name) for name in p.shift_columns}
    parts = {name: x.view(len(p), -1).cpu()[keep] for name, x in found.items() if x is not None}
    if p.features is not None:
        parts["features"] = _narrow(p.features, seed)[keep]
    return Columns({name: part.detach().double() for name, part in parts.items()}, p.size)


def _narrow(features: Tensor, seed: int) -> Tensor:
    """Dense features of at most 512 columns."""
    h = features.detach().cpu()
    if h.size(1) > _MOST_COLUMNS:
        generator = torch.Generator().manual_seed(seed)
        return h @ torch.randn(h.size(1), _MOST_COLUMNS, generator=generator, dtype=h.dtype)
    return h if h.layout == torch.strided else h.to_dense()


def compare(p: Columns, q: Columns) -> ShiftTest:
    """The test itself, on columns kept from earlier."""
    from scipy.stats import kstwo

    if p.size != q.size:
        raise InputError(f"predictions of {p.size}", f"some of {q.size}")
    known = [(part, q.parts[name]) for name, part in p.parts.items() if name in q.parts]
    for a, b in known:
        if a.size(1) != b.size(1):
            raise InputError(f"features of width {a.size(1)}", b.size(1))
    first, second = (torch.cat(parts, dim=1) for parts in zip(*known, strict=True))
    distance = _distances(first, second)
    size = max(round(len(first) * len(second) / (len(first) + len(second))), 1)
    pvalues = np.clip(kstwo.sf(distance.numpy(), size), 0.0, 1.0)
    corrected = min(1.0, float(pvalues.min()) * len(pvalues))
    return ShiftTest(corrected, float(distance.max()), len(pvalues))


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """Largest distance of the empirical distribution functions of each column ``[d]``."""
    values, order = torch.cat([first, second]).t().contiguous().sort(dim=1)
    up, down = 1 / len(first), -1 / len(second)
    gap = torch.where(order < len(first), up, down).double().cumsum(dim=1).abs()
    last = values[:, 1:] != values[:, :-1]  # among equal values only the last position counts
    return (gap[:, :-1] * last).amax(dim=1)
