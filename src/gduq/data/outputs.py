"""Paths that are written to: never something that is read, and never each other."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from gduq.errors import InputError

__all__ = ["FORMATS", "TABLES", "check_new", "check_output", "check_outputs", "rejects_path"]

TABLES = (".parquet", ".csv", ".jsonl")
FORMATS = {
    "html": ".html", "markdown": ".md", "latex": ".tex", "json": ".json", "csv": ".csv",
}  # fmt: skip


def check_output(path: Path, endings: tuple[str, ...] = TABLES) -> Path:
    """The path, if a file of one of these endings (none: any) can be written there.

    Example:
        >>> check_output(Path("answers.xlsx"))
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected a file name that ends in .parquet, .csv, .jsonl, got ...
    """
    if endings and path.suffix not in endings:
        raise InputError(f"a file name that ends in {', '.join(endings)}", path.name)
    if path.is_dir():
        raise InputError("the name of a file to write", f"the folder {path}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError("a folder that exists and can be written", path.parent)
    return path


def check_new(
    path: Path | None,
    force: bool = False,
    endings: tuple[str, ...] = (),
    reads: Iterable[Path | None] = (),
) -> None:
    """Raise `InputError` unless a file can be written here and nothing is lost by it.

    Args:
        path: The file to write, if any.
        force: Whether a file that is there may be replaced.
        endings: What its name may end in; anything by default.
        reads: Files that are never replaced; ``None`` is skipped.
    """
    if path is None:
        return
    check_outputs({"the output": path}, reads)
    check_output(path, endings)
    if not os.path.lexists(path):  # a link that leads nowhere is there too
        return
    if not force:
        do = "Choose another name, or pass --force to replace it."
        raise InputError("a new file", f"{path}, which exists", do)
    if not stat.S_ISREG(path.lstat().st_mode):  # a device, or a link to somewhere else
        raise InputError("a regular file to replace", path)


def rejects_path(output: Path, rejects: str | Path | None = None) -> Path:
    """Where the rows that were left out are listed."""
    return Path(f"{output}.rejects.csv" if rejects is None else rejects).expanduser()


def check_outputs(outputs: Mapping[str, Path], inputs: Iterable[Path | None]) -> None:
    """Raise `InputError` if writing these files would destroy something.

    Args:
        outputs: Files to write, by what the user calls them.
        inputs: Files and folders that are read. Nothing may be written over a file among them, or
            over one inside a folder among them.

    Example:
        >>> check_outputs({"--rejects": Path("in.csv")}, [Path("in.csv")])
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected a new file as --rejects, got in.csv, which is read. ...
    """
    read = [path for path in inputs if path is not None]
    do = "Choose another name."
    seen: dict[str, Path] = {}
    for name, path in outputs.items():
        for source in read:
            inside = path.exists() and source.resolve() in path.resolve().parents
            if inside or _same(path, source):
                raise InputError(f"a new file as {name}", f"{path}, which is read", do)
        for first, other in seen.items():
            if _same(path, other):
                raise InputError(f"different files as {first} and {name}", f"{path} twice", do)
        seen[name] = path


def _same(one: Path, two: Path) -> bool:
    """Whether two paths are one file: by name, through links, or in another spelling."""
    if one.resolve() == two.resolve():
        return True
    return one.exists() and two.exists() and one.samefile(two)
