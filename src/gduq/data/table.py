"""Tables: the one place where a file of rows is read, whatever its format, and the settings that a
user's file tells. What a column means and holds is decided in `gduq.data.columns`."""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq._io import atomic_path
from gduq.data.catalog import cache_root
from gduq.data.columns import find_columns, resolve_column, unit_of
from gduq.data.outputs import Reject
from gduq.errors import InputError, check_enough, not_installed, parse_dates, warn_user

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "check_source", "infer_columns", "is_table", "read_table", "source_digest"]

_TEXTS = (".csv", ".tsv", ".txt")
_RECORDS = (".smi", ".sdf", ".jsonl", ".parquet")
_FIRST = 100  # lines that tell the separator
_PICKLE = "A pickle could run any code: load it yourself, then gduq.data.save(graphs, path)."
_HINTS = dict.fromkeys((".xlsx", ".xls", ".ods"), "Save it as CSV.")
_HINTS |= dict.fromkeys((".pt", ".pth", ".pkl", ".pickle"), _PICKLE)


def _ending(path: str | Path) -> str:
    """How a name ends, in small letters; of a compressed file what is before ``.gz``."""
    return Path(str(path).lower().removesuffix(".gz")).suffix


def is_table(path: str | Path) -> bool:
    """Whether a file is read as a table, by its ending; ``-`` is standard input."""
    return str(path) == "-" or _ending(path) in (*_TEXTS, *_RECORDS)


def check_source(path: str | Path) -> Path:
    """The file that is meant, or an error unless it can be read."""
    path = _standard_input() if str(path) == "-" else Path(path).expanduser()
    if path.is_file() and (is_table(path) or path.suffix == ".safetensors"):
        return path
    do = "Of a PyG dataset write one: gduq.data.save(dataset, path)." if path.is_dir() else ""
    got = path.name if path.exists() else f"{path}, which does not exist"
    formats = f"a table ({', '.join((*_TEXTS, *_RECORDS))}), or a .safetensors file of graphs"
    raise InputError(formats, got, do or _HINTS.get(path.suffix, ""))


@cache
def _standard_input() -> Path:
    """What standard input holds, as a file in the cache: a run reads its table again."""
    content = sys.stdin.buffer.read()
    path = cache_root() / f"stdin-{hashlib.sha256(content).hexdigest()[:16]}.csv"
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    return path


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a file as texts, by row number."""

    path: Path
    frame: pd.DataFrame  # the rows that have all their fields, without blanks around them
    lines: Sequence[int]  # in which each row begins, readable or not; 0 where there are no lines
    rejects: dict[int, Reject]  # the rows that have not all their fields
    commas: bool = False  # whether numbers may have decimal commas: they part nothing else

    @property
    def names(self) -> list[str]:
        """The column names; one may be there twice."""
        return list(self.frame.columns)

    def column(self, name: str) -> pd.Series[str]:
        """What each row holds in the column that `resolve_column` finds, by row number."""
        return self.frame[resolve_column(self.path, self.names, name)]

    def reject(self, row: int, reason: str) -> Reject:
        """A row that cannot be used."""
        return Reject(self.path.name, self.lines[row], reason, ",".join(self.frame.loc[row])[:200])


def read_table(path: str | Path) -> Table:
    """All rows of a table; those that are damaged are listed. A file is read once.

    Fields are parted by commas, semicolons, tabs or ``|``, whichever gives most lines as many as
    there are names. Blank lines are no rows. A quote that is not closed refuses the file: where it
    ends is not known. Molecules of an SDF file become SMILES.
    """
    path = check_source(path)
    if not is_table(path):
        raise InputError("a table", f"{path}, which has no columns")
    return _read(path, path.stat().st_mtime_ns, path.stat().st_size)


@lru_cache(maxsize=4)
def _read(path: Path, *state: int) -> Table:
    import pandas as pd

    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix.lower() == ".gz" else content
        if _ending(path) in _TEXTS:
            table = _read_text(path, _lines(path, content))
        else:
            frame = pd.DataFrame(_read_records(path, content), dtype=object).map(_as_text)
            table = Table(path, frame, [0] * len(frame), {})
    except ImportError:
        raise not_installed("RDKit to read molecules", "rdkit") from None
    except InputError:
        raise
    except (ValueError, TypeError, EOFError, csv.Error, OSError, zlib.error) as error:
        raise InputError(f"a sound file {path}", error) from error
    if not table.names:
        raise InputError(f"a line of column names in {path}", "none")
    return table


def _lines(path: Path, content: bytes) -> list[str]:
    """The lines of a text in UTF-8, or in UTF-16 that says so, or else in Latin-1."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        warn_user(f"{path.name} is no UTF-8; it is read as Latin-1 (Windows-1252).")
        text = content.decode("cp1252", "replace")
    return StringIO(text, newline="").readlines()


