"""Cuts of anybody's data, for training and for judging under shift. Data is cut here only.

A *cut* is split name to row numbers; `by` and its neighbours make `Splits` of a dataset: a ``Data``
(node task), or a list of ``Data`` or a PyG dataset (graph task; node task if it holds a single
graph). ``task="node"`` makes a list of graphs a node task. `cut` is what `gduq train` does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq._checks import check_enough, check_int, one_of, parse_dates
from gduq.data.smiles import scaffolds
from gduq.errors import InputError
from gduq.graphs.packed import Packed, try_pack
from gduq.graphs.splits import Splits
from gduq.graphs.view import View

__all__ = ["Cut", "Domain", "by", "class_out", "concept", "covariate", "cut", "group", "leave_out",
           "limit_rows", "make_splits", "no_shift", "scaffold_ranks", "size", "tails"]  # fmt: skip

Cut = dict[str, Tensor]
Seed = int | torch.Generator
Values = Tensor | Sequence[Any] | np.ndarray
Task = Literal["node", "graph"]
Graphs: TypeAlias = Data | Sequence[Data]
Kind = Literal["covariate", "concept", "no_shift", "tails"]
_ENOUGH = 30  # validation rows that a small table gives more than its share for
_PASSES = ("train", "ood_test", "train", "train", "ood_val")
_DESCRIBED = {
    "covariate": "Covariate shift of {}: training and test hold different values.",
    "tails": "Shift of {}: training on the low values, testing on the highest.",
    "concept": "Concept shift of {}: its correlation with the label turns round.",
    "no_shift": "No shift: a uniform cut.",
}


def cut(
    values: Values | None,
    strata: Tensor,
    *,
    test: float = 0.2,
    holdout: float = 0.1,
    seed: int = 0,
    name: str | None = None,
) -> Cut:
    """A test that differs from training, and rows like those of training to hold out.

    The rows with the highest domain values are ``ood_test``: a share ``test`` of all, or as near to
    that as equal values allow. From the others a share ``holdout`` of all rows is drawn for
    ``id_val`` (more of few rows) and for ``id_test``, of each stratum alike, so that a rare class
    is in all of them. Without a domain there is no ``ood_test``, and ``id_test`` is its share.

    Args:
        values: One number (or text or date) per row ``[n]``, or ``None``.
        strata: Rows that are alike in their truth, as a number ``[n]``: `gduq.prediction` has them.
        test: Size of the shifted test.
        holdout: Size of ``id_val``, and of ``id_test``.
        seed: Of the draw.
        name: What the values are called.

    Example:
        >>> rows = cut(torch.arange(100), torch.zeros(100))
        >>> {split: len(numbers) for split, numbers in rows.items()}
        {'train': 50, 'id_val': 20, 'id_test': 10, 'ood_test': 20}
    """
    n = strata.numel()
    check_enough(n)
    val = max(holdout * n, min(_ENOUGH, n // 5))
    if values is None:
        return _checked(_hold_out(torch.arange(n), (val, test * n), seed, strata))
    order, starts = _sorted(_as_values(values))
    inside = [start for start in starts if 0.4 * n <= start <= 0.95 * n]
    if not inside:
        most = max(b - a for a, b in zip([0, *starts], [*starts, n], strict=True))
        raise InputError(
            f"rows that differ enough in {name or 'the domain'} to cut by it",
            f"{most} of {n} rows that are alike",
            "Cut in another way with --by: scaffold, size, group=COLUMN, time=COLUMN or random.",
        )
    start = min(inside, key=lambda start: abs(start - (1 - test) * n))
    held = _hold_out(order[:start], (val, holdout * n), seed, strata)
    return _checked({**held, "ood_test": order[start:]})


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
        >>> rows = covariate(torch.tensor([1, 5, 2, 2, 2, 9, 7, 3, 8, 4]))
        >>> {name: len(numbers) for name, numbers in rows.items()}
        {'train': 4, 'id_val': 1, 'id_test': 1, 'ood_val': 2, 'ood_test': 2}
    """
    codes = _codes(values)
    n = codes.numel()
    _check_shares("cuts", *cuts)
    order, starts = _sorted(-codes if descending else codes)
    starts = [0, *starts, n, n]
    first = starts[bisect_left(starts, int(cuts[0] * n))]
    second = starts[bisect_left(starts, min(max(int(cuts[1] * n), first + 1), n))]
    pool, val, test = torch.tensor_split(order, [first, second])
    size = int(holdout * (pool.numel() if holdout_of == "pool" else n))
    return leave_out(pool, val, test, size, seed, "Move the cuts: many rows may share one value.")


