"""A user's own data for training: what a source is, what its rows are, and how they are cut."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import operator
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq._checks import check_enough, parse_dates
from gduq.data.catalog import limit_splits
from gduq.data.columns import Task, find_columns, unit_of
from gduq.data.outputs import Reject
from gduq.data.table import check_source, is_table, read_table
from gduq.errors import InputError, one_line

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from gduq.data.files import Source
    from gduq.graphs import Splits
    from gduq.prediction import Target

__all__ = ["OwnData", "check_stored", "find_object", "infer_columns", "is_object", "read_own",
           "source_digest"]  # fmt: skip

_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_MOST_REJECTED = 0.5  # of the rows: more of them, and the wrong column was read
_ROLES = {
    "train": "to learn from",
    "id_val": "like training, to stop and calibrate by",
    "id_test": "like training, to judge it at home",
    "ood_test": "unlike training, to judge it under shift",
}
_named = set[str]()  # Python objects that the user of this process named


# -- what a source is: nothing heavy is imported for files -----------------------------------------


def is_object(source: str) -> bool:
    """Whether a source is ``package.module:Name`` and no file.

    Example:
        >>> is_object("my.datasets:train"), is_object("my.csv")
        (True, False)
    """
    return _OBJECT.fullmatch(source) is not None and not Path(source).exists()


def check_stored(source: object, trusted: bool = False, folder: Path | None = None) -> None:
    """Raise for a Python object that a config on disk names, and nobody in this process: importing
    it runs code. ``trusted`` lets it be imported from now on, but no module inside ``folder``, the
    run's."""
    if not isinstance(source, str) or not _OBJECT.fullmatch(source) or source in _named:
        return
    if not trusted:
        got = f"{source!r}, which runs code when it is read"
        raise InputError("a file as the stored source", got, "Pass --trust-source if you trust it.")
    _look_here()
    modules = accumulate(source.partition(":")[0].split("."), "{}.{}".format)
    for module in modules if folder is not None else ():
        try:
            found = importlib.util.find_spec(module)
        except Exception:  # whatever a package does when it is imported: `find_object` tells
            break
        places = [found.origin, *(found.submodule_search_locations or ())] if found else []
        inside = [Path(place).resolve() for place in places if place]
        if folder and any(one.is_relative_to(folder.resolve()) for one in inside):
            raise InputError("a module outside of the run folder", f"{module} in {folder}")
    _named.add(source)


def _look_here() -> None:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def find_object(name: str) -> Any:
    """What ``package.module:Name`` stands for; modules of the working folder are found too.

    Example:
        >>> find_object("math:pi")
        3.141592653589793
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError("package.module:Name", repr(name))
    _look_here()
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever a user's module does when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"a module {module!r} that can be imported", reason) from error
    try:
        return operator.attrgetter(attribute)(found)
    except AttributeError as error:
        raise InputError(f"{attribute!r} in the module {module}", "none of that name") from error


def source_digest(source: str) -> str:
    """16 hexadecimal digits of SHA-256 over a file, or over the tensors of a dataset that is a
    Python object."""
    found = hashlib.sha256()
    if not is_object(source):
        if not Path(source).is_file():
            raise InputError("a file", f"{source}, which is none")
        with Path(source).open("rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
        return found.hexdigest()[:16]
    for graph in _dataset(source):
        for key, value in sorted(graph.to_dict().items()):
            dense = hasattr(value, "numpy") and "strided" in str(value.layout)
            found.update(key.encode())
            found.update(value.cpu().numpy().tobytes() if dense else repr(value).encode())
    return found.hexdigest()[:16]


def infer_columns(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a user's own data (`gduq.runs.config.DataConfig`), with those that the source
    tells filled in. Settings that were filled in before, which have a digest, stay."""
    found, source = dict(data), str(data["source"])
    kind, _, column = (found["by"] or "random").partition("=")
    if kind not in ({"group", "time"} if column else {"scaffold", "size", "random"}):
        do = f"Name the column: --by {kind}=COLUMN." if kind in ("group", "time") else ""
        what = "--by scaffold, size, group=COLUMN, time=COLUMN or random"
        raise InputError(what, repr(found["by"]), do)
    if is_object(source):
        _named.add(source)
    if found["digest"] is not None:
        return found
    path = Path(source).expanduser().resolve()
    if not is_object(source):
        check_source(path)
        found |= {"source": str(path), "name": found["name"] or path.name}
    if not is_object(source) and is_table(path):
        found |= _of_table(path, found, kind, column)
    elif found["smiles"] is not None or found["targets"]:
        raise InputError(
            "--smiles and --target with a table", source, "Of graphs, all y is learnt."
        )
    return {**found, "name": found["name"] or source, "digest": source_digest(found["source"])}


