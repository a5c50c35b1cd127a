"""Do two sets of predictions come from the same distribution?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.rows import check_some, kind_of, read

__all__ = ["ShiftTest", "ShiftWarning", "shift_test"]

_MOST_ROWS, _MOST_COLUMNS = 2000, 512


class ShiftWarning(UserWarning):
    """The data differ from those a conformal predictor was fitted on: no guarantee holds."""


class ShiftTest(NamedTuple):
    """The outcome of a two-sample test."""

    pvalue: float  # of "no shift", corrected for the number of columns
    statistic: float  # the largest distance between two distribution functions
    columns: int  # how many were compared


def shift_test(p: Any, q: Any, *, seed: int = 0) -> ShiftTest:
    r"""A two-sample test on representations and what is predicted, column by column.

    Every column (probabilities and confidence; mean, deviation and ``epistemic`` of values and
    their ``novelty``; ``features``) is compared by a Kolmogorov-Smirnov test, and the smallest
    p-value is multiplied by the number of columns (Rabanser et al., 2019). Features and novelty
    count when both sets have them. At most 2000 rows of each set are looked at, and 512 random
    directions of wider features. Distant parts of one graph seem shifted too easily.

    Args:
        p: Predictions of one set.
        q: Predictions of the other, by the same model.
        seed: Seed of the choice of rows and directions.

    Example:
        >>> from gduq.prediction import Prediction
        >>> logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> shift_test(Prediction(logits), Prediction(logits * 3)).pvalue < 0.001
        True
    """
    return compare(columns_of(p, seed), columns_of(q, seed))


class Columns(NamedTuple):
    """What a set of predictions is compared by, ``[m, ...]`` each."""

    said: Tensor
    features: Tensor | None
    novelty: Tensor | None
    size: str  # what the predictions are about: "3 classes"


def columns_of(p: Any, seed: int) -> Columns:
    """What is predicted, features and novelty if there are any; of at most 2000 rows."""
    said = _said(p)
    features, novelty = getattr(p, "features", None), None
    if kind_of(p) == "values" and p.novelty is not None:
        novelty = p.novelty.detach().cpu().double().unsqueeze(1)
    generator = torch.Generator().manual_seed(seed)
    keep = torch.arange(len(said))
    if len(said) > _MOST_ROWS:
        keep = torch.randperm(len(said), generator=generator)[:_MOST_ROWS]
    return Columns(
        said[keep],
        None if features is None else _narrow(features, keep, seed),
        None if novelty is None else novelty[keep],
        size_of(p),
    )


def size_of(p: Any) -> str:
    """How many things the rows are about, in words: "3 classes"."""
    if kind_of(p) == "classes":
        return f"{read(p, labelled=False).num_classes} classes"
    return str(p.size)


def _said(p: Any) -> Tensor:
    """What is predicted ``[m, d]`` in float64."""
    kind = kind_of(p)
    if kind == "classes":
        rows = read(p, labelled=False)
        return torch.cat([rows.probs, rows.confidence.unsqueeze(1)], dim=1).double().cpu()
    check_some(p)
    if kind == "labels":
        found: Tensor = p.probs.double().cpu()
        return found
    parts = [part.view(len(p), -1).double().cpu() for part in (p.mean, p.std, p.epistemic)]
    return torch.cat(parts, dim=1)


def _narrow(features: Tensor, keep: Tensor, seed: int) -> Tensor:
    h = features.detach().cpu()
    h = h.to_dense() if h.layout != torch.strided and h.size(1) <= _MOST_COLUMNS else h
    if h.size(1) > _MOST_COLUMNS:
        generator = torch.Generator().manual_seed(seed)
        h = h @ torch.randn(h.size(1), _MOST_COLUMNS, generator=generator, dtype=h.dtype)
    return h[keep].double()


def compare(p: Columns, q: Columns) -> ShiftTest:
    """The test itself, on columns kept from earlier."""
    if p.size != q.size:
        raise InputError(f"predictions of {p.size}", f"some of {q.size}")
    from scipy.stats import kstwo

    pairs = [(p.said, q.said), (p.features, q.features), (p.novelty, q.novelty)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    for a, b in known[1:]:
        if a.size(1) != b.size(1):
            raise InputError(f"features of width {a.size(1)}", b.size(1))
    first, second = (torch.cat(parts, dim=1) for parts in zip(*known, strict=True))
    distance = _distances(first, second)
    rows, others = len(p.said), len(q.said)
    size = max(round(rows * others / (rows + others)), 1)
    pvalues = np.clip(kstwo.sf(distance.numpy(), size), 0.0, 1.0)
    corrected = min(1.0, float(pvalues.min()) * len(pvalues))
    return ShiftTest(corrected, float(distance.max()), len(pvalues))


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """Largest distance of the empirical distribution functions of each column ``[d]``."""
    values, order = torch.cat([first, second]).t().contiguous().sort(dim=1)
    up, down = 1 / len(first), -1 / len(second)
    gap = torch.where(order < len(first), up, down).double().cumsum(dim=1).abs()
    last = values[:, 1:] != values[:, :-1]  # among equal values only the last position counts
    return (gap[:, :-1] * last).amax(dim=1) if len(values[0]) > 1 else gap[:, 0]