def tails(
    values: Values, *, low: float = 0.5, high: float = 0.9, holdout: float = 0.15, seed: int = 0
) -> Cut:
    """Train on values up to the ``low`` quantile, test on those from the ``high`` one on.

    Both bounds are inclusive and quantiles are interpolated; what lies between is ``ood_val``
    (left out where nothing does). ``id_val`` and ``id_test`` are a share ``holdout`` of the pool.

    Example:
        >>> {k: len(v) for k, v in tails(torch.arange(20)).items()}
        {'train': 8, 'id_val': 1, 'id_test': 1, 'ood_val': 8, 'ood_test': 2}
    """
    numbers = _as_values(values).double()
    _check_shares("quantiles", low, high)
    below, above = np.quantile(numbers.numpy(), (low, high))
    part = (numbers > below).long() + ((numbers > below) & (numbers >= above))
    pool, middle, test = (torch.nonzero(part == number).flatten() for number in range(3))
    size = int(holdout * pool.numel())
    found = leave_out(pool, middle, test, size, seed, "Move the quantiles apart.", {"ood_val"})
    return {name: rows for name, rows in found.items() if rows.numel()}


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
    codes, label = _codes(values), _as_labels(labels)
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
            rows = rows[_one_pass(codes[rows], kind, bias[step], pick[step], generator)]
        left[rows] = False
        parts[name].append(order[rows])
    pool, val, test = (torch.cat(parts[name]) for name in ("train", "ood_val", "ood_test"))
    size = int(holdout * pool.numel())
    return leave_out(pool, val, test, size, generator, "Change bias or pick.")


def no_shift(n: int, *, cuts: tuple[float, float] = (0.6, 0.8), seed: Seed = 0) -> Cut:
    """A uniform cut without any shift: train, ``id_val``, ``id_test``.

    Example:
        >>> {name: len(rows) for name, rows in no_shift(617).items()}
        {'train': 370, 'id_val': 123, 'id_test': 124}
    """
    _check_shares("cuts", *cuts)
    order = torch.randperm(n, generator=_generator(seed))
    parts = torch.tensor_split(order, [int(cuts[0] * n), int(cuts[1] * n)])
    return _checked(dict(zip(("train", "id_val", "id_test"), parts, strict=True)))


def leave_out(
    pool: Tensor,
    val: Tensor,
    test: Tensor,
    holdout: int,
    seed: Seed,
    do: str = "Leave out fewer rows, or hold out less.",
    optional: Collection[str] = (),
) -> Cut:
    """``val`` and ``test`` as OOD splits; ``holdout`` rows each of the pool as ID ones. A split
    without rows is an error, with ``do`` as its remedy, unless it is optional."""
    held = _hold_out(pool, (holdout, holdout), seed)
    return _checked({**held, "ood_val": val, "ood_test": test}, do, optional)


def limit_rows(
    cut: Mapping[str, Tensor],
    limit: int | None,
    seed: int = 0,
    strata: Mapping[str, Tensor] | None = None,
) -> Cut:
    """At most ``limit`` rows of a cut, each part in proportion and at least one row of it.

    Rows are drawn at random, and a larger limit keeps all rows of a smaller one. With ``strata``
    (as in `cut`, of the rows of each part) every part keeps its shares of them, and ``train`` at
    least one row of each if it has so many rows.

    Example:
        >>> rows = {"train": torch.arange(60), "id_test": torch.arange(60, 100)}
        >>> {name: len(kept) for name, kept in limit_rows(rows, 10).items()}
        {'train': 6, 'id_test': 4}
    """
    full = torch.tensor([rows.numel() for rows in cut.values()])
    if limit is None or check_int("limit", limit, least=len(cut)) >= int(full.sum()):
        return dict(cut)
    # the rule of Webster and Sainte-Lague: of largest remainders a part may shrink as limits grow
    claims = [n / (torch.arange(n, dtype=torch.float64) + 0.5) for n in full.tolist()]
    for claim in claims:
        claim[:1] = torch.inf
    owner = torch.arange(len(full)).repeat_interleave(full)
    best = torch.sort(torch.cat(claims), descending=True, stable=True).indices[:limit]
    sizes = torch.bincount(owner[best], minlength=len(full)).tolist()
    generator, kept = _generator(seed), {}
    for (name, rows), size in zip(cut.items(), sizes, strict=True):
        order = torch.randperm(rows.numel(), generator=generator)
        if strata is not None and name in strata:
            order = order[_in_proportion(strata[name][order], first=name == "train")]
        kept[name] = rows[order[:size]]
    return kept


