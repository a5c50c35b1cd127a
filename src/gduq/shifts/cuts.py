"""Cuts of anybody's data, for training and for judging under shift. Data is cut here only.

A *cut* is split name to row numbers. `cut`, `covariate`, `tails`, `concept` and `no_shift` make one
of domain values: a number, text or date per row ``[n]``. ``holdout`` is the size of ``id_val``, and
of ``id_test``, as a share; ``seed`` is that of the draws.

`by` and its neighbours make `Splits` of a dataset: a ``Data`` (node task), or a list of ``Data`` or
a PyG dataset (graph task; node task if it holds a single graph). ``task="node"`` makes a list of
graphs a node task.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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

__all__ = ["Cut", "Domain", "by", "concept", "covariate", "cut", "group", "leave_out", "limit_rows",
           "make_splits", "no_shift", "size", "tails"]  # fmt: skip

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
    """What `gduq train` does: a test that differs from training, and rows like those of training.

    The rows with the highest domain values are ``ood_test``: a share ``test`` of all, or as near to
    that as equal values allow. From the others a share ``holdout`` of all rows is drawn for
    ``id_val`` (more of few rows) and for ``id_test``, of each stratum alike, so that a rare class
    is in all of them. Without values there is no ``ood_test``, and ``id_test`` is its share.
    ``strata`` ``[n]`` number rows that are alike in their truth: `gduq.prediction` has them.

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

    Rows are sorted by value (``descending``: the largest first). With :math:`n` rows and cuts
    :math:`(a, b)`, a new part starts at the first row whose index has reached
    :math:`\lfloor an \rfloor` (then :math:`\lfloor bn \rfloor`) **and** whose value differs from
    the row before. The parts are the training pool, ``ood_val`` and ``ood_test``; ``holdout`` is a
    share of ``"all"`` rows or of the ``"pool"``.

    Example:
        >>> rows = covariate(torch.tensor([1, 5, 2, 2, 2, 9, 7, 3, 8, 4]))
        >>> {name: len(numbers) for name, numbers in rows.items()}
        {'train': 4, 'id_val': 1, 'id_test': 1, 'ood_val': 2, 'ood_test': 2}
    """
    _check_shares("cuts", *cuts)
    order, starts = _sorted(_as_values(values), descending)
    n = order.numel()
    starts = [0, *starts, n, n]
    first = starts[bisect_left(starts, int(cuts[0] * n))]
    second = starts[bisect_left(starts, min(max(int(cuts[1] * n), first + 1), n))]
    pool, val, test = torch.tensor_split(order, [first, second])
    size = int(holdout * (pool.numel() if holdout_of == "pool" else n))
    return leave_out(pool, val, test, size, seed)


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
    return leave_out(pool, middle, test, int(holdout * pool.numel()), seed)


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
    other kind is added. Finally ``id_val`` and ``id_test`` are drawn from the training pool, each a
    share ``holdout`` of it. ``labels`` are class numbers ``[n]``.
    """
    codes, label = _as_values(values), torch.as_tensor(labels).reshape(-1).double()
    if codes.shape != label.shape or not torch.equal(label, label.round()):  # fractions, NaN
        do = "Cut along another domain; values by themselves with shifts.by(data, 'y')."
        raise InputError(f"one class for each of the {codes.numel()} values", "other labels", do)
    generator = _generator(seed)
    codes, order = torch.sort(codes, stable=True)
    label = label[order]
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
    return leave_out(pool, val, test, int(holdout * pool.numel()), generator)


def no_shift(n: int, *, seed: Seed = 0) -> Cut:
    """A uniform cut without any shift: 60 % train, 20 % ``id_val``, 20 % ``id_test``.

    Example:
        >>> {name: len(rows) for name, rows in no_shift(617).items()}
        {'train': 370, 'id_val': 123, 'id_test': 124}
    """
    order = torch.randperm(n, generator=_generator(seed))
    parts = torch.tensor_split(order, [int(0.6 * n), int(0.8 * n)])
    return _checked(dict(zip(("train", "id_val", "id_test"), parts, strict=True)))


