"""Labelled files, answered: what thresholds and evaluations are made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq.bundle import describe
from gduq.cli.request import Request, bundle_of
from gduq.data.files import Reject, stream
from gduq.data.header import is_table, read_header
from gduq.deploy.places import Places
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
        if item.get("y") is None:
            do = "Tables: name the column with --target." if path.suffix in (".csv", ".tsv") else ""
            raise InputError(f"labelled graphs in {what} {path}", "no labels", do)
        graphs.append(item)
        if len(graphs) == request.batch_size:
            parts.append(service.answer(graphs))
            graphs = []
    if graphs:
        parts.append(service.answer(graphs))
    return Hypotheses.concatenate(parts)


def _stream(request: Request, service: Service, path: Path) -> Iterator[Any]:
    """The rows of a labelled file; the bundle knows what its columns are, unless told otherwise."""
    notes = describe(bundle_of(request.bundle)[0]).preprocessing
    smiles = Places.of([path], request.smiles, notes=notes).smiles
    targets = (request.target,) if isinstance(request.target, str) else request.target
    names: Any = service.class_names
    task: Any = service.kind if is_table(path) else None
    if names is None and task == "classes":
        names = ()  # the numbers of its classes, whichever of them this file has
    if targets is None:
        targets = _known_targets(service, notes or {}, path)
    return stream(path, smiles=smiles, targets=targets, class_names=names, task=task)


def _known_targets(service: Service, notes: dict[str, Any], path: Path) -> tuple[str, ...]:
    """The target columns of the training table, where this table has all of them."""
    if not is_table(path):
        return ()
    target = service.model.target
    names = notes.get("targets") or (None if target is None else target.spec().get("names"))
    known = service.kind != "classes" or "targets" in notes
    there = read_header(path)[0]
    return tuple(names) if names and known and all(n in there for n in names) else ()
