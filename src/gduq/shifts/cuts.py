"""The general cuts: from one domain value per row to the rows of each split.

Every function takes plain tensors and returns a *cut*: split name to row numbers. `gduq.shifts.by`
turns a cut's ingredients into `Splits` of a dataset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.whole import whole

__all__ = ["Cut", "Values", "as_labels", "as_values", "concept", "covariate", "leave_out",
           "no_shift", "tails"]  # fmt: skip

Cut = dict[str, Tensor]
Seed = int | torch.Generator
Values = Tensor | Sequence[Any] | np.ndarray
_EXPECTED = "one number, text or date per row as domain values"
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
    **and** whose value differs from the row before. The parts are the training pool, ``ood_val``
    and ``ood_test``; ``id_val`` and ``id_test`` are drawn from the pool.

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
    new = torch.nonzero(codes[order].diff()).flatten() + 1  # where a new value begins
    starts = [0, *new.tolist(), n, n]
    first = starts[bisect_left(starts, int(cuts[0] * n))]
    second = starts[bisect_left(starts, min(max(int(cuts[1] * n), first + 1), n))]
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
    between = {"ood_val": middle} if middle.numel() else {}
    return _checked({**cut, **between, "ood_test": test}, "Move the quantiles apart.")


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


# -- what a cut is made along: domain values and classes, whatever holds them ----------------------


def as_values(values: Values) -> Tensor:
    """Domain values as numbers ``[n]``: Python's floats in double precision, moments of NumPy in
    microseconds, and text, dates and other things that sort by their rank.

    Example:
        >>> as_values(["b", "a", "b"]), as_values([0.5, 2])
        (tensor([1, 0, 1]), tensor([0.5000, 2.0000], dtype=torch.float64))
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(_as_array(values))
    if tensor.dim() != 1:
        raise InputError("domain values of shape [n], one per row", list(tensor.shape))
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise InputError("finite domain values", f"{bad} NaN or infinite")
    return tensor.detach().cpu()


def as_labels(labels: Tensor | Sequence[int] | None) -> Tensor:
    """Class numbers as ``int64 [n]``, or an error that says why they are none."""
    if labels is None:
        raise InputError("integer labels y", "none")
    do = "Cut values with shifts.target, or along any other domain."
    tensor = torch.as_tensor(labels)
    if tensor.dim() > 1 and tensor.size(1) > 1:
        raise InputError("one class per row", f"{tensor.size(1)} targets per row", do)
    tensor = tensor.reshape(-1)
    whole = tensor.long()
    if not torch.equal(whole.to(tensor.dtype), tensor):
        raise InputError("integer labels (classes)", "values with fractions or NaN", do)
    return whole


def _as_array(values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(_EXPECTED, f"{type(values).__name__}: {error}") from error
    kind = array.dtype.kind
    if kind in "cV" or array.ndim != 1:
        raise InputError(_EXPECTED, f"{array.dtype} of shape {list(array.shape)}")
    if kind in "mM":
        if bool(np.isnat(array).any()):
            raise InputError("domain values without NaT", f"{int(np.isnat(array).sum())} of them")
        return array.astype(f"{array.dtype.str[1:3]}[us]").astype(np.int64)
    if kind in "US":
        return np.unique(array, return_inverse=True)[1].reshape(-1)
    if kind == "O":
        try:
            return np.unique(array, return_inverse=True)[1].reshape(-1)
        except TypeError as error:
            raise InputError(_EXPECTED, f"values that cannot be sorted ({error})") from error
    return array.astype({"u": np.int64, "i": np.int64, "b": np.bool_}.get(kind, np.float64))