def leave_out(pool: Tensor, val: Tensor, test: Tensor, holdout: int, seed: Seed) -> Cut:
    """``val`` and ``test`` as OOD splits, ``val`` if it has rows; ``holdout`` rows each of the pool
    as ID ones. Any other split without rows is an error."""
    held = _hold_out(pool, (holdout, holdout), seed)
    return _checked({**held, **({"ood_val": val} if val.numel() else {}), "ood_test": test})


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
    total = sum(rows.numel() for rows in cut.values())
    if limit is None or check_int("limit", limit, least=len(cut)) >= total:
        return dict(cut)
    generator, drawn, places = _generator(seed), list[Tensor](), list[Tensor]()
    for name, rows in cut.items():
        order = torch.randperm(rows.numel(), generator=generator)
        if strata is not None and name in strata:
            order = order[_in_proportion(strata[name][order], first=name == "train")]
        drawn.append(rows[order])
        # as Webster and Sainte-Lague: with largest remainders a part may shrink as limits grow
        place = (torch.arange(rows.numel(), dtype=torch.float64) + 0.5) / rows.numel()
        places.append(place.index_fill_(0, torch.arange(min(1, rows.numel())), 0.0))
    owner = torch.cat([torch.full_like(rows, part) for part, rows in enumerate(drawn)])
    chosen = owner[torch.cat(places).argsort(stable=True)[:limit]]
    sizes = torch.bincount(chosen, minlength=len(cut)).tolist()
    return {name: rows[:size] for name, rows, size in zip(cut, drawn, sizes, strict=True)}


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


def _sorted(values: Tensor, descending: bool = False) -> tuple[Tensor, list[int]]:
    """The rows in the order of their values, and the positions where another value begins."""
    ordered, order = torch.sort(values, stable=True, descending=descending)
    return order, (torch.nonzero(ordered.diff()).flatten() + 1).tolist()


def _generator(seed: Seed) -> torch.Generator:
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator().manual_seed(check_int("seed", seed))


def _check_shares(what: str, first: float, second: float) -> None:
    if not 0 < first < second < 1:
        raise InputError(f"{what} with 0 < first < second < 1", (first, second))


def _checked(found: Cut) -> Cut:
    if not all(rows.numel() for rows in found.values()):
        sizes = ", ".join(f"{name} {rows.numel()}" for name, rows in found.items())
        do = "Use more rows, hold out less, or cut elsewhere: many rows may share one value."
        raise InputError("a cut that leaves no part empty", sizes, do)
    return found


def _as_values(values: Values) -> Tensor:
    """Domain values as numbers ``[n]``: Python's floats in double precision, dates of NumPy in
    microseconds, and text, Python's dates and other things that sort by their rank."""
    import pandas as pd

    if not isinstance(values, Tensor):
        try:
            series = pd.Series(list(values))
            if series.isna().any():
                raise ValueError(f"{int(series.isna().sum())} without a value")
            if series.dtype.kind == "M":
                series = series.astype("datetime64[us]").astype(np.int64)
            elif series.dtype.kind not in "iubf":
                series = pd.Series(pd.factorize(series, sort=True)[0])
            kind = np.float64 if series.dtype.kind == "f" else np.int64
            values = torch.tensor(series.to_numpy(kind))  # a copy: pandas may hand out its own
        except (ValueError, TypeError) as error:  # such as values that cannot be sorted
            expected = "one number, text or date per row as domain values"
            raise InputError(expected, f"{type(values).__name__}: {error}") from error
    if values.dim() != 1 or not values.numel():
        raise InputError("domain values of shape [n], one per row", list(values.shape))
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        raise InputError("finite domain values", "NaN or infinite ones")
    return values.detach().cpu()


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
        data: The dataset.
        values: One number, string or date per row (graph or node); or what to compute: ``"size"``,
            ``"degree"``, ``"scaffold"`` (molecules with ``smiles``; the common ones train), the
            name of an attribute, or a function of a graph. Numbers of nodes are averaged over a
            graph in a graph task.
        kind: Which cut: ``"covariate"``, ``"concept"``, ``"tails"``, ``"no_shift"``.
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
        found = concept(domain, rows.target, seed=seed, **options)
    else:
        found = (covariate if kind == "covariate" else tails)(domain, seed=seed, **options)
    description = _DESCRIBED[kind].format(name or "the given values")
    return make_splits(rows, found, domain, name=name, description=description)


def size(data: Graphs, kind: Kind = "tails", *, seed: int = 0, **options: Any) -> Splits:
    """By number of nodes: as in the paper, train on the smaller half, test on the largest tenth."""
    return by(data, "size", kind, seed=seed, task="graph", **options)


