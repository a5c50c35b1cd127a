"""What a command may replace: a file that it wrote before, and nothing else.

A file that is there and is not recognised belongs to the user. It is refused before any work.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from gduq.data.outputs import check_output, check_outputs
from gduq.disk import safetensors_metadata
from gduq.errors import InputError

__all__ = ["MARK", "check_replaced", "source_of"]

MARK = "<!-- gduq evaluate -->"  # stands in Markdown that has no other sign of who wrote it
_KEYS = {  # columns of a table, or keys of a JSON document: those that are always there
    "predict": ({"file", "row", "ood_score"},),
    "report": (
        {"subject", "kind", "split", "calibrator", "measure", "value", "against"},
        {"title", "facts", "reproduce", "verdict", "subjects", "table"},
    ),
    "bench": (
        {"table", "dataset", "variant", "calibrator", "metric", "mean", "paper"},
        {"name", "scale", "records", "title", "failures", "runs"},
    ),
    "evaluate": ({"settings", "table"},),
}
_SIGNS = {  # in the first lines of a text
    "report": r'<meta name="generator" content="gduq report">|<!-- gduq report -->|% gduq report',
    "bench": r"\A# .*\(scale: \w+\)\n|\A% gduq bench ",
    "evaluate": MARK,
}
_FORMATS = {"calibrate": "gduq bundle", "data convert": "gduq.graphs"}  # of safetensors files
_HEAD = 10_000  # characters of a text that are looked at


def check_replaced(
    path: Path | None,
    *commands: str,
    endings: Sequence[str] = (),
    reads: Iterable[Path | None] = (),
) -> None:
    """Raise `InputError` unless a path is new, or was written by one of these commands.

    Args:
        path: The file to write, if any.
        commands: Names of commands, such as ``"predict"``.
        endings: What its name may end in; anything by default.
        reads: Files that are never replaced, whatever they look like; ``None`` is skipped.
    """
    if path is None:
        return
    check_outputs({"the output": path}, reads)
    if endings:
        check_output(path, tuple(endings))
    if not path.exists():
        return
    if not path.is_file() or not any(_wrote(command, path) for command in commands):
        raise InputError(
            f"a new file, or one that `gduq {commands[0]}` wrote",
            f"{path}, another file",
            "Choose another name, or delete it first.",
        )


def source_of(run: Path) -> Path | None:
    """The file that a run was trained on; ``None`` where the run names none."""
    config = run / "config.json"
    if not config.is_file():  # a pipe would never end
        return None
    try:
        data = json.loads(config.read_text(encoding="utf-8"))["data"]
        return None if data.get("source") is None else Path(str(data["source"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _wrote(command: str, path: Path) -> bool:
    if command in _FORMATS:
        return safetensors_metadata(path).get("format") == _FORMATS[command]
    if not path.stat().st_size:  # as mktemp leaves it
        return True
    if command == "export":
        return _is_export(path)
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        head = file.read(_HEAD)
    if command in _SIGNS and re.search(_SIGNS[command], head):
        return True
    try:
        found = _names(path, head)
    except Exception:  # whatever it holds, no command wrote it
        return False
    return any(keys <= set(found) for keys in _KEYS[command])


def _names(path: Path, head: str) -> Iterable[str]:
    """Columns of a table; keys of a JSON document, or of the first of several lines."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return list(pq.read_schema(path).names)
    if not head.startswith("{"):
        return next(csv.reader(head.splitlines()), [])
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
        found = json.loads(first if first.rstrip().endswith("}") else first + file.read())
    return found if isinstance(found, dict) else ()


def _is_export(path: Path) -> bool:
    """Whether the file has the entry ``gduq``, which tells its inputs and outputs."""
    if path.suffix == ".onnx":
        return b"\n\x04gduq\x12" in path.read_bytes()  # its key, as protobuf writes it
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("/gduq.json") for name in file.namelist())
    except (zipfile.BadZipFile, OSError):
        return False
