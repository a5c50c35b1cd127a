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
from gduq.data.table import MoleculeTable, check_source, is_table, read_table
from gduq.errors import InputError, one_line

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from gduq.graphs import Splits
    from gduq.prediction import Target

__all__ = ["OwnData", "check_stored", "find_object", "infer_columns", "is_object", "read_own",
           "source_digest"]  # fmt: skip

_BY = "scaffold, size, group=COLUMN, time=COLUMN or random"
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
    if folder is not None:
        _check_outside(source, folder.resolve())
    _named.add(source)


def _check_outside(name: str, folder: Path) -> None:
    _look_here()
    for module in accumulate(name.partition(":")[0].split("."), "{}.{}".format):
        try:
            found = importlib.util.find_spec(module)
        except Exception:  # whatever a package does when it is imported: `find_object` tells
            return
        if found is None:
            return
        for file in filter(None, [found.origin, *(found.submodule_search_locations or ())]):
            if Path(file).resolve().is_relative_to(folder):
                raise InputError("a module outside of the run folder", f"{module} in {folder}")


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
    """16 hexadecimal digits of SHA-256 over a file, the text files of a folder, or the tensors of a
    dataset that is a Python object."""
    found = hashlib.sha256()
    if is_object(source):
        for graph in _dataset(source):
            for key, value in sorted(graph.to_dict().items()):
                dense = hasattr(value, "numpy") and "strided" in str(value.layout)
                found.update(key.encode())
                found.update(value.cpu().numpy().tobytes() if dense else repr(value).encode())
        return found.hexdigest()[:16]
    path = Path(source)
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*.txt") if f.is_file())
    for file in files:
        if path.is_dir():
            found.update(f"{file.relative_to(path)}\n".encode())
        with file.open("rb") as opened:
            while part := opened.read(1 << 20):
                found.update(part)
    return found.hexdigest()[:16]