def _in_proportion(strata: Tensor, first: bool) -> Tensor:
    """An order of rows of which every beginning holds the strata in proportion: the k-th of the n
    rows of a stratum stands at (k + 1/2) / n. ``first`` puts one of each, the largest stratum
    first, before all others."""
    import pandas as pd

    groups = pd.Series(strata.numpy()).groupby(strata.numpy())
    place, count = groups.cumcount().to_numpy(), groups.transform("size").to_numpy()
    key = (place + 0.5) / count
    key = np.where(first & (place == 0), -count.astype(float), key)
    return torch.from_numpy(np.argsort(key, kind="stable"))


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


def _hold_out(
    pool: Tensor, sizes: tuple[float, float], seed: Seed, strata: Tensor | None = None
) -> Cut:
    """Shuffle the pool and cut ``id_val`` and ``id_test`` from its end; with strata from each of
    them in proportion, and at least one row of one that has three."""
    generator = _generator(seed)
    parts: dict[str, list[Tensor]] = {"train": [], "id_val": [], "id_test": []}
    groups = torch.zeros_like(pool) if strata is None else strata[pool]
    for group in torch.unique(groups):
        rows = pool[groups == group]
        rows = rows[torch.randperm(rows.numel(), generator=generator)]
        least = 1 if rows.numel() >= 3 and strata is not None else 0
        shares = [size / pool.numel() for size in sizes]
        val, test = (max(least, round(share * rows.numel())) for share in shares)
        stay = max(rows.numel() - val - test, 0)
        for name, part in zip(parts, torch.tensor_split(rows, [stay, stay + val]), strict=True):
            parts[name].append(part)
    none = pool[:0]
    return {name: torch.cat([none, *found]) for name, found in parts.items()}


def _sorted(values: Tensor) -> tuple[Tensor, list[int]]:
    """The rows in the order of their values, and the positions where another value begins."""
    ordered, order = torch.sort(values, stable=True)
    return order, (torch.nonzero(ordered.diff()).flatten() + 1).tolist()


def _codes(values: Values) -> Tensor:
    """Ranks of the values: equal values have equal ranks, and order is kept ``[n]``."""
    numbers = _as_values(values)
    if not numbers.numel():
        raise InputError("at least one domain value", "none")
    codes: Tensor = torch.unique(numbers, return_inverse=True)[1]
    return codes


def _generator(seed: Seed) -> torch.Generator:
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator().manual_seed(check_int("seed", seed))


def _check_shares(what: str, first: float, second: float) -> None:
    if not 0 < first < second < 1:
        raise InputError(f"{what} with 0 < first < second < 1", (first, second))


def _checked(found: Cut, do: str = "Use more rows.", optional: Collection[str] = ()) -> Cut:
    empty = [name for name, rows in found.items() if not rows.numel() and name not in optional]
    if empty:
        sizes = ", ".join(f"{name} {rows.numel()}" for name, rows in found.items())
        raise InputError("a cut that leaves no part empty", sizes, do)
    return found


