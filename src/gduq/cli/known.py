"""Labelled files, answered: what thresholds and evaluations are made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq.cli.request import Request, Told, smiles_in
from gduq.data.files import Reject, stream
from gduq.data.header import is_table
from gduq.deploy.service import Service
from gduq.errors import InputError
from gduq.prediction.base import Hypotheses

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["labelled"]


def labelled(request: Request, service: Service, path: Path, what: str) -> Any:
    """Predictions of a file in which every graph is sound and has a label."""
    items = _stream(request, service, path)
    parts: list[Any] = []
    graphs: list[Data] = []
    for index, item in items:
        if isinstance(item, Reject):
            raise InputError(f"sound graphs in {what} {path}", f"row {index}: {item}")
        _check(item, service, f"{what} {path}")
        graphs.append(item)
        if len(graphs) == request.batch_size:
            parts.append(service.answer(graphs))
            graphs = []
    if graphs:
        parts.append(service.answer(graphs))
    return Hypotheses.concatenate(parts)


def _stream(request: Request, service: Service, path: Path) -> Iterator[Any]:
    """The rows of a labelled file; the bundle knows what its columns are, unless told otherwise."""
    told = Told.by(request.bundle)
    names: Any = service.class_names
    task: Any = service.kind if is_table(path) else None
    if names is None and task == "classes":
        names = ()  # the numbers of its classes, whichever of them this file has
    return stream(
        path,
        smiles=smiles_in([path], request.smiles, told) or "smiles",
        targets=told.targets_in(path, request.target),
        class_names=names,
        task=task,
    )


def _check(item: Data, service: Service, where: str) -> None:
    """Raise for a graph without the truth that the model is to be compared with."""
    if item.get("y") is None:
        do = "Tables: name the column with --target." if is_table(where) else ""
        raise InputError(f"labelled graphs in {where}", "no labels", do)
    spec = {} if service.model.target is None else service.model.target.spec()
    count = len(spec.get("names") or ()) if service.kind != "classes" else 1
    if service.rows == "graph" and count and item.y.numel() != count:
        wanted = f"{count} target{'s' * (count != 1)} per graph in {where}, as in training"
        raise InputError(wanted, item.y.numel())
