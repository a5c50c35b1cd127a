"""Cuts of anybody's data, for training and for judging under shift. Data is cut here only.

A *cut* is split name to row numbers. `cut`, `covariate`, `tails` and `no_shift` make one of domain
values: a number, text or date per row ``[n]``. ``holdout`` is the size of ``id_val``, and of
``id_test``, as a share; ``seed`` is that of the draws.

`by` and its neighbours make `Splits` of a dataset: a ``Data`` (node task), or a list of ``Data`` or
a PyG dataset (graph task; with ``task="node"``, or a single graph, a node task).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.smiles import scaffolds
from gduq.errors import InputError, check_enough, check_int, one_of, parse_dates
from gduq.graphs.packed import Packed, try_pack
from gduq.graphs.view import Splits, View

__all__ = ["Cut", "by", "covariate", "cut", "domain_of", "group", "leave_out", "limit_rows",
           "make_splits", "no_shift", "size", "tails"]  # fmt: skip

Cut = dict[str, Tensor]
Seed = int | torch.Generator
Values = Tensor | Sequence[object] | np.ndarray
Task = Literal["node", "graph"]
Graphs: TypeAlias = Data | Sequence[Data]
Kind = Literal["covariate", "tails", "no_shift"]
_ENOUGH = 30  # validation rows that a small table gives more than its share for


def cut(
    values: Values | None,
    strata: Tensor,
    *,
    test: float = 0.2,
    holdout: float = 0.1,
    seed: int = 0,
    name: str = "the domain",
) -> Cut:
    """What `gduq train` does: a test that differs from training, and rows like those of training.

    The rows with the highest domain values are ``ood_test``: a share ``test`` of all, or as near to
    that as equal values allow. Of the others a share ``holdout`` of all is drawn for ``id_val``
    (more of few rows) and for ``id_test``, of each stratum alike: ``strata`` ``[n]`` number rows
    with like truth. Without values there is no ``ood_test``, and ``id_test`` is its share.

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
        what = f"rows that differ enough in {name} to cut by it"
        do = "Cut in another way with --by: scaffold, size, group=COLUMN, time=COLUMN or random."
        raise InputError(what, f"{most} of {n} rows that are alike", do)
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

    With :math:`n` rows, sorted by value (``descending``: the largest first), and cuts
    :math:`(a, b)`, a new part starts at the first row whose index has reached
    :math:`\lfloor an \rfloor` (then :math:`\lfloor bn \rfloor`) whose value is new. The
    parts are the pool, ``ood_val`` and ``ood_test``; ``holdout`` is a share of that or of all rows.

    Example:
        >>> rows = covariate(torch.tensor([1, 5, 2, 2, 2, 9, 7, 3, 8, 4]))
        >>> {name: len(numbers) for name, numbers in rows.items()}
        {'train': 4, 'id_val': 1, 'id_test': 1, 'ood_val': 2, 'ood_test': 2}
    """
    if not 0 < cuts[0] < cuts[1] < 1:
        raise InputError("cuts with 0 < first < second < 1", cuts)
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
    """Train on values up to the ``low`` quantile, test on those from the ``high`` one on, both
    inclusive; what lies between is ``ood_val``. ``holdout`` is a share of the training pool.

    Example:
        >>> {k: len(v) for k, v in tails(torch.arange(20)).items()}
        {'train': 8, 'id_val': 1, 'id_test': 1, 'ood_val': 8, 'ood_test': 2}
    """
    numbers = _as_values(values).double()
    if not 0 < low < high < 1:
        raise InputError("quantiles with 0 < low < high < 1", (low, high))
    below, above = np.quantile(numbers.numpy(), (low, high))
    part = (numbers > below).long() + ((numbers > below) & (numbers >= above))
    pool, middle, test = (torch.nonzero(part == number).flatten() for number in range(3))
    return leave_out(pool, middle, test, int(holdout * pool.numel()), seed)


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
    """At most ``limit`` rows of a cut, drawn at random: each part in proportion, and its ``strata``
    (as in `cut`, of the rows of each part); at least one row of a part, and of a stratum in
    ``train``. A larger limit keeps all rows of a smaller one."""
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
        places.append((torch.arange(rows.numel(), dtype=torch.float64) + 0.5) / rows.numel())
        places[-1][:1] = 0.0
    owner = torch.cat([torch.full_like(rows, part) for part, rows in enumerate(drawn)])
    chosen = owner[torch.cat(places).argsort(stable=True)[:limit]]
    sizes = torch.bincount(chosen, minlength=len(cut)).tolist()
    return {name: rows[:size] for name, rows, size in zip(cut, drawn, sizes, strict=True)}


def _in_proportion(strata: Tensor, first: bool) -> Tensor:
    """An order of rows of which every beginning holds the strata in proportion; ``first`` puts one
    of each, the largest stratum first, before all others."""
    import pandas as pd

    groups = pd.Series(strata.numpy()).groupby(strata.numpy())
    place, count = groups.cumcount().to_numpy(), groups.transform("size").to_numpy()
    key = (place + 0.5) / count
    key = np.where(first & (place == 0), -count.astype(float), key)
    return torch.from_numpy(np.argsort(key, kind="stable"))


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
            if missing := int(series.isna().sum()):
                raise ValueError(f"{missing} without a value")
            if series.dtype.kind == "M":
                series = series.astype("datetime64[us]").astype(np.int64)
            elif series.dtype.kind not in "iubf":
                series = pd.Series(pd.factorize(series, sort=True)[0])
            kind = np.float64 if series.dtype.kind == "f" else np.int64
            values = torch.tensor(series.to_numpy(kind))  # a copy: pandas may hand out its own
        except (ValueError, TypeError) as error:  # such as values that cannot be sorted
            raise InputError("one number, text or date per row", error) from error
    if values.dim() != 1 or not values.numel():
        raise InputError("domain values of shape [n], one per row", list(values.shape))
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        raise InputError("finite domain values", "NaN or infinite ones")
    return values.detach().cpu()


# -- Splits of a dataset ---------------------------------------------------------------------------


def by(
    data: Graphs,
    values: Values | str | Callable[[Data], object],
    kind: Kind | Callable[..., Cut] = "covariate",
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
        kind: Which cut: ``"covariate"``, ``"tails"``, ``"no_shift"``, or a function such as these.
        seed: Of the random draws.
        task: ``"node"`` or ``"graph"``; ``None``: as the module says.
        name: Of the result.
        options: Further arguments of the cut, such as ``descending=True``.

    Example:
        >>> edges = torch.zeros(2, 0).long()
        >>> graphs = [Data(edge_index=edges, num_nodes=1, y=i % 2) for i in range(20)]
        >>> splits = by(graphs, torch.arange(20), holdout=0.1)
        >>> {name: len(view) for name, view in splits}
        {'train': 8, 'id_val': 2, 'id_test': 2, 'ood_val': 4, 'ood_test': 4}
    """
    name = name or (values if isinstance(values, str) else "")
    if isinstance(kind, str):
        one_of("a kind", kind, _KINDS)
    make, text = _KINDS[kind] if isinstance(kind, str) else (kind, "Cut by {}.")
    rows = _all_rows(data, task)
    domain = _domain_values([data] if isinstance(data, Data) else data, rows, values)
    found, description = make(domain, seed=seed, **options), text.format(name or "the given values")
    return make_splits(rows, found, domain, name=name, description=description)