def _of_table(path: Path, data: Mapping[str, Any], kind: str, column: str) -> dict[str, Any]:
    table = read_table(path)
    others = (column,) if column else ()
    columns = find_columns(table, data["smiles"], data["targets"], others, data["task"])
    check_enough(len(table.lines))
    if kind == "time":
        parse_dates(column, [field for field in table.column(column) if field])
    units = data["units"] or tuple(unit_of(name)[1] for name in columns.targets)
    if len(units) != len(columns.targets):
        raise InputError(f"{len(columns.targets)} units, one per target", len(units))
    ids, kept = data["ids"] or columns.ids, units if any(units) else ()
    return {"smiles": columns.smiles, "targets": columns.targets, "ids": ids, "units": kept}


# -- its rows --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnData:
    """What became of a user's data."""

    splits: Splits
    target: Target
    by: str  # what they were cut by
    cut: tuple[str, ...]  # in words, one line per split
    rejects: tuple[tuple[int, Reject], ...]  # row number and reason of all that was left out


@lru_cache(maxsize=2)
def read_own(
    source: str,
    *,
    name: str,
    smiles: str | None = None,
    targets: tuple[str, ...] = (),
    units: tuple[str, ...] = (),
    ids: tuple[str, ...] = (),
    task: Task | None = None,
    by: str | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> OwnData:
    """Read, check and cut a source, with the settings of `gduq.runs.config.DataConfig`."""
    from gduq.data.files import GraphSource, stream
    from gduq.graphs import View, check_graph
    from gduq.prediction import infer_target

    opened: Source = (
        GraphSource(_dataset(source))
        if is_object(source)
        else stream(source, smiles=smiles or "smiles", targets=targets, task=task)
    )
    table = None if isinstance(opened, GraphSource) else opened.table
    column = (by or "").partition("=")[2]
    fields = table.column(column) if table and column else None
    names = table.column(ids[0]) if table and ids else None
    rows: dict[int, Data] = {}
    rejects: dict[int, Reject] = {}

    def reject(row: int, graph: Data, reason: str) -> None:
        rejects[row] = Reject(name, 0, reason, str(graph.get("smiles") or ""))

    for row, item in opened:
        if isinstance(item, Reject):
            rejects[row] = item
            continue
        try:
            check_graph(item)
        except InputError as error:
            reject(row, item, one_line(error))
            continue
        if item.get("y") is None:
            reject(row, item, "no target y")
        elif fields is not None and not fields[row]:
            reject(row, item, f"{column!r} is empty")
        else:
            rows[row] = item
            if names is not None:
                item.id = names[row]  # what a report calls it
    _check_rejects(source, len(rows), rejects)
    outputs, way, noun, shown = len(opened.class_names) or None, "masks", "nodes", dict[str, str]()
    first = next(iter(rows.values()))
    if len(rows) == 1 and first.get("train_mask") is not None:
        splits, target = _cut_by_masks(first, by, task, outputs)
    else:
        y = View(list(rows.values())).target
        target = infer_target(y, outputs, opened.task or task)
        for row, usable in zip(list(rows), target.usable(y).tolist(), strict=True):
            if not usable:
                reject(row, rows.pop(row), "a target is empty")
        _check_rejects(source, len(rows), rejects)
        given = None if fields is None else [fields[row] for row in rows]
        splits, way, shown = _cut(list(rows.values()), target, given, by, seed)
        noun = "molecules" if "smiles" in first else "graphs"
    left = f" {len(rejects)} row{'s are' if len(rejects) > 1 else ' is'} left out."
    how = {"masks": "by its masks", "random": "at random"}.get(way, f"by {way}")
    splits = splits.with_(
        class_names=opened.class_names or getattr(target, "names", None) or (),
        target_names=tuple(unit_of(one)[0] for one in opened.target_names),
        units=units,
        sources=(source,),
        name=name,
        description=f"{sum(len(view) for _, view in splits)} {noun} of {name}, cut {how}."
        f"{left if rejects else ''}",
    )
    splits = limit_splits(splits, limit, seed, target)
    lines = tuple(
        f"{split:<9} {len(view)} {noun}{'' if limit else shown.get(split, '')}, {_ROLES[split]}"
        for split, view in splits
    )
    return OwnData(splits, target, way, lines, tuple(sorted(rejects.items())))


@lru_cache(maxsize=2)
def _dataset(name: str) -> Sequence[Data]:
    """The graphs of the object ``package.module:Name``, or of what calling it gives."""
    from torch_geometric.data import Data

    found = find_object(name)
    if callable(found) and not hasattr(found, "__getitem__"):
        try:
            found = found()
        except TypeError as error:
            do = "Name a function that makes your dataset."
            raise InputError(f"{name} to be called without arguments", str(error), do) from error
    iterates = hasattr(found, "__iter__") or hasattr(found, "__getitem__")
    graphs = [found] if isinstance(found, Data) else list(found) if iterates else []
    if not graphs or not all(isinstance(graph, Data) for graph in graphs):
        raise InputError(f"torch_geometric Data objects from {name}", type(found).__name__)
    return graphs


def _check_rejects(source: str, good: int, rejects: Mapping[int, Reject]) -> None:
    """Raise where too little can be read."""
    total, reasons = good + len(rejects), list(rejects.values())
    if good and len(rejects) <= _MOST_REJECTED * total:
        return
    if not rejects:
        raise InputError(f"rows to learn from in {source}", "none")
    gaps = any("target" in reject.reason for reject in reasons[:5])
    do = "Train on one --target at a time." if gaps else "Is the right column named by --smiles?"
    got = f"{len(rejects)} of {total} that cannot; the first: {reasons[0]}"
    raise InputError(f"rows that can be read in {source}", got, do)


def _cut(
    graphs: Sequence[Data], target: Target, fields: Sequence[str] | None, by: str | None, seed: int
) -> tuple[Splits, str, dict[str, str]]:
    """The graphs cut; by what; and how each split differs."""
    import torch

    from gduq.graphs import View
    from gduq.graphs.packed import try_pack
    from gduq.shifts.cuts import Domain, cut, make_splits

    view = View(try_pack(graphs) or graphs)
    strata = target.strata(view.target)
    way = by or ("scaffold" if "smiles" in graphs[0] else "size")
    domain = Domain.of(way, graphs, fields)
    if domain is None:
        parts = cut(None, strata, seed=seed)
        return make_splits(view, parts, torch.zeros(len(graphs))), way, {}
    try:
        parts = cut(domain.values, strata, seed=seed, name=domain.name)
    except InputError:
        if by is not None or way != "scaffold" or len(graphs) < 40:
            raise
        return _cut(graphs, target, fields, "size", seed)  # most molecules have one scaffold
    shown = {split: f" ({domain.describe(rows)})" for split, rows in parts.items()}
    return make_splits(view, parts, domain.values), way, shown


def _cut_by_masks(
    graph: Data, by: str | None, task: Task | None, outputs: int | None
) -> tuple[Splits, Target]:
    """One graph that says itself which nodes are for what."""
    import torch

    from gduq.graphs import Splits, View
    from gduq.prediction import infer_target

    if by is not None:
        raise InputError("no --by for a graph with masks of its own", repr(by))
    masks = {"train": "train_mask", "id_val": "val_mask", "id_test": "test_mask"}
    missing = [mask for mask in masks.values() if graph.get(mask) is None]
    if missing or any(graph[mask].dim() > 1 for mask in masks.values()):
        raise InputError("train_mask, val_mask and test_mask of one column", missing or "several")
    views: dict[str, Any] = {split: View(graph, graph[mask]) for split, mask in masks.items()}
    y = torch.cat([view.target for view in views.values()])
    return Splits(**views), infer_target(y, outputs, task)