def _as_values(values: Values) -> Tensor:
    """Domain values as numbers ``[n]``: Python's floats in double precision, dates of NumPy in
    microseconds, and text, Python's dates and other things that sort by their rank."""
    import pandas as pd

    found: Any = values
    if not isinstance(values, Tensor):
        try:
            series = pd.Series(list(values))
            if series.dtype.kind == "c":
                raise TypeError("complex numbers")
            if series.dtype == object or isinstance(series.dtype, pd.StringDtype):
                found = pd.factorize(series, sort=True)[0]  # of a gap -1
                series = series.mask(series.isna())
            elif series.dtype.kind in "mM":
                found = series.astype(f"{series.dtype.str[1:3]}[us]").astype(np.int64).to_numpy()
            else:
                integral = series.dtype.kind in "iub"
                found = series.to_numpy(np.int64 if integral else np.float64)
            if series.isna().any():
                raise ValueError(f"{int(series.isna().sum())} without a value")
            found = torch.tensor(found)  # a copy: pandas hands out what cannot be written
        except (ValueError, TypeError) as error:  # such as values that cannot be sorted
            expected = "one number, text or date per row as domain values"
            raise InputError(expected, f"{type(values).__name__}: {error}") from error
    if found.dim() != 1:
        raise InputError("domain values of shape [n], one per row", list(found.shape))
    if found.is_floating_point() and not bool(torch.isfinite(found).all()):
        bad = int((~torch.isfinite(found)).sum())
        raise InputError("finite domain values", f"{bad} NaN or infinite")
    return found.detach().cpu()  # type: ignore[no-any-return]


def _as_labels(labels: Tensor | Sequence[int]) -> Tensor:
    """Class numbers as ``int64 [n]``, or an error that says why they are none."""
    do = "Cut along another domain; values by themselves with shifts.by(data, 'y')."
    tensor = torch.as_tensor(labels)
    if tensor.dim() > 1 and tensor.size(1) > 1:
        raise InputError("one class per row", f"{tensor.size(1)} targets per row", do)
    tensor = tensor.reshape(-1)
    if not torch.equal(tensor.long().to(tensor.dtype), tensor):
        raise InputError("integer labels (classes)", "values with fractions or NaN", do)
    return tensor.long()


# -- Splits of a dataset ---------------------------------------------------------------------------


def by(
    data: Graphs,
    values: Values | str | Callable[[Data], Any],
    kind: Kind = "covariate",
    *,
    seed: int = 0,
    task: Task | None = None,
    name: str = "",
    **options: Any,
) -> Splits:
    """Cut a dataset along any domain.

    Args:
        data: The dataset, see the module.
        values: One number, string or date per row (graph or node); or what to compute: ``"size"``,
            ``"degree"``, ``"scaffold"`` (molecules with ``smiles``; the common ones train), the
            name of an attribute, or a function of a graph. Numbers of nodes are averaged over a
            graph in a graph task.
        kind: ``"covariate"`` (`gduq.shifts.covariate`), ``"concept"``, ``"tails"``, ``"no_shift"``.
        seed: Of the random draws.
        task: ``"node"`` or ``"graph"``; ``None``: as the module says.
        name: Name of the result.
        options: Further arguments of the cut, such as ``descending=True``.

    Example:
        >>> edges = torch.zeros(2, 0).long()
        >>> graphs = [Data(edge_index=edges, num_nodes=1, y=i % 2) for i in range(20)]
        >>> splits = by(graphs, torch.arange(20), holdout=0.1)
        >>> {name: len(view) for name, view in splits}
        {'train': 8, 'id_val': 2, 'id_test': 2, 'ood_val': 4, 'ood_test': 4}
        >>> splits.domains["ood_test"]
        tensor([16, 17, 18, 19])
    """
    one_of("a kind", kind, _DESCRIBED)
    name = name or (values if isinstance(values, str) else "")
    rows = _all_rows(data, task)
    domain = _domain_values([data] if isinstance(data, Data) else data, rows, values)
    if kind == "no_shift":
        found = no_shift(len(rows), seed=seed, **options)
    elif kind == "concept":
        found = concept(domain, _as_labels(rows.target), seed=seed, **options)
    else:
        found = (covariate if kind == "covariate" else tails)(domain, seed=seed, **options)
    description = _DESCRIBED[kind].format(name or "the given values")
    return make_splits(rows, found, domain, name=name, description=description)


def size(data: Graphs, kind: Kind = "tails", *, seed: int = 0, **options: Any) -> Splits:
    """By number of nodes: as in the paper, train on the smaller half, test on the largest tenth."""
    return by(data, "size", kind, seed=seed, task="graph", **options)


