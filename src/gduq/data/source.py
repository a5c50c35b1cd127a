"""A user's own file for training: what its columns are, which rows are sound, how they are cut."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq._checks import check_enough, parse_dates
from gduq.data.catalog import limit_splits
from gduq.data.columns import Task, find_columns, unit_of
from gduq.data.outputs import Reject
from gduq.data.table import Table, check_source, is_table, read_table
from gduq.errors import InputError, one_line

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from gduq.graphs import Splits
    from gduq.prediction import Target

__all__ = ["OwnData", "infer_columns", "read_own", "source_digest"]

_MOST_REJECTED = 0.5  # of the rows: more of them, and the wrong column was read
_ROLES = {
    "train": "to learn from",
    "id_val": "like training, to stop and calibrate by",
    "id_test": "like training, to judge it at home",
    "ood_test": "unlike training, to judge it under shift",
}


def source_digest(source: str | Path) -> str:
    """16 hexadecimal digits of SHA-256 over a file."""
    found = hashlib.sha256()
    with check_source(source).open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()[:16]


def infer_columns(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a user's own data (`gduq.runs.config.DataConfig`), with those that the file
    tells filled in. Settings that were filled in before, which have a digest, stay."""
    kind, _, column = (data["by"] or "random").partition("=")
    if kind not in (("group", "time") if column else ("scaffold", "size", "random")):
        raise InputError("--by scaffold, size, group=COLUMN, time=COLUMN or random", data["by"])
    if data["digest"] is not None:
        return dict(data)
    path = check_source(data["source"]).resolve()
    name, digest = data["name"] or path.name, source_digest(path)
    found = {**data, "source": str(path), "name": name, "digest": digest}
    if not is_table(path):
        if data["smiles"] is not None or data["targets"]:
            do = "Of graphs, all y is learnt."
            raise InputError("--smiles and --target with a table", path.name, do)
        return found
    table, others, given = read_table(path), [column] if column else [], data["targets"]
    smiles, targets, ids = find_columns(table, data["smiles"], given, others, data["task"])
    check_enough(len(table.lines))
    if kind == "time":
        parse_dates(column, [field for field in table.column(column) if field])
    units = data["units"] or tuple(unit_of(target)[1] for target in targets)
    if len(units) != len(targets):
        raise InputError(f"{len(targets)} units, one per target", len(units))
    found |= {"smiles": smiles, "targets": targets, "ids": data["ids"] or ids}
    return found | {"units": units if any(units) else ()}


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
    """Read, check and cut a file, with the settings of `gduq.runs.config.DataConfig`."""
    from gduq.data.files import stream
    from gduq.graphs import View, check_graph
    from gduq.prediction import infer_target

    opened = stream(source, smiles=smiles or "smiles", targets=targets, task=task)
    table = opened.content if isinstance(opened.content, Table) else None
    column = (by or "").partition("=")[2]
    fields = table.column(column) if table and column else None
    rows: dict[int, Data] = {}
    rejects: dict[int, Reject] = {}
    for row, item in opened:
        if isinstance(item, Reject):
            rejects[row] = item
            continue
        flaw = "" if item.get("y") is not None else "no target y"
        if fields is not None and not fields[row]:
            flaw = f"no {column!r}"
        try:
            check_graph(item)
        except InputError as error:
            flaw = one_line(error)
        if flaw:
            rejects[row] = Reject(name, 0, flaw, item.get("smiles") or "")
            continue
        rows[row] = item
        if table and ids:
            item.id = table.column(ids[0])[row]
    _check_rejects(source, len(rows), rejects)
    y = View(list(rows.values())).target
    target = infer_target(y, len(opened.class_names) or None, opened.task or task)
    for row, usable in zip(list(rows), target.usable(y).tolist(), strict=True):
        if not usable:
            text = rows.pop(row).get("smiles") or ""
            rejects[row] = Reject(name, 0, "a target is empty", text)
    _check_rejects(source, len(rows), rejects)
    graphs, given = list(rows.values()), None if fields is None else list(fields[list(rows)])
    splits, way = _cut(graphs, target, given, by, seed)
    noun = "molecules" if "smiles" in graphs[0] else "graphs"
    how = "at random" if way == "random" else f"by {way}"
    left = f"; {len(rejects)} left out" if rejects else ""
    splits = splits.with_(
        class_names=opened.class_names or getattr(target, "names", None) or (),
        target_names=tuple(unit_of(one)[0] for one in opened.target_names),
        units=units,
        name=name,
        description=f"{len(graphs)} {noun} of {name}, cut {how}{left}.",
    )
    splits = limit_splits(splits, limit, seed, target)
    lines = tuple(f"{part:<9} {len(view)} {noun}, {_ROLES[part]}" for part, view in splits)
    return OwnData(splits, target, way, lines, tuple(sorted(rejects.items())))


def _check_rejects(source: str, good: int, rejects: Mapping[int, Reject]) -> None:
    """Raise where too little can be read."""
    total, first = good + len(rejects), next(map(str, rejects.values()), "none")
    if not good or len(rejects) > _MOST_REJECTED * total:
        do = "Is the right column named by --smiles?"
        do = "Train on one --target at a time." if "target" in first else do
        got = f"{len(rejects)} of {total} that cannot; the first: {first}"
        raise InputError(f"rows that can be read in {source}", got, do)


def _cut(
    graphs: Sequence[Data], target: Target, fields: Sequence[str] | None, by: str | None, seed: int
) -> tuple[Splits, str]:
    """The graphs cut, and by what."""
    import torch

    from gduq.graphs import View
    from gduq.graphs.packed import try_pack
    from gduq.shifts.cuts import cut, domain_of, make_splits

    view = View(try_pack(graphs) or graphs)
    strata = target.strata(view.target)
    way = by or ("scaffold" if "smiles" in graphs[0] else "size")
    domain = None if way == "random" else domain_of(way, graphs, fields)
    try:
        parts = cut(domain, strata, seed=seed, name=way)
    except InputError:
        if by is not None or way != "scaffold" or len(graphs) < 40:
            raise
        return _cut(graphs, target, fields, "size", seed)  # most molecules have one scaffold
    return make_splits(view, parts, torch.zeros(len(graphs)) if domain is None else domain), way
