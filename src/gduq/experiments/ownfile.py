"""A user's own data: from a table, file, folder or dataset to `Splits`, and what was left out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data import Splits, View
from gduq.data.catalog import limited
from gduq.data.files import open_source
from gduq.data.header import is_table, unit_of
from gduq.data.objects import find_object
from gduq.data.packed import try_pack
from gduq.data.rejects import Reject
from gduq.data.table import Table
from gduq.errors import InputError
from gduq.experiments.owncut import Domain, cut_rows, domain_of, strata_of
from gduq.shifts.domains import Rows

if TYPE_CHECKING:
    from gduq.experiments.config import DataConfig

__all__ = ["OwnData", "kind_of", "object_digest", "own_data"]

_MOST_REJECTED = 0.5  # of the rows: more of them, and the wrong column was read
_FEW = 20  # different whole numbers up to which they are classes
_ROLES = {
    "train": "to learn from",
    "id_val": "like training, to stop and calibrate by",
    "id_test": "like training, to judge it at home",
    "ood_test": "unlike training, to judge it under shift",
}
Rejects = list[tuple[int, Reject]]


@dataclass(frozen=True, eq=False)
class OwnData:
    """What became of a user's data.

    Attributes:
        splits: The rows, cut.
        kind: What the targets are: ``"classes"``, ``"labels"`` or ``"values"``.
        by: What they were cut by.
        cut: The cut in words, one line per split.
        rejects: Row number and reason of every row that was left out.
    """

    splits: Splits
    kind: str
    by: str
    cut: tuple[str, ...]
    rejects: tuple[tuple[int, Reject], ...]


@dataclass(frozen=True, eq=False)
class _Read:
    """Graphs of a source with their targets, before they are cut."""

    graphs: list[Data]
    fields: list[Any] | None
    rejects: Rejects
    kind: str | None
    class_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()


@lru_cache(maxsize=2)
def own_data(data: DataConfig) -> OwnData:
    """Read, check and cut what the config names; the last two are kept.

    Args:
        data: With a ``source``.
    """
    name = str(data.source)
    read = _table(data) if is_table(name) else _other(data)
    _check_rejects(name, read)
    if len(read.graphs) == 1 and read.graphs[0].get("train_mask") is not None:
        return _nodes(data, read)
    return _cut(data, read)


def kind_of(truth: Tensor, task: str | None = None) -> str:
    """What targets are, where nobody said so: as `gduq.fit` would take them.

    Example:
        >>> kind_of(torch.tensor([0, 1, 2])), kind_of(torch.tensor([0.5, 1.0]))
        ('classes', 'values')
    """
    if task is not None:
        return task
    known = truth[~truth.isnan()] if truth.is_floating_point() else truth
    if truth.dim() == 2 and truth.size(1) > 1:
        return "labels" if bool(((known == 0) | (known == 1)).all()) else "values"
    whole = not truth.is_floating_point() or bool((known == known.round()).all())
    few = not truth.is_floating_point() or torch.unique(known).numel() <= _FEW
    return "classes" if whole and few and bool((known >= 0).all()) else "values"


# -- reading ---------------------------------------------------------------------------------------


def _table(data: DataConfig) -> _Read:
    assert data.smiles is not None
    table = Table(Path(str(data.source)), data.smiles, data.targets, task=data.task)
    column = (data.by or "").partition("=")[2]
    texts = list(table.column(column)) if column else None
    graphs: list[Data] = []
    fields: list[Any] = []
    rejects: Rejects = []
    for index, item in table:
        reason = _unusable(item, table.task)
        if reason is None and texts is not None and not texts[index]:
            reason = f"{column!r} is empty"
        if isinstance(item, Reject):
            rejects.append((index, item))
        elif reason is not None:
            rejects.append((index, Reject(table.path.name, 0, reason, item.smiles)))
        else:
            graphs.append(item)
            fields += [] if texts is None else [texts[index]]
    names = tuple(unit_of(name)[0] for name in table.target_names)
    return _Read(graphs, fields, rejects, table.task, table.class_names, names)


def _unusable(item: Data | Reject, task: str | None) -> str | None:
    """Why a molecule with a gap in its targets cannot be learned from."""
    if isinstance(item, Reject) or task == "classes":
        return None
    gaps = item.y.isnan()
    if task == "labels":
        return "no label is known" if bool(gaps.all()) else None
    return "a target is empty" if bool(gaps.any()) else None


def _other(data: DataConfig) -> _Read:
    """A TU folder, a file of graphs, or a dataset by name."""
    source = _dataset(str(data.source)) if data.is_object else open_source(str(data.source))
    graphs: list[Data] = []
    rejects: Rejects = []
    for index, item in enumerate(source) if data.is_object else source:
        if isinstance(item, Reject):
            rejects.append((index, item))
        elif item.get("y") is None:
            rejects.append((index, Reject(data.name, 0, "no target y")))
        else:
            graphs.append(item)
    names = tuple(getattr(source, "target_names", ()))
    if data.targets:
        graphs, names = _chosen(graphs, names, data.targets)
    attribute = (data.by or "").partition("=")[2]
    fields = [_attribute(graph, attribute) for graph in graphs] if attribute else None
    classes = tuple(getattr(source, "class_names", ()))
    return _Read(graphs, fields, rejects, data.task, classes, names)


def _chosen(
    graphs: Sequence[Data], names: Sequence[str], wanted: Sequence[str]
) -> tuple[list[Data], tuple[str, ...]]:
    """The same with some of the columns of ``y``."""
    missing = [name for name in wanted if name not in names]
    if missing:
        known = f"targets from {', '.join(names)}" if names else "no --target for unnamed targets"
        raise InputError(known, repr(missing[0]))
    places = [list(names).index(name) for name in wanted]
    found = []
    for graph in graphs:
        copy = graph.__copy__()
        copy.y = graph.y.reshape(1, -1)[:, places]
        found.append(copy)
    return found, tuple(wanted)


def _attribute(graph: Data, name: str) -> Any:
    if name not in graph:
        known = ", ".join(sorted(map(str, graph.keys())))
        raise InputError(f"graphs with an attribute {name!r} to cut by", f"only {known}")
    value = graph[name]
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise InputError(f"one {name!r} per graph", f"shape {list(value.shape)}")
        return value.item()
    return value


@lru_cache(maxsize=2)
def _dataset(name: str) -> Sequence[Data]:
    """The graphs of the object ``package.module:Name``, or of what calling it gives."""
    found = find_object(name)
    if callable(found) and not hasattr(found, "__getitem__"):
        try:
            found = found()
        except TypeError as error:
            do = "Name a function that makes your dataset."
            raise InputError(f"{name} to be called without arguments", str(error), do) from error
    graphs = [found] if isinstance(found, Data) else list(found) if _iterates(found) else []
    if not graphs or not all(isinstance(graph, Data) for graph in graphs):
        raise InputError(f"torch_geometric Data objects from {name}", type(found).__name__)
    return graphs


def _iterates(found: object) -> bool:
    return hasattr(found, "__iter__") or hasattr(found, "__getitem__")


def object_digest(name: str) -> str:
    """16 hexadecimal digits of SHA-256 over the tensors of a dataset."""
    found = hashlib.sha256()
    for graph in _dataset(name):
        for key, value in sorted(graph.to_dict().items()):
            data = value.cpu().contiguous().numpy().tobytes() if _dense(value) else repr(value)
            found.update(key.encode() + (data if isinstance(data, bytes) else data.encode()))
    return found.hexdigest()[:16]


def _dense(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _check_rejects(name: str, read: _Read) -> None:
    rows = len(read.graphs) + len(read.rejects)
    if not rows:
        raise InputError(f"rows to learn from in {name}", "none")
    if len(read.rejects) > _MOST_REJECTED * rows:
        gaps = any("target" in reject.reason for _, reject in read.rejects[:5])
        do = (
            "Train on one --target at a time." if gaps else "Is the right column named by --smiles?"
        )
        got = f"{len(read.rejects)} of {rows} that cannot; the first: {read.rejects[0][1]}"
        raise InputError(f"rows that can be read in {name}", got, do)


# -- cutting ---------------------------------------------------------------------------------------


def _cut(data: DataConfig, read: _Read) -> OwnData:
    graphs = read.graphs
    packed: Sequence[Data] = try_pack(graphs) or graphs
    truth = View(packed).target
    kind = kind_of(truth, read.kind)
    by = data.by or ("scaffold" if "smiles" in graphs[0] else "size")
    domain = domain_of(by, graphs, read.fields)
    strata = strata_of(kind, truth)
    try:
        cut = cut_rows(domain, strata, data.seed)
    except InputError:
        if data.by is not None or by != "scaffold" or len(graphs) < 40:
            raise
        by, domain = "size", domain_of("size", graphs, None)  # most molecules have one scaffold
        cut = cut_rows(domain, strata, data.seed)
    values = torch.zeros(len(graphs)) if domain is None else domain.values
    splits = Rows(packed, "graph").splits(
        cut, values, name=data.name, description=_description(data, by, read)
    )
    names: dict[str, Any] = {"class_names": read.class_names if kind == "classes" else ()}
    names |= {"target_names": read.target_names, "units": data.units}
    splits = limited(splits.with_(**names, sources=(str(data.source),)), data.limit, data.seed)
    told = None if data.limit else domain  # of all rows
    lines = _lines({name: len(view) for name, view in splits}, cut, told, graphs)
    return OwnData(splits, kind, by, lines, tuple(read.rejects))


def _description(data: DataConfig, by: str, read: _Read) -> str:
    what = "molecules" if "smiles" in read.graphs[0] else "graphs"
    cut = "at random" if by == "random" else f"by {by}"
    count = len(read.rejects)
    left = f" {count} row{'s are' if count > 1 else ' is'} left out." if count else ""
    return f"{len(read.graphs)} {what} of {data.name}, cut {cut}.{left}"


def _lines(
    sizes: dict[str, int], cut: dict[str, Tensor], domain: Domain | None, graphs: Sequence[Data]
) -> tuple[str, ...]:
    what = "molecules" if "smiles" in graphs[0] else "graphs"
    found = []
    for split, size in sizes.items():
        told = "" if domain is None else f" ({domain.words(cut[split])})"
        found.append(f"{split:<9} {size} {what}{told}, {_ROLES[split]}")
    return tuple(found)


def _nodes(data: DataConfig, read: _Read) -> OwnData:
    """One graph that says itself which nodes are for what."""
    (graph,) = read.graphs
    if data.by is not None:
        raise InputError("no --by for a graph with masks of its own", repr(data.by))
    masks = {"train": "train_mask", "id_val": "val_mask", "id_test": "test_mask"}
    missing = [mask for mask in masks.values() if graph.get(mask) is None]
    if missing or any(graph[mask].dim() > 1 for mask in masks.values()):
        raise InputError("train_mask, val_mask and test_mask of one column", missing or "several")
    views = {split: View(graph, graph[mask]) for split, mask in masks.items()}
    splits = Splits(
        views["train"],
        views["id_val"],
        views["id_test"],
        name=data.name,
        description=f"{data.name}, cut by its masks.",
        class_names=read.class_names,
        sources=(str(data.source),),
    )
    splits = limited(splits, data.limit, data.seed)
    sizes = {split: len(view) for split, view in splits}
    lines = tuple(f"{split:<9} {size} nodes, {_ROLES[split]}" for split, size in sizes.items())
    kind = kind_of(views["train"].target, data.task)
    return OwnData(splits, kind, "masks", lines, tuple(read.rejects))
