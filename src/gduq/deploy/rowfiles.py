"""Files of rows, written a piece at a time: parquet, CSV, JSON lines."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from gduq.data.outputs import check_output
from gduq.data.safe_text import safe_cell
from gduq.disk import atomic_path, to_json

__all__ = ["Columns", "Kind", "RowFile", "check_output", "join_files", "row_file"]

Kind = Literal["text", "whole", "number", "texts", "wholes"]
Columns = Mapping[str, list[Any]]
_GROUP = 16_384  # rows of a parquet row group: what is held in memory


class RowFile:
    """Takes rows as columns, piece after piece; one JSON object per line."""

    def __init__(self, path: Path, kinds: Mapping[str, Kind]) -> None:
        self.file: Any = path.open("w", newline="", encoding="utf-8")

    def write(self, columns: Columns) -> None:
        for row in zip(*columns.values(), strict=True):
            values = dict(zip(columns, row, strict=True))
            self.file.write(to_json(values, indent=None) + "\n")

    def close(self) -> None:
        self.file.close()


class _Csv(RowFile):
    """Comma-separated; a set is a JSON list in one field, and no text is a formula."""

    def __init__(self, path: Path, kinds: Mapping[str, Kind]) -> None:
        super().__init__(path, kinds)
        self._writer = csv.writer(self.file)
        self._writer.writerow([safe_cell(name) for name in kinds])

    def write(self, columns: Columns) -> None:
        for row in zip(*columns.values(), strict=True):
            self._writer.writerow([_field(value) for value in row])


def _field(value: Any) -> Any:
    if isinstance(value, str):
        return safe_cell(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


class _Parquet(RowFile):
    """Columns in row groups of some ten thousand rows."""

    def __init__(self, path: Path, kinds: Mapping[str, Kind]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64()}
        types |= {"texts": pa.list_(pa.string()), "wholes": pa.list_(pa.int64())}
        self._schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
        self.file = pq.ParquetWriter(path, self._schema)
        self._kept: dict[str, list[Any]] = {name: [] for name in kinds}

    def write(self, columns: Columns) -> None:
        for name, values in columns.items():
            self._kept[name] += values
        if len(next(iter(self._kept.values()))) >= _GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        self.file.write_table(pa.table(self._kept, schema=self._schema))
        self._kept = {name: [] for name in self._kept}

    def close(self) -> None:
        if next(iter(self._kept.values())):
            self._flush()
        super().close()


_WRITERS = {".parquet": _Parquet, ".csv": _Csv, ".jsonl": RowFile}


@contextmanager
def row_file(path: Path, kinds: Mapping[str, Kind]) -> Iterator[RowFile]:
    """A file to write rows to, its format told by its name; it is there when it is complete.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
        >>> with row_file(path, {"row": "whole", "set": "texts"}) as rows:
        ...     rows.write({"row": [0, 1], "set": [["a"], []]})
        >>> path.read_text().splitlines()
        ['{"row": 0, "set": ["a"]}', '{"row": 1, "set": []}']
    """
    writer = _WRITERS[check_output(path).suffix]
    with atomic_path(path) as temporary:
        rows = writer(temporary, kinds)
        try:
            yield rows
        finally:
            rows.close()


def join_files(parts: Sequence[Path], output: Path) -> None:
    """One file of the rows of several with equal columns, in their order; a piece at a time."""
    with atomic_path(output) as temporary:
        if output.suffix == ".parquet":
            _join_parquet(parts, temporary)
            return
        with temporary.open("wb") as whole:
            for number, part in enumerate(parts):
                with part.open("rb") as rows:
                    if number and output.suffix == ".csv":
                        rows.readline()  # the names of the columns, once
                    shutil.copyfileobj(rows, whole)


def _join_parquet(parts: Sequence[Path], output: Path) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(output, pq.read_schema(parts[0])) as whole:
        for part in parts:
            with pq.ParquetFile(part) as rows:
                for group in range(rows.num_row_groups):
                    whole.write_table(rows.read_row_group(group))