def group(
    data: Graphs,
    labels: Sequence[Any] | Tensor,
    test: Any,
    val: Any = (),
    *,
    holdout: float = 0.1,
    seed: int = 0,
    task: Task | None = None,
) -> Splits:
    """Leave groups out: train on all others (universities, hospitals, laboratories).

    Args:
        data: The dataset.
        labels: The group of each row.
        test: Groups (or one group) that make ``ood_test``.
        val: Groups that make ``ood_val``. None: the first half of the test rows, by position.
        holdout: Size of ``id_val``, and of ``id_test``, as a share of all rows.
        seed: Of their draw.
        task: See `by`.
    """
    rows = _all_rows(data, task)
    names, test, val = _as_list(labels), _as_list(test), _as_list(val)
    if len(names) != len(rows):
        raise InputError(f"one group for each of the {len(rows)} rows", len(names))
    unknown = [one for one in [*test, *val] if one not in set(names)]
    if unknown or not test:
        raise InputError(f"test groups among {_first(set(names))}", unknown or "none")
    if both := set(test) & set(val):
        raise InputError("val and test without a common group", f"{_first(both)} in both")
    part = torch.tensor([1 if n in val else 2 if n in test else 0 for n in names])
    pool, middle, held = (torch.nonzero(part == number).flatten() for number in range(3))
    if not val:
        middle, held = held[: len(held) // 2], held[len(held) // 2 :]
    found = leave_out(pool, middle, held, int(holdout * len(rows)), seed)
    numeric = all(isinstance(name, (bool, int, float)) for name in names)
    codes = _as_values(names if numeric else [str(name) for name in names])
    text = f"Groups left out for testing: {_first(test)}."
    return make_splits(rows, found, codes, name="group", description=text)


def class_out(
    data: Graphs,
    classes: int | Collection[int] | Tensor,
    *,
    holdout: float = 0.1,
    seed: int = 0,
    task: Task | None = None,
) -> Splits:
    """Leave classes out of training, for OOD detection: both OOD splits hold these classes only.

    Labels keep their numbers, so a network needs as many outputs as before; accuracy on the OOD
    splits means nothing. Values have no classes to leave out: cut those with ``by(data, "y")``.
    """
    labels = _as_labels(_all_rows(data, task).target)
    result = group(data, labels, test=classes, holdout=holdout, seed=seed, task=task)
    text = f"Classes {_first(_as_list(classes))} appear in the OOD splits only, for OOD detection."
    return result.with_(name="class_out", description=text)


def make_splits(
    rows: View, cut: Cut, values: Tensor, *, name: str = "", description: str = ""
) -> Splits:
    """`Splits` of the rows in a cut, with the domain value of each."""
    if rows.task == "node":  # a mask keeps the order of the nodes
        cut = {split: numbers.sort().values for split, numbers in cut.items()}
    fields: dict[str, Any] = {split: rows.take(numbers) for split, numbers in cut.items()}
    fields["domains"] = {split: values[numbers] for split, numbers in cut.items()}
    if isinstance(known := rows.graphs, Packed):
        fields |= {"class_names": known.class_names, "target_names": known.target_names}
    return Splits(**fields, name=name, description=description)


def _all_rows(data: Graphs, task: Task | None) -> View:
    rows = View(data)
    if task == "node" or (task is None and len(rows) == 1):
        nodes = sum(int(graph.num_nodes or 0) for graph in rows.graphs)
        return View(rows.graphs, torch.ones(nodes, dtype=torch.bool))
    return View(try_pack(rows.graphs) or rows.graphs)


def _domain_values(
    graphs: Sequence[Data], rows: View, what: Values | str | Callable[[Data], Any]
) -> Tensor:
    """One number per row, see `by`. ``graphs`` as they were given: packing rounds floats."""
    if isinstance(what, str) and what == "scaffold":
        return scaffold_ranks([_attribute(graph, "smiles") for graph in graphs])
    if not isinstance(what, str) and not callable(what):
        values = _as_values(what)
        if len(values) != len(rows):
            raise InputError(f"one domain value for each of the {len(rows)} rows", len(values))
        return values
    of_graphs, found = rows.task == "graph", list[Any]()
    for graph in graphs:
        value = what(graph) if callable(what) else _attribute(graph, what, of_graphs)
        if isinstance(value, (Tensor, np.ndarray, list, tuple)) or not of_graphs:
            row = torch.as_tensor(value).detach().reshape(-1)
            if not of_graphs and row.numel() != graph.num_nodes:
                raise InputError(f"one value for each of {graph.num_nodes} nodes", row.numel())
            several = row.numel() != 1
            value = row if not of_graphs else (row.double().mean() if several else row).item()
        found.append(value)
    return _as_values(found) if of_graphs else torch.cat(found)


def _attribute(graph: Data, name: str, of_graphs: bool = False) -> Any:
    """An attribute of a graph; its size or its degrees where it has none of that name."""
    if name == "size" and of_graphs:
        return int(graph.num_nodes or 0)
    if name == "degree" and name not in graph:
        ends = _attribute(graph, "edge_index")
        return torch.bincount(ends[0], minlength=int(graph.num_nodes or 0))
    if name not in graph:
        raise InputError(f"graphs with an attribute {name!r}", f"only {sorted(graph.keys())}")
    return graph[name]


def scaffold_ranks(smiles: Sequence[str]) -> Tensor:
    """The Bemis-Murcko scaffold of each molecule as a number ``[n]``; 0 is the most common."""
    return _ranks(scaffolds(smiles))


def _ranks(names: Sequence[str]) -> Tensor:
    """The rank of each name by how often it is there; 0 is the most common."""
    count = Counter(names)
    rank = {name: i for i, name in enumerate(sorted(count, key=lambda n: (-count[n], n)))}
    return torch.tensor([rank[name] for name in names])


def _as_list(values: Any) -> list[Any]:
    """Groups as Python values, whatever holds them; a single one counts as a list of one."""
    if isinstance(values, (Tensor, np.ndarray, np.generic)):
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        values = [values]
    found = [v.item() if isinstance(v, (Tensor, np.generic)) else v for v in values]
    if any(isinstance(value, (list, set, dict)) for value in found):
        raise InputError("groups named by a number or text each", repr(found[0]))
    return found


def _first(values: Iterable[Any]) -> str:
    names = sorted(str(v) for v in values)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


# -- what `gduq train --by` means ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Domain:
    """What a test differs in: one number per row ``[n]``, the highest of which make the test.

    ``labels`` say what the numbers stand for, of things that have no order; ``dates`` that they are
    seconds.
    """

    name: str
    values: Tensor
    labels: Sequence[str] | None = None
    dates: bool = False

    @classmethod
    def of(
        cls, by: str, graphs: Sequence[Data], fields: Sequence[object] | None = None
    ) -> Domain | None:
        """What ``"scaffold"``, ``"size"``, ``"group=NAME"`` or ``"time=NAME"`` says of each graph;
        ``None`` for ``"random"``. ``fields``: what each row has under the name, which is an
        attribute of the graphs by default."""
        kind, _, name = by.partition("=")
        if kind == "random":
            return None
        if kind == "size":
            sizes = torch.tensor([int(graph.num_nodes or 0) for graph in graphs])
            return cls("atoms" if "smiles" in graphs[0] else "nodes", sizes)
        if kind == "scaffold":
            ranks = scaffold_ranks([_attribute(graph, "smiles") for graph in graphs])
            return cls("scaffold", ranks, [str(rank) for rank in ranks.tolist()])
        if fields is None:
            fields = [_attribute(graph, name) for graph in graphs]
            if several := [
                field for field in fields if isinstance(field, Tensor) and field.numel() > 1
            ]:
                raise InputError(f"one {name!r} per graph", f"shape {list(several[0].shape)}")
            fields = [field.item() if isinstance(field, Tensor) else field for field in fields]
        if kind == "time":
            values, are_dates = parse_dates(name, fields)
            return cls(name, torch.tensor(values, dtype=torch.float64), dates=are_dates)
        texts = [str(field) for field in fields]
        return cls(name, _ranks(texts), texts)

    def describe(self, rows: Tensor) -> str:
        """What some rows are in this respect."""
        if self.labels is None:
            low, high = (self._shown(v) for v in self.values[rows].aminmax())
            return f"{self.name} {low}" if low == high else f"{self.name} {low} to {high}"
        found = Counter(self.labels[row] for row in rows.tolist())
        if self.name == "scaffold":
            return f"{len(found)} scaffold{'s' * (len(found) != 1)}"
        names = sorted(found, key=lambda one: (-found[one], one))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"{self.name} {', '.join(names[:4])}{more}"

    def _shown(self, value: Tensor) -> str:
        if not self.dates:
            return f"{value.item():g}"
        return datetime.fromtimestamp(value.item()).isoformat(sep=" ").removesuffix(" 00:00:00")
