"""Answers for files of graphs: read, predicted and written a batch at a time.

`predict_files` streams graphs through a `Service`, so memory does not grow with their number.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch_geometric.data import Data

from gduq._io import atomic_path, to_json
from gduq.conformal import shift_test
from gduq.data import outputs
from gduq.data.files import stream
from gduq.data.outputs import Reject, RejectList, check_output, safe_cell
from gduq.data.table import check_columns, is_table, read_table
from gduq.errors import InputError
from gduq.prediction import Prediction
from gduq.serve.service import Service

__all__ = ["InputRow", "InputTable", "Served", "predict_files", "row_file"]

_SAMPLE = 1000  # rows to test for shift
Columns = Mapping[str, list[Any]]


@dataclass
class Served:
    """What `predict_files` did."""

    path: Path  # of the answers
    graphs: int = 0  # answered
    rows: int = 0  # written: graphs, or nodes of them
    rejected: int = 0  # graphs left out
    rejects: Path | None = None  # the file that lists them with reasons
    first: str = ""  # of them
    abstained: int | None = None  # rows with a reason to abstain, where there are rules
    shift_pvalue: float | None = None  # two-sample test of the rows against the reference data
    columns: list[str] = field(default_factory=list)  # their names
    reasons: dict[str, int] = field(default_factory=dict)  # how often each is given to abstain
    units: dict[str, str] = field(default_factory=dict)  # of values that have one


def predict_files(
    service: Service,
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    rejects: str | Path | None = None,
    table: InputTable | None = None,
    batch_size: int = 256,
    notify: Callable[[int], None] = lambda _: None,
) -> Served:
    """Answer for all graphs of some files, ``batch_size`` in memory at a time.

    A graph that cannot be read, or that the model refuses, is listed with the reason and left out.
    Both files are written atomically, at the end: an error leaves neither. If no graph could be
    answered, that is an error too, but the list is written.

    Args:
        service: The model.
        sources: Files, as `gduq.data.stream` reads them. Labels in them are not used.
        output: A name that ends in ``.parquet``, ``.csv`` or ``.jsonl``; replaced if it exists.
        rejects: CSV file for graphs left out; by default ``<output>.rejects.csv``.
        table: How the sources are read and what of a row is kept; by default the SMILES.
        batch_size: Graphs at a time.
        notify: Called with the number of graphs seen so far.
    """
    path, inputs = check_output(Path(output).expanduser()), [Path(s).expanduser() for s in sources]
    for source in inputs:
        if not source.exists():
            raise InputError("a file of graphs", f"{source}, which does not exist")
    listed = outputs.rejects_path(path, rejects)
    outputs.check_outputs({"the output": path, "the rejects": listed}, inputs)
    table = table or InputTable.of(inputs)
    done, reasons, sample = Served(path, units=service.units), Counter[str](), _Sample()
    with RejectList(listed) as log, ExitStack() as stack:
        write: Callable[[Columns], None] | None = None
        for source in inputs:
            for part in table.read(source, batch_size):
                for items, p in _answered(service, part, source, log):
                    answers = service.table([item.graph for item in items], p)
                    columns = table.columns(str(source), items, answers)
                    if write is None:  # the columns are known with the first answers
                        write, done.columns = stack.enter_context(row_file(path)), list(columns)
                    write(columns)
                    done.graphs, done.rows = done.graphs + len(items), done.rows + len(p)
                    reasons.update(filter(None, answers.get("abstain", ())))
                    if service.reference is not None:
                        sample.add(p)
                notify(done.graphs + log.rows)
    done.rejected, done.first, done.reasons = log.rows, log.first, dict(reasons)
    done.rejects = log.path if log.rows else None
    if not done.graphs:
        got = f"none; the first of {done.rejected}: {done.first}" if done.rejected else "none"
        do = f"All are listed in {done.rejects}." if done.rejected else ""
        raise InputError("at least one graph the model can read", got, do)
    if "abstain" in done.columns:
        done.abstained = reasons.total()
    if sample.rows is not None and service.reference is not None:
        done.shift_pvalue = float(shift_test(service.reference, sample.rows).pvalue)
    return done


class _Sample:
    """Rows drawn evenly from all that are added, to test for shift."""

    def __init__(self) -> None:
        self.rows: Prediction | None = None
        self._keys = torch.empty(0, dtype=torch.float64)
        self._generator = torch.Generator().manual_seed(0)

    def add(self, p: Prediction) -> None:
        new = torch.rand(len(p), generator=self._generator, dtype=torch.float64)
        rows = p if self.rows is None else Prediction.concatenate([self.rows, p])
        keys = torch.cat([self._keys, new])
        kept = keys.topk(min(_SAMPLE, len(keys))).indices
        self.rows, self._keys = rows[kept], keys[kept]


def _answered(
    service: Service, items: Sequence[InputRow], source: Path, log: RejectList
) -> Iterator[tuple[list[InputRow], Prediction]]:
    """Rows with their predictions; those that cannot be read, or are refused, are listed."""
    good = []
    for item in items:
        if isinstance(item.graph, Reject):
            log.write(source, item.row, item.graph)
        else:
            good.append(item)
    for chosen, found in service.answer_each([item.graph for item in good]):
        if isinstance(found, str):
            log.write(source, good[chosen[0]].row, Reject(source.name, 0, found))
        else:
            yield [good[i] for i in chosen], found


class InputRow(NamedTuple):
    """A row of a source: its number, its graph, and the fields that are kept."""

    row: int
    graph: Any  # Data, or a Reject
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputTable:
    """How sources are read, and what of a row goes into the answers.

    Attributes:
        smiles: The column, for tables.
        keep: Columns of the tables to copy into the answers.
        shows_smiles: Whether answers hold the SMILES.
    """

    smiles: str = "smiles"
    keep: tuple[str, ...] = ()
    shows_smiles: bool = False

    @classmethod
    def of(
        cls,
        sources: Sequence[Path],
        smiles: str | None = None,
        keep: Sequence[str] = (),
        ids: Sequence[str] = (),
    ) -> InputTable:
        """What is known of some sources, whose answers have the same columns, before they are read.

        ``ids``, columns that name a row, are kept where all sources have them.
        """
        check_columns(sources, keep)
        tables = [source for source in sources if is_table(source) and source.is_file()]
        headers = [read_table(source).names for source in tables]
        only_tables = bool(tables) and len(tables) == len(sources)
        own = [name for name in ids if only_tables and all(h.count(name) == 1 for h in headers)]
        column = smiles or "smiles"
        wanted = [n for n in dict.fromkeys([*own, *keep]) if n.lower() != column.lower()]
        shown = bool(tables) or any(_has_smiles(source) for source in sources)
        return cls(column, tuple(wanted), shown)

    def read(self, source: Path, size: int) -> Iterator[list[InputRow]]:
        """The rows of a source, some at a time."""
        kept: list[dict[int, str]] = [{} for _ in self.keep]
        if is_table(source):
            kept = [read_table(source).column(name).to_dict() for name in self.keep]
        items = stream(source, smiles=self.smiles)
        rows = (InputRow(row, graph, tuple(k.get(row, "") for k in kept)) for row, graph in items)
        while part := list(islice(rows, size)):
            yield part

    def columns(
        self, source: str, items: Sequence[InputRow], answers: Columns
    ) -> dict[str, list[Any]]:
        """`Service.table` with file, row, SMILES and kept columns before it.

        A kept column whose name is taken gets ``input_`` in front of it.
        """
        rows = [items[number] for number in answers["graph"]]
        found: dict[str, list[Any]] = {"file": [source] * len(rows)}
        found["row"] = [item.row for item in rows]
        if "node" in answers:
            found["node"] = answers["node"]
        if self.shows_smiles:
            found["smiles"] = [getattr(item.graph, "smiles", None) for item in rows]
        rest = {name: values for name, values in answers.items() if name not in ("graph", "node")}
        for number, name in enumerate(self.keep):
            while name in found or name in rest:
                name = f"input_{name}"
            found[name] = [item.kept[number] for item in rows]
        return {**found, **rest}


def _has_smiles(source: Path) -> bool:
    """Whether the first graph of a file says which molecule it is."""
    if source.suffix != ".safetensors":
        return False
    first = next(iter(stream(source)), (0, None))[1]
    return isinstance(first, Data) and isinstance(first.get("smiles"), str)


@contextmanager
def row_file(path: Path) -> Iterator[Callable[[Columns], None]]:
    """A function that writes rows, given as columns, to a file; it is there when it is complete.

    The format is told by the name: parquet, CSV (a list is a JSON list in one field, and no text
    is a formula) or one JSON object per line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
        >>> with row_file(path) as write:
        ...     write({"row": [0, 1], "set": [["a"], []]})
        >>> path.read_text().splitlines()
        ['{"row": 0, "set": ["a"]}', '{"row": 1, "set": []}']
    """
    ending = check_output(path).suffix
    with atomic_path(path) as temporary, ExitStack() as stack:
        if ending == ".parquet":
            yield _parquet_writer(temporary, stack)
            return
        file = stack.enter_context(temporary.open("w", newline="", encoding="utf-8"))
        table = csv.writer(file)

        def cell(value: Any) -> Any:
            if isinstance(value, str):
                return safe_cell(value)
            return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value

        def write(columns: Columns) -> None:
            rows = zip(*columns.values(), strict=True)
            if ending == ".jsonl":
                records = (dict(zip(columns, row, strict=True)) for row in rows)
                file.writelines(f"{to_json(record, indent=None)}\n" for record in records)
                return
            if not file.tell():
                table.writerow(map(safe_cell, columns))
            table.writerows(map(cell, row) for row in rows)

        yield write


def _parquet_writer(path: Path, stack: ExitStack) -> Callable[[Columns], None]:
    """Writes a row group per part; the first one tells the types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None

    def typed(name: str, columns: Columns) -> Any:
        found = pa.array(columns[name]).type
        if pa.types.is_null(found):  # reasons to abstain, if there are none
            return pa.string()
        if pa.types.is_list(found) and pa.types.is_null(found.value_type):  # empty sets
            return pa.list_(pa.string() if "class" in columns else pa.int64())
        return found

    def write(columns: Columns) -> None:
        nonlocal writer
        if writer is None:
            schema = pa.schema([(name, typed(name, columns)) for name in columns])
            writer = stack.enter_context(pq.ParquetWriter(path, schema))
        writer.write_table(pa.table(dict(columns), schema=writer.schema))

    return write
