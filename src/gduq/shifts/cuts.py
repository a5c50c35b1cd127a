"""The general cuts: from one domain value per row to the rows of each split.

Every function takes plain tensors and returns a *cut*: split name to row numbers. `gduq.shifts.by`
turns a cut's ingredients into `Splits` of a dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.shifts.domain_values import Values, as_labels, as_values
from gduq.whole import whole

__all__ = [
    "Cut",
    "concept",
    "covariate",
    "leave_out",
    "no_shift",
    "tails",
]

Cut = dict[str, Tensor]
Seed = int | torch.Generator
_PASSES = ("train", "ood_test", "train", "train", "ood_val")


def covariate(
    values: Values,
    *,
    cuts: tuple[float, float] = (0.6, 0.8),
    descending: bool = False,
    holdout: float = 0.1,
    holdout_of: Literal["pool", "all"] = "all",
    seed: int = 0,
) -> Cut:
    r"""Train on one end of the domain, test on the other; equal values are never parted.

    Rows are sorted by value. With :math:`n` rows and cuts :math:`(a, b)`, a new part starts at the
    first row whose index has reached :math:`\lfloor an \rfloor` (then :math:`\lfloor bn \rfloor`)
    **and** whose value differs from the row before, so each part runs on to the end of its value.
    The parts are the training pool, ``ood_val`` and ``ood_test``; ``id_val`` and ``id_test`` are
    drawn from the pool.

    Args:
        values: One number (or string) per row ``[n]``.
        cuts: Where ``ood_val`` and ``ood_test`` should start, as shares of the rows.
        descending: Train on the large values, test on the small ones.
        holdout: Size of ``id_val``, and of ``id_test``, as a share.
        holdout_of: Share of what: the training ``"pool"``, or ``"all"`` rows.
        seed: Of the draw from the pool.

    Example:
        >>> cut = covariate(torch.tensor([1, 5, 2, 2, 2, 9, 7, 3, 8, 4]))
        >>> {name: len(rows) for name, rows in cut.items()}
        {'train': 4, 'id_val': 1, 'id_test': 1, 'ood_val': 2, 'ood_test': 2}
    """
    codes = _codes(values)
    n = codes.numel()
    _check_share("cuts", *cuts)
    order = torch.sort(-codes if descending else codes, stable=True).indices
    starts = _group_starts(codes[order])
    first = _next_start(starts, int(cuts[0] * n), n)
    second = _next_start(starts, max(int(cuts[1] * n), first + 1), n)
    pool, val, test = torch.tensor_split(order, [first, second])
    size = holdout * (pool.numel() if holdout_of == "pool" else n)
    cut = {**_hold_out(pool, int(size), seed), "ood_val": val, "ood_test": test}
    return _checked(cut, "Move the cuts: too many rows may share one value.")


def tails(
    values: Values,
    *,
    low: float = 0.5,
    high: float = 0.9,
    holdout: float = 0.15,
    seed: int = 0,
) -> Cut:
    """Train on values up to the ``low`` quantile, test on those from the ``high`` one on.

    Both bounds are inclusive and quantiles are interpolated; what lies between is ``ood_val``
    (left out where nothing does). ``id_val`` and ``id_test`` are a share ``holdout`` of the pool.

    Example:
        >>> {k: len(v) for k, v in tails(torch.arange(20)).items()}
        {'train': 8, 'id_val': 1, 'id_test': 1, 'ood_val': 8, 'ood_test': 2}
    """
    numbers = as_values(values).double()
    _check_share("quantiles", low, high)
    below, above = (float(np.quantile(numbers.numpy(), q)) for q in (low, high))
    pool = torch.nonzero(numbers <= below).flatten()
    test = torch.nonzero((numbers >= above) & (numbers > below)).flatten()
    middle = torch.nonzero((numbers > below) & (numbers < above)).flatten()
    cut = _hold_out(pool, int(holdout * pool.numel()), seed)
    if middle.numel():
        cut["ood_val"] = middle
    return _checked({**cut, "ood_test": test}, "Move the quantiles apart.")


def concept(
    values: Values,
    labels: Tensor | Sequence[int],
    *,
    bias: tuple[float, float, float, float] = (0.95, 0.95, 0.9, 0.85),
    pick: tuple[float, float, float, float] = (0.4, 0.6, 0.5, 1.0),
    holdout: float = 0.15,
    seed: int = 0,
) -> Cut:
    r"""Labels go with the domain in training and against it in the tests.

    A row is *aligned* if :math:`s\,(y - \bar y) > 0`, where :math:`s` is +1 for the lower half of
    the domain values and -1 for the upper one. Five passes over the rows that are left draw, in
    this order, a first part of train, ``ood_test``, two more parts of train, and ``ood_val``, which
    takes the rest. A training pass takes an aligned row with probability ``bias * pick`` and
    another with ``(1 - bias) * pick``; the ``ood_test`` pass prefers :math:`s\,(y - \bar y) < 0`.
    Where a pass would take only one of the two kinds of a domain that has both, one row of the
    other kind is added. Finally ``id_val`` and ``id_test`` are drawn from the training pool.

    Args:
        values: One number (or string) per row ``[n]``.
        labels: Class numbers ``[n]``.
        bias: One per pass but the last.
        pick: One per pass but the last.
        holdout: Size of ``id_val``, and of ``id_test``, as a share of the training pool.
        seed: Of all draws.
    """
    codes, label = _codes(values), as_labels(labels)
    if codes.shape != label.shape:
        raise InputError(f"one label for each of the {codes.numel()} values", label.numel())
    generator = _generator(seed)
    order = torch.sort(codes, stable=True).indices
    codes, label = codes[order], label[order].double()
    starts = torch.searchsorted(codes, codes)  # rows of lower domains
    sign = torch.where(starts < codes.numel() / 2, 1.0, -1.0)
    tilt = sign * (label - label.mean())
    left = torch.ones_like(tilt, dtype=torch.bool)
    parts: dict[str, list[Tensor]] = {"train": [], "ood_test": [], "ood_val": []}
    for step, name in enumerate(_PASSES):
        rows = torch.nonzero(left).flatten()
        if step < len(bias):
            kind = tilt[rows] > 0 if name == "train" else tilt[rows] < 0
            taken = _one_pass(codes[rows], kind, bias[step], pick[step], generator)
            rows = rows[taken]
        left[rows] = False
        parts[name].append(order[rows])
    pool = torch.cat(parts["train"])
    cut = _hold_out(pool, int(holdout * pool.numel()), generator)
    rest = {name: torch.cat(parts[name]) for name in ("ood_val", "ood_test")}
    return _checked({**cut, **rest}, "Change bias or pick.")


def no_shift(n: int, *, cuts: tuple[float, float] = (0.6, 0.8), seed: Seed = 0) -> Cut:
    """A uniform cut without any shift: train, ``id_val``, ``id_test``.

    Example:
        >>> {name: len(rows) for name, rows in no_shift(617).items()}
        {'train': 370, 'id_val': 123, 'id_test': 124}
    """
    _check_share("cuts", *cuts)
    order = torch.randperm(n, generator=_generator(seed))
    parts = torch.tensor_split(order, [int(cuts[0] * n), int(cuts[1] * n)])
    cut = dict(zip(("train", "id_val", "id_test"), parts, strict=True))
    return _checked(cut, "Use more rows.")


def leave_out(pool: Tensor, val: Tensor, test: Tensor, holdout: int, seed: Seed) -> Cut:
    """``val`` and ``test`` as OOD splits; ``holdout`` rows each of the pool as ID ones."""
    cut = {**_hold_out(pool, holdout, seed), "ood_val": val, "ood_test": test}
    return _checked(cut, "Leave out fewer rows, or hold out less.")


def _one_pass(
    codes: Tensor, kind: Tensor, bias: float, pick: float, generator: torch.Generator
) -> Tensor:
    """Which rows (sorted by domain) a pass takes; ``kind`` marks the ones it prefers."""
    draws = torch.rand(codes.numel(), 2, generator=generator, dtype=torch.float64)
    u, v = draws.unbind(dim=1)
    taken = torch.where(kind, v < bias, v > bias) & (u < pick)
    _, domain = torch.unique_consecutive(codes, return_inverse=True)
    cell = domain * 2 + kind.long()  # a domain and a kind
    cells = 2 * (int(domain.max()) + 1 if domain.numel() else 0)
    present = torch.bincount(cell, minlength=cells).view(-1, 2) > 0
    got = torch.bincount(cell[taken], minlength=cells).view(-1, 2) > 0
    lacking = present.all(1, keepdim=True) & got.any(1, keepdim=True) & ~got
    rows = torch.arange(codes.numel())
    last = torch.full((cells,), -1).scatter_reduce_(0, cell, rows, "amax")
    # no row of a lacking cell was taken, so its last row is the last rejected one
    taken[last[lacking.flatten()]] = True
    return taken


def _codes(values: Values) -> Tensor:
    """Ranks of the values: equal values have equal ranks, and order is kept ``[n]``."""
    array = as_values(values).numpy()
    if array.size == 0:
        raise InputError("at least one domain value", "none")
    return torch.from_numpy(np.unique(array, return_inverse=True)[1].reshape(-1))


def _generator(seed: Seed) -> torch.Generator:
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator().manual_seed(whole("seed", seed))


def _check_share(what: str, first: float, second: float) -> None:
    if not 0 < first < second < 1:
        raise InputError(f"{what} with 0 < first < second < 1", (first, second))


def _group_starts(codes: Tensor) -> Tensor:
    """Where a new value begins in sorted codes, the first row included."""
    changed = torch.nonzero(codes.diff()).flatten() + 1
    return torch.cat([changed.new_zeros(1), changed])


def _next_start(starts: Tensor, index: int, n: int) -> int:
    where = int(torch.searchsorted(starts, index))
    return int(starts[where]) if where < starts.numel() else n


def _hold_out(pool: Tensor, size: int, seed: Seed) -> Cut:
    """Shuffle the pool and cut two parts of ``size`` from its end, ``id_test`` last."""
    pool = pool[torch.randperm(pool.numel(), generator=_generator(seed))]
    stay = max(pool.numel() - 2 * size, 0)
    train, val, test = pool[:stay], pool[stay : stay + size], pool[stay + size :]
    return {"train": train, "id_val": val, "id_test": test}


def _checked(cut: Mapping[str, Tensor], do: str) -> Cut:
    empty = [name for name, rows in cut.items() if rows.numel() == 0]
    if empty:
        sizes = ", ".join(f"{name} {rows.numel()}" for name, rows in cut.items())
        raise InputError("a cut that leaves no part empty", sizes, do)
    return dict(cut)
