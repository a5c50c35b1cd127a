"""Graphs and targets of a user's own data, before they are cut."""

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

from gduq.data.files import open_source
from gduq.data.header import is_table, unit_of
from gduq.data.objects import find_object
from gduq.data.rejected_rows import Reject
from gduq.data.table import MoleculeTable
from gduq.data.view import View
from gduq.errors import InputError, one_line
from gduq.graph import check_graph
from gduq.targets import infer_target

if TYPE_CHECKING:
    from gduq.runs.config_parts import DataConfig

__all__ = ["Read", "has_masks", "object_digest", "read_source"]

_MOST_REJECTED = 0.5  # of the rows: more of them, and the wrong column was read
Rejects = list[tuple[int, Reject]]


@dataclass(frozen=True, eq=False)
class Read:
    """Graphs of a source with their targets, before they are cut."""

    graphs: list[Data]
    fields: list[Any] | None
    rejects: Rejects
    kind: str | None
    class_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()


def read_source(data: DataConfig) -> Read:
    """All that can be read of a source; too little of it raises."""
    read = _table(data) if is_table(str(data.source)) else _other(data)
    _check_rejects(str(data.source), read)
    return read


def _table(data: DataConfig) -> Read:
    assert data.smiles is not None
    table = MoleculeTable(Path(str(data.source)), data.smiles, data.targets, task=data.task)
    column = (data.by or "").partition("=")[2]
    texts = list(table.column(column)) if column else None
    ids = list(table.column(data.ids[0])) if data.ids else None
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
            if ids is not None:
                item.id = ids[index]  # what a report calls it
            graphs.append(item)
            fields += [] if texts is None else [texts[index]]
    names = tuple(unit_of(name)[0] for name in table.target_names)
    return Read(graphs, fields, rejects, table.task, table.class_names, names)


def _unusable(item: Data | Reject, task: str | None) -> str | None:
    """Why a molecule with a gap in its targets cannot be learned from."""
    if isinstance(item, Reject):
        return None
    gaps = item.y.isnan()
    if task == "labels":
        return "no label is known" if bool(gaps.all()) else None
    return "a target is empty" if bool(gaps.any()) else None


def _other(data: DataConfig) -> Read:
    """A TU folder, a file of graphs, or a dataset by name."""
    source = _dataset(str(data.source)) if data.is_object else open_source(str(data.source))
    graphs: list[Data] = []
    rejects: Rejects = []
    places: list[int] = []
    for index, item in enumerate(source) if data.is_object else source:
        if isinstance(item, Reject):
            rejects.append((index, item))
        elif item.get("y") is None:
            rejects.append((index, Reject(data.name, 0, "no target y")))
        elif (reason := _unsound(item)) is not None:
            rejects.append((index, Reject(data.name, 0, reason)))
        else:
            graphs.append(item)
            places.append(index)
    names = tuple(getattr(source, "target_names", ()))
    if data.targets:
        graphs, names = _chosen(graphs, names, data.targets)
    kind: str | None = data.task
    classes = tuple(getattr(source, "class_names", ()))
    if graphs and not has_masks(graphs):
        kind = infer_target(View(graphs).target, len(classes) or None, data.task).kind
        bad = {i: reason for i, graph in enumerate(graphs) if (reason := _unusable(graph, kind))}
        rejects += [(places[i], Reject(data.name, 0, reason)) for i, reason in bad.items()]
        graphs = [graph for i, graph in enumerate(graphs) if i not in bad]
        rejects.sort(key=lambda one: one[0])
    attribute = (data.by or "").partition("=")[2]
    fields = [_attribute(graph, attribute) for graph in graphs] if attribute else None
    return Read(graphs, fields, rejects, kind, classes, names)


def has_masks(graphs: Sequence[Data]) -> bool:
    """Whether it is one graph that says itself which nodes are for what."""
    return len(graphs) == 1 and graphs[0].get("train_mask") is not None


def _unsound(graph: Data) -> str | None:
    """Why no model should see a graph."""
    try:
        check_graph(graph)
    except InputError as error:
        return one_line(error)
    return None


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


def _check_rejects(name: str, read: Read) -> None:
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
