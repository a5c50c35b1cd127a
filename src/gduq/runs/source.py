"""What can be told of a user's own data before it is read: nothing heavy is imported for files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gduq.data.header import SHEETS, find_columns, first_fields, is_table, meant, unit_of
from gduq.data.objects import check_outside
from gduq.errors import InputError

__all__ = [
    "FEWEST",
    "check_by",
    "check_enough",
    "check_stored",
    "file_digest",
    "is_object",
    "moments",
    "told_of_source",
]

FEWEST = 20  # rows to cut at all
_BY = "scaffold, size, group=COLUMN, time=COLUMN or random"
_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_named = set[str]()  # Python objects that the user of this process named
_KNOWN = "a .csv or .tsv table, a TU folder, a .safetensors file of graphs, or package.module:Name"


def is_object(source: str) -> bool:
    """Whether a source is ``package.module:Name`` and no file.

    Example:
        >>> is_object("my.datasets:train"), is_object("my.csv")
        (True, False)
    """
    return _OBJECT.fullmatch(source) is not None and not Path(source).exists()


def check_stored(source: object, trusted: bool = False, folder: Path | None = None) -> None:
    """Raise for a Python object that a config on disk names, and nobody in this process.

    Importing it runs code, and a run folder or config may come from anybody.

    Args:
        source: What the config names.
        trusted: Whether it may be imported from now on.
        folder: Of the run: a module inside is never imported.
    """
    if not isinstance(source, str) or not _OBJECT.fullmatch(source) or source in _named:
        return
    if not trusted:
        got = f"{source!r}, which runs code when it is read"
        raise InputError("a file as the stored source", got, "Pass --trust-source if you trust it.")
    if folder is not None:
        check_outside(source, folder)
    _named.add(source)


def check_by(by: str) -> str:
    """The way to cut, spelled as it should be; the column it names comes after ``=``.

    Example:
        >>> check_by("group=laboratory")
        'group=laboratory'
    """
    kind, equals, column = by.partition("=")
    with_column = kind in ("group", "time")
    if kind not in ("scaffold", "size", "group", "time", "random") or (
        with_column != bool(equals and column)
    ):
        do = f"Name the column: --by {kind}=COLUMN." if with_column else ""
        raise InputError(f"--by {_BY}", repr(by), do)
    return by


def told_of_source(data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a `DataConfig` with a source, with those that the source tells filled in.

    Args:
        data: All keys. One that was filled in before, which has a ``digest``, stays as it is.
    """
    found = dict(data)
    if found["by"] is not None:
        check_by(found["by"])
    source = str(found["source"])
    if is_object(source):
        _named.add(source)
    if found["digest"] is not None:
        return found
    if is_object(source):
        from gduq.runs.source_read import object_digest

        return {**found, "name": found["name"] or source, "digest": object_digest(source)}
    path = Path(source).expanduser().resolve()
    _check(path)
    found |= {"source": str(path), "name": found["name"] or path.name}
    if is_table(path):
        found |= _of_table(path, found)
    elif found["smiles"] is not None:
        raise InputError("data.smiles with a table", path.name)
    return {**found, "digest": file_digest(path)}


def _of_table(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    kind, _, column = (data["by"] or "").partition("=")
    others = (column,) if column else ()
    columns = find_columns(path, data["smiles"], data["targets"], others, data["task"])
    check_enough(columns.rows)
    if kind == "time":
        fields = first_fields(path)
        moments(column, [field for field in fields[meant(path, list(fields), column)] if field])
    units = data["units"] or tuple(unit_of(name)[1] for name in columns.targets)
    if len(units) != len(columns.targets):
        raise InputError(f"{len(columns.targets)} units, one per target", len(units))
    ids = data["ids"] or columns.ids
    kept = units if any(units) else ()
    return {"smiles": columns.smiles, "targets": columns.targets, "ids": ids, "units": kept}


def check_enough(rows: int) -> None:
    """Raise where there are too few rows to cut."""
    if rows < FEWEST:
        raise InputError(f"at least {FEWEST} rows to train and judge a model", rows)


def moments(name: str, fields: Sequence[Any]) -> tuple[list[float], bool]:
    """When each row is from: numbers (years, say), or dates in seconds; and whether they are dates.

    Example:
        >>> moments("year", ["1999", "2001.5"])
        ([1999.0, 2001.5], False)
    """
    try:
        return [float(field) for field in fields], False
    except ValueError:
        pass
    seconds = []
    for field in fields:
        try:
            seconds.append(datetime.fromisoformat(str(field)).timestamp())
        except (ValueError, OverflowError, OSError):
            raise InputError(
                f"dates such as 2024-05-31, or numbers, in {name!r}",
                repr(field),
                "Write dates with the year first.",
            ) from None
    return seconds, True


def _check(path: Path) -> None:
    if path.is_dir():
        if not any(path.glob("*_A.txt")) and not any(path.glob("raw/*_A.txt")):
            raise InputError(f"a TU folder with NAME_A.txt in {path}", "none", f"Pass {_KNOWN}.")
    elif not path.exists():
        raise InputError(_KNOWN, f"{path}, which does not exist")
    elif not path.is_file() or not (is_table(path) or path.suffix == ".safetensors"):
        do = "Save it as CSV." if path.suffix in SHEETS else ""
        if path.suffix in (".pt", ".pth", ".pkl"):
            do = "A pickle could run any code: load it yourself, then gduq.data.save(graphs, path)."
        raise InputError(_KNOWN, path.name, do)


def file_digest(path: Path) -> str:
    """16 hexadecimal digits of SHA-256 over a file, or over the files of a folder and its raw."""
    found = hashlib.sha256()
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*.txt") if f.is_file())
    for file in files:
        if path.is_dir():
            found.update(f"{file.relative_to(path)}\n".encode())
        with file.open("rb") as opened:
            while part := opened.read(1 << 20):
                found.update(part)
    return found.hexdigest()[:16]