def group(
    data: Graphs,
    labels: Sequence[Any] | Tensor | str,
    test: Any,
    val: Any = (),
    *,
    holdout: float = 0.1,
    seed: int = 0,
    task: Task | None = None,
) -> Splits:
    """Leave groups out: train on all others (universities, hospitals, laboratories).

    Classes left out, ``group(data, "y", test=[3])``, are for OOD detection: they keep their
    numbers, and accuracy on the OOD splits means nothing.

    Args:
        data: The dataset.
        labels: The group of each row, or the name of the attribute that says it.
        test: Groups (or one group) that make ``ood_test``.
        val: Groups that make ``ood_val``. None: the first half of the test rows, by position.
        holdout: A share of all rows.
        seed: Of the draw.
        task: See `by`.
    """
    rows = _all_rows(data, task)
    if isinstance(labels, str):
        labels = rows.target if labels == "y" else _column(rows.graphs, labels)
    names, test, val = np.asarray(_as_list(labels)), _as_list(test), _as_list(val)
    if names.shape != (len(rows),):
        raise InputError(f"one group for each of the {len(rows)} rows", list(names.shape))
    if not test or not {*test, *val} <= set(names.tolist()) or set(test) & set(val):
        got = f"test={test} and val={list(val)}"
        raise InputError("different groups of the rows for test and val", got)
    part = torch.from_numpy(np.isin(names, test) * 2 + np.isin(names, val))
    pool, middle, held = (torch.nonzero(part == number).flatten() for number in range(3))
    if not val:
        middle, held = held[: len(held) // 2], held[len(held) // 2 :]
    found = leave_out(pool, middle, held, int(holdout * len(rows)), seed)
    text = f"Groups left out for testing: {', '.join(map(str, test[:12]))}."
    return make_splits(rows, found, _as_values(names), name="group", description=text)


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
        return _ranks(scaffolds(_column(graphs, "smiles")))
    if isinstance(what, str) or callable(what):
        found = _column(graphs, what) if isinstance(what, str) else list(map(what, graphs))
        if rows.task == "graph":
            what = [_mean(value) for value in found]
        else:
            what = torch.cat([torch.as_tensor(value).detach().reshape(-1) for value in found])
    values = _as_values(what)
    if len(values) != len(rows):
        raise InputError(f"one domain value for each of the {len(rows)} rows", len(values))
    return values


def _column(graphs: Sequence[Data], name: str) -> list[Any]:
    """An attribute of every graph; its size or its degrees where it has none of that name."""
    found = list[Any]()
    for graph in graphs:
        if name in graph:
            found.append(graph[name])
        elif name == "size":
            found.append(int(graph.num_nodes or 0))
        elif name == "degree" and graph.edge_index is not None:
            found.append(torch.bincount(graph.edge_index[0], minlength=int(graph.num_nodes or 0)))
        else:
            raise InputError(f"graphs with an attribute {name!r}", f"only {sorted(graph.keys())}")
    return found


def _mean(value: Any) -> Any:
    """The mean of the numbers of nodes; of all else, what it is."""
    if not isinstance(value, (Tensor, np.ndarray, list, tuple)):
        return value
    row = torch.as_tensor(value).detach()
    return row.item() if row.numel() == 1 else row.double().mean().item()


def _ranks(names: Sequence[str]) -> Tensor:
    """The rank of each name by how often it is there; 0 is the most common."""
    count = Counter(names)
    rank = {name: i for i, name in enumerate(sorted(count, key=lambda n: (-count[n], n)))}
    return torch.tensor([rank[name] for name in names])


def _as_list(values: Any) -> list[Any]:
    """Groups as Python values, whatever holds them; a single one counts as a list of one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    found: list[Any] = np.asarray(values if isinstance(values, Tensor) else list(values)).tolist()
    return found if isinstance(found, list) else [found]


# -- what `gduq train --by` means ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Domain:
    """What a test differs in: one number per row ``[n]``, the highest of which make the test, and
    what each row is called. ``ordered``: whether rows lie between others."""

    name: str
    values: Tensor
    labels: Sequence[str]
    ordered: bool = True

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
            sizes = [int(graph.num_nodes or 0) for graph in graphs]
            called = "atoms" if "smiles" in graphs[0] else "nodes"
            return cls(called, torch.tensor(sizes), [str(size) for size in sizes])
        if kind == "scaffold":
            names = scaffolds(_column(graphs, "smiles"))
            return cls("scaffold", _ranks(names), names, ordered=False)
        fields = [_mean(field) for field in _column(graphs, name)] if fields is None else fields
        texts = [str(field) for field in fields]
        if kind == "time":
            values = torch.tensor(parse_dates(name, fields), dtype=torch.float64)
            return cls(name, values, texts)
        return cls(name, _ranks(texts), texts, ordered=False)

    def describe(self, rows: Tensor) -> str:
        """What some rows are in this respect."""
        if self.ordered:
            order = rows[self.values[rows].argsort()].tolist()
            ends = dict.fromkeys(self.labels[row] for row in (order[0], order[-1]))
            return f"{self.name} {' to '.join(ends)}"
        found = Counter(self.labels[row] for row in rows.tolist())
        if self.name == "scaffold":
            return f"{len(found)} scaffold{'s' * (len(found) != 1)}"
        names = sorted(found, key=lambda one: (-found[one], one))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"{self.name} {', '.join(names[:4])}{more}"