_KINDS: dict[str, tuple[Callable[..., Cut], str]] = {
    "covariate": (covariate, "Covariate shift of {}: training and test hold different values."),
    "tails": (tails, "Shift of {}: training on the low values, testing on the highest."),
    "no_shift": (lambda values, seed: no_shift(len(values), seed=seed), "A uniform cut."),
}


def size(data: Graphs, kind: Kind = "tails", *, seed: int = 0, **options: Any) -> Splits:
    """By number of nodes: as in the paper, train on the smaller half, test on the largest tenth."""
    return by(data, "size", kind, seed=seed, task="graph", **options)


def group(
    data: Graphs,
    labels: Values | str,
    test: object,
    val: object = (),
    *,
    holdout: float = 0.1,
    seed: int = 0,
    task: Task | None = None,
) -> Splits:
    """Leave groups out: train on all others (universities, hospitals, laboratories).

    ``labels`` are the group of each row, or the attribute that says it; ``test`` are the groups (or
    one group) of ``ood_test``, ``val`` those of ``ood_val`` (by default the first half of the test
    rows); ``holdout`` is a share of all rows. Classes left out, ``group(data, "y", test=[3])``, are
    for OOD detection: they keep their numbers, and accuracy on the OOD splits means nothing.
    """
    rows = _all_rows(data, task)
    if isinstance(labels, str):
        labels = rows.target if labels == "y" else _column(rows.graphs, labels)
    names, test, val = (np.atleast_1d(np.asarray(one)) for one in (labels, test, val))
    if names.shape != (len(rows),):
        raise InputError(f"one group for each of the {len(rows)} rows", list(names.shape))
    known = np.isin([*test, *val], names).all()
    if not len(test) or not known or np.isin(test, val).any():
        raise InputError("different groups of the rows for test and val", f"{test} and {val}")
    part = torch.from_numpy(np.isin(names, test) * 2 + np.isin(names, val))
    pool, middle, held = (torch.nonzero(part == number).flatten() for number in range(3))
    if not len(val):
        middle, held = torch.tensor_split(held, [len(held) // 2])
    found = leave_out(pool, middle, held, int(holdout * len(rows)), seed)
    text = f"Tested on the groups {', '.join(map(str, test[:12]))}."
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
    graphs: Sequence[Data], rows: View, what: Values | str | Callable[[Data], object]
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
    if all(name in graph for graph in graphs):
        return [graph[name] for graph in graphs]
    sizes = [int(graph.num_nodes or 0) for graph in graphs]
    if name == "size":
        return sizes
    if name == "degree" and all(graph.edge_index is not None for graph in graphs):
        ends = [graph.edge_index[0] for graph in graphs]
        return [torch.bincount(e, minlength=n) for e, n in zip(ends, sizes, strict=True)]
    raise InputError(f"graphs with an attribute {name!r}", f"only {sorted(graphs[0].keys())}")


def _mean(value: object) -> object:
    """The mean of the numbers of nodes; of all else, what it is."""
    if not isinstance(value, (Tensor, np.ndarray, list, tuple)):
        return value
    row = torch.as_tensor(value).detach()
    return row.item() if row.numel() == 1 else row.double().mean().item()


def _ranks(names: Sequence[str]) -> Tensor:
    """The rank of each name by how often it is there; 0 is the most common."""
    count = Counter(names)
    order = sorted(count, key=lambda name: (-count[name], name))
    rank = {name: number for number, name in enumerate(order)}
    return torch.tensor([rank[name] for name in names])


def domain_of(by: str, graphs: Sequence[Data], fields: Sequence[object] | None = None) -> Tensor:
    """What "scaffold", "size", "group=NAME" or "time=NAME" means: a number per graph, the highest
    of which make the test. ``fields``: what each has under the name, by default its attribute."""
    kind, _, name = by.partition("=")
    if kind == "scaffold":
        return _ranks(scaffolds(_column(graphs, "smiles")))
    if fields is None or not name:
        fields = [_mean(field) for field in _column(graphs, name or kind)]
    if kind == "group":
        return _ranks([str(field) for field in fields])
    numbers = parse_dates(name, fields) if kind == "time" else fields
    return torch.tensor(numbers, dtype=torch.float64)