def _read_text(path: Path, lines: list[str]) -> Table:
    import pandas as pd

    def fields(separator: str) -> tuple[int, bool]:
        """How many there are, if most lines have as many as the first."""
        counts = [0]
        with suppress(csv.Error):  # a field that is too long
            counts = [len(row) for row in csv.reader(lines[:_FIRST], delimiter=separator) if row]
        fits = counts and 2 * counts.count(counts[0]) >= len(counts)
        return (counts[0] if fits else 0), separator in lines[0]

    separator = max(",;\t|", key=fields) if lines and _ending(path) != ".tsv" else "\t"
    reader = csv.reader(lines, delimiter=separator, strict=True)
    names = [name.strip() for name in next(reader, [])]
    rows, begins, rejects = dict[int, list[str]](), list[int](), dict[int, Reject]()
    while (line := reader.line_num + 1) <= len(lines):
        try:
            row = [field.strip() for field in next(reader)]
            flaw = "" if len(row) == len(names) else f"{len(row)} fields instead of {len(names)}"
        except csv.Error as error:  # the reader goes on with the next line
            row = [flaw := str(error)]
        if not any(row):
            continue
        if flaw and reader.line_num > line:
            raise InputError(f"quotes that are closed in {path}", f"one in line {line} that is not")
        if flaw:
            rejects[len(begins)] = Reject(path.name, line, flaw, lines[line - 1].strip()[:200])
        else:
            rows[len(begins)] = row
        begins.append(line)
    frame = pd.DataFrame(list(rows.values()), list(rows), names, dtype=object)
    return Table(path, frame, begins, rejects, separator != ",")


def _read_records(path: Path, content: bytes) -> list[dict[str, object]]:
    """The rows of a file in which each has its own names."""
    kind = _ending(path)
    if kind == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(BytesIO(content)).to_pylist()  # type: ignore[no-any-return]
    if kind == ".sdf":
        from rdkit.Chem import ForwardSDMolSupplier, MolToSmiles
        from rdkit.rdBase import BlockLogs

        found = list[dict[str, object]]()
        with BlockLogs():
            for one in ForwardSDMolSupplier(BytesIO(content)):
                noted = {name: one.GetProp(name) for name in one.GetPropNames()} if one else {}
                noted = {k: v for k, v in noted.items() if k.lower() != "smiles"}
                name, smiles = (one.GetProp("_Name"), MolToSmiles(one)) if one else ("", "none")
                found.append({"name": name, **noted, "smiles": smiles})
        return found
    lines = [line for line in _lines(path, content) if line.strip()]
    if kind == ".jsonl":
        return [dict(json.loads(line)) for line in lines]
    if not (lines and "smiles" in lines[0].lower()):
        lines.insert(0, "smiles name")
    names = lines[0].split()
    parts = (line.strip().split(None, len(names) - 1) for line in lines[1:])
    return [dict(zip(names, part, strict=False)) for part in parts]


def _as_text(value: object) -> str:
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=str)
    return "" if value is None or value != value else str(value).strip()


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