def infer_columns(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a user's own data, with those that the source tells filled in.

    Args:
        data: ``source``, ``name``, ``smiles``, ``targets``, ``units``, ``ids``, ``task``, ``by``
            and ``digest``. Settings that were filled in before, which have a digest, stay.
    """
    found, source = dict(data), str(data["source"])
    kind, equals, column = (found["by"] or "random").partition("=")
    needs_column = kind in ("group", "time")
    known = kind in ("scaffold", "size", "group", "time", "random")
    if not known or needs_column != bool(equals and column):
        do = f"Name the column: --by {kind}=COLUMN." if needs_column else ""
        raise InputError(f"--by {_BY}", repr(found["by"]), do)
    if is_object(source):
        _named.add(source)
    if found["digest"] is not None:
        return found
    if not is_object(source):
        path = Path(source).expanduser().resolve()
        check_source(path)
        found |= {"source": str(path), "name": found["name"] or path.name}
        if is_table(path):
            found |= _of_table(path, found, kind, column)
        elif found["smiles"] is not None:
            raise InputError("data.smiles with a table", path.name)
    return {**found, "name": found["name"] or source, "digest": source_digest(found["source"])}


def _of_table(path: Path, data: Mapping[str, Any], kind: str, column: str) -> dict[str, Any]:
    table = read_table(path)
    others = (column,) if column else ()
    columns = find_columns(table, data["smiles"], data["targets"], others, data["task"])
    check_enough(len(table.lines))
    if kind == "time":
        parse_dates(column, [field for field in table.fields(column) if field])
    units = data["units"] or tuple(unit_of(name)[1] for name in columns.targets)
    if len(units) != len(columns.targets):
        raise InputError(f"{len(columns.targets)} units, one per target", len(units))
    ids = data["ids"] or columns.ids
    kept = units if any(units) else ()
    return {"smiles": columns.smiles, "targets": columns.targets, "ids": ids, "units": kept}


# -- its rows --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnData:
    """What became of a user's data.

    Attributes:
        splits: The rows, cut.
        target: What the targets are.
        by: What they were cut by.
        cut: The cut in words, one line per split.
        rejects: Row number and reason of every row that was left out.
    """

    splits: Splits
    target: Target
    by: str
    cut: tuple[str, ...]
    rejects: tuple[tuple[int, Reject], ...]


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
    """Read, check and cut a source; the last two are kept. Arguments as `infer_columns` has them.

    ``seed`` is that of the cut, ``limit`` the number of rows in all splits together.
    """
    from gduq.graphs import View
    from gduq.graphs.packed import try_pack
    from gduq.prediction import infer_target

    opened = _opened(source, smiles, targets, task)
    column, is_file = (by or "").partition("=")[2], isinstance(opened, MoleculeTable)
    fields = opened.table.by_row(column) if column and is_file else {}
    names = opened.table.by_row(ids[0]) if ids and is_file else {}
    graphs, numbers, rejects = list[Any](), list[int](), list[tuple[int, Reject]]()
    for row, item in opened:
        if not isinstance(item, Reject):
            reason = _flaw(item, is_file)
            if not reason and column and is_file and not fields[row]:
                reason = f"{column!r} is empty"
            item = Reject(name, 0, reason, str(item.get("smiles") or "")) if reason else item
        if isinstance(item, Reject):
            rejects.append((row, item))
            continue
        if names:
            item.id = names[row]  # what a report calls it
        graphs.append(item)
        numbers.append(row)
    _check_rejects(source, len(graphs), rejects)
    target_names = opened.target_names
    if targets and not is_file:
        graphs, target_names = _choose_targets(graphs, target_names, targets), targets
    known = {
        "class_names": opened.class_names,
        "target_names": tuple(unit_of(one)[0] for one in target_names),
        "units": units,
        "sources": (source,),
        "name": name,
    }
    outputs = len(opened.class_names) or None
    if len(graphs) == 1 and graphs[0].get("train_mask") is not None:
        return _cut_by_masks(graphs[0], by, task, outputs, known, seed, limit, rejects)
    y = View(graphs).target
    target = infer_target(y, outputs, opened.task if is_file else task)
    usable = target.usable(y).tolist()
    if not all(usable):
        bad = [Reject(name, 0, "a target is empty", str(g.get("smiles") or "")) for g in graphs]
        rejects += [(n, r) for n, r, good in zip(numbers, bad, usable, strict=True) if not good]
        rejects.sort(key=lambda pair: pair[0])
        graphs = [graph for graph, good in zip(graphs, usable, strict=True) if good]
        numbers = [number for number, good in zip(numbers, usable, strict=True) if good]
        _check_rejects(source, len(graphs), rejects)
    given = [fields[row] for row in numbers] if fields else None
    if column and not is_file:
        given = [_attribute(graph, column) for graph in graphs]
    packed = try_pack(graphs) or graphs
    return _cut(graphs, packed, target, given, by, known, seed, limit, rejects)


def _opened(source: str, smiles: str | None, targets: tuple[str, ...], task: Task | None) -> Any:
    from gduq.data.files import GraphSource, stream

    if is_object(source):
        return GraphSource(_dataset(source))
    if is_table(source):
        return stream(source, smiles=smiles or "smiles", targets=targets, task=task)
    return stream(source)


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


def _flaw(graph: Data, is_molecule: bool) -> str:
    """Why no model should see a graph."""
    from gduq.graphs import check_graph

    if graph.get("y") is None:
        return "no target y"
    try:
        if not is_molecule:
            check_graph(graph)
    except InputError as error:
        return one_line(error)
    return ""


def _choose_targets(
    graphs: Sequence[Data], names: Sequence[str], wanted: Sequence[str]
) -> list[Data]:
    """The same with some of the columns of ``y``."""
    missing = [name for name in wanted if name not in names]
    if missing:
        known = f"targets from {', '.join(names)}" if names else "no --target for unnamed targets"
        raise InputError(known, repr(missing[0]))
    places, found = [list(names).index(name) for name in wanted], []
    for graph in graphs:
        found.append(graph.__copy__())
        found[-1].y = graph.y.reshape(1, -1)[:, places]
    return found


def _attribute(graph: Data, name: str) -> Any:
    if name not in graph:
        known = ", ".join(sorted(map(str, graph.keys())))
        raise InputError(f"graphs with an attribute {name!r} to cut by", f"only {known}")
    value = graph[name]
    if not hasattr(value, "numel"):
        return value
    if value.numel() != 1:
        raise InputError(f"one {name!r} per graph", f"shape {list(value.shape)}")
    return value.item()


def _check_rejects(source: str, good: int, rejects: Sequence[tuple[int, Reject]]) -> None:
    """Raise where too little can be read."""
    total = good + len(rejects)
    if good and len(rejects) <= _MOST_REJECTED * total:
        return
    if not rejects:
        raise InputError(f"rows to learn from in {source}", "none")
    gaps = any("target" in reject.reason for _, reject in rejects[:5])
    do = "Train on one --target at a time." if gaps else "Is the right column named by --smiles?"
    got = f"{len(rejects)} of {total} that cannot; the first: {rejects[0][1]}"
    raise InputError(f"rows that can be read in {source}", got, do)


# -- the cut ---------------------------------------------------------------------------------------


def _cut(
    graphs: Sequence[Data],
    packed: Sequence[Data],
    target: Target,
    fields: Sequence[Any] | None,
    by: str | None,
    known: Mapping[str, Any],
    seed: int,
    limit: int | None,
    rejects: Sequence[tuple[int, Reject]],
) -> OwnData:
    import torch

    from gduq.graphs import View
    from gduq.shifts.cuts import Domain, cut, make_splits

    what, usual = ("molecules", "scaffold") if "smiles" in graphs[0] else ("graphs", "size")
    way = by or usual
    strata = target.strata(View(packed).target)
    while True:
        domain = Domain.of(way, graphs, fields)
        values, called = (None, "") if domain is None else (domain.values, domain.name)
        try:
            rows = cut(values, strata, seed=seed, name=called)
            break
        except InputError:
            if by is not None or way != "scaffold" or len(graphs) < 40:
                raise
            way = "size"  # most molecules have one scaffold
    how = "at random" if way == "random" else f"by {way}"
    left = f" {len(rejects)} row{'s are' if len(rejects) > 1 else ' is'} left out."
    splits = make_splits(
        View(packed),
        rows,
        torch.zeros(len(graphs)) if values is None else values,
        name=known["name"],
        description=f"{len(graphs)} {what} of {known['name']}, cut {how}.{left if rejects else ''}",
    )
    splits = splits.with_(**{**known, "class_names": known["class_names"] or _names(target)})
    splits = limit_splits(splits, limit, seed, target)
    lines = []
    for split, view in splits:
        where = "" if domain is None or limit else f" ({domain.describe(rows[split])})"
        lines.append(f"{split:<9} {len(view)} {what}{where}, {_ROLES[split]}")
    return OwnData(splits, target, way, tuple(lines), tuple(rejects))


def _names(target: Target) -> tuple[str, ...]:
    """Of classes that are not just numbered."""
    return getattr(target, "names", None) or ()


def _cut_by_masks(
    graph: Data,
    by: str | None,
    task: Task | None,
    outputs: int | None,
    known: Mapping[str, Any],
    seed: int,
    limit: int | None,
    rejects: Sequence[tuple[int, Reject]],
) -> OwnData:
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
    target = infer_target(torch.cat([view.target for view in views.values()]), outputs, task)
    splits = Splits(**views, description=f"{known['name']}, cut by its masks.")
    splits = splits.with_(**{**known, "class_names": known["class_names"] or _names(target)})
    splits = limit_splits(splits, limit, seed, target)
    lines = (f"{split:<9} {len(view)} nodes, {_ROLES[split]}" for split, view in splits)
    return OwnData(splits, target, "masks", tuple(lines), tuple(rejects))
