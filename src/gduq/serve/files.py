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
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq._io import atomic_path, to_json
from gduq.conformal import shift_test
from gduq.data import outputs
from gduq.data.files import stream
from gduq.data.outputs import Reject, check_output, safe_cell
from gduq.data.table import is_table, read_table
from gduq.errors import InputError
from gduq.prediction import Prediction
from gduq.serve.service import Service

__all__ = ["Served", "predict_files", "row_file"]

_SAMPLE = 1000  # rows to test for shift
Columns = Mapping[str, list[object]]


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
    reasons: Counter[str] = field(default_factory=Counter)  # how often each is given to abstain


def predict_files(
    service: Service,
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    rejects: str | Path | None = None,
    smiles: str = "smiles",
    keep: Sequence[str] = (),
    ids: Sequence[str] = (),
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
        smiles: The column, for tables.
        keep: Columns of the tables to copy into the answers.
        ids: Columns that name a row, which are kept where all sources have them.
        batch_size: Graphs at a time.
        notify: Called with the number of graphs seen so far.
    """
    path, inputs = check_output(Path(output).expanduser()), [Path(s).expanduser() for s in sources]
    listed = outputs.rejects_path(path, rejects)
    outputs.check_outputs({"the output": path, "the rejects": listed}, inputs)
    kept, done = _kept_columns(inputs, smiles, keep, ids), Served(path)
    sample, generator = None, torch.Generator().manual_seed(0)
    outputs.check_rejects(listed)
    left = list[tuple[object, int, Reject]]()
    with ExitStack() as stack:
        write: Callable[[Columns], None] | None = None
        for source in inputs:
            items = iter(stream(source, smiles=smiles))
            while part := list(islice(items, batch_size)):
                left += [(source, row, item) for row, item in part if isinstance(item, Reject)]
                good = {row: item for row, item in part if not isinstance(item, Reject)}
                numbers = list(good)
                for chosen, p in service.answer_each(list(good.values())):
                    if isinstance(p, str):
                        left.append((source, numbers[chosen[0]], Reject(source.name, 0, p)))
                        continue
                    graphs = {numbers[i]: good[numbers[i]] for i in chosen}
                    if write is None:  # the columns are known with the first answers
                        write = stack.enter_context(row_file(path))
                        shown = any(map(is_table, inputs)) or "smiles" in good[numbers[0]]
                    table = service.table(list(graphs.values()), p)
                    write(columns := _all_columns(source, graphs, table, kept, shown))
                    done.columns = list(columns)
                    done.graphs, done.rows = done.graphs + len(graphs), done.rows + len(p)
                    done.reasons.update(filter(None, table.get("abstain", ())))
                    if service.reference is not None:
                        sample = _drawn(sample, p, generator)
                notify(done.graphs + len(left))
    outputs.write_rejects(listed, left)
    if left:
        done.rejected = len(left)
        file, row, reject = left[0]
        done.rejects, done.first = listed, f"{file}, row {row}: {reject.reason}"
    if not done.graphs:
        do = f"All are listed in {done.rejects}." if done.rejected else ""
        raise InputError("at least one graph the model can read", done.first or "none", do)
    done.abstained = done.reasons.total() if "abstain" in done.columns else None
    if sample is not None and service.reference is not None:
        done.shift_pvalue = float(shift_test(service.reference, sample[0]).pvalue)
    return done


def _drawn(
    known: tuple[Prediction, Tensor] | None, p: Prediction, generator: torch.Generator
) -> tuple[Prediction, Tensor]:
    """Rows drawn evenly from all that came so far, and the random numbers that decided it."""
    keys = torch.rand(len(p), generator=generator, dtype=torch.float64)
    if known is not None:
        p, keys = Prediction.concatenate([known[0], p]), torch.cat([known[1], keys])
    kept = keys.topk(min(_SAMPLE, len(keys))).indices
    return p[kept], keys[kept]


def _kept_columns(
    sources: Sequence[Path], smiles: str, keep: Sequence[str], ids: Sequence[str]
) -> list[str]:
    """Columns of tables that go into the answers: those that name a row where all have them."""
    _ = [read_table(source).column(name) for source in sources for name in keep]  # are there
    tables = [read_table(source).names for source in sources if is_table(source)]
    own = ids if len(tables) == len(sources) else ()
    own = [name for name in own if all(names.count(name) == 1 for names in tables)]
    return [name for name in dict.fromkeys([*own, *keep]) if name.lower() != smiles.lower()]


def _all_columns(
    source: Path, graphs: Mapping[int, Data], answers: Columns, keep: Sequence[str], smiles: bool
) -> dict[str, list[object]]:
    """`Service.table` of graphs by row with file, row, SMILES and kept columns before it.

    A kept column whose name is taken gets ``input_`` in front of it.
    """
    numbers = list(graphs)
    rows = [numbers[cast(int, place)] for place in answers["graph"]]
    found: dict[str, list[object]] = {"file": [str(source)] * len(rows), "row": [*rows]}
    if "node" in answers:
        found["node"] = answers["node"]
    if smiles:
        found["smiles"] = [getattr(graphs[row], "smiles", None) for row in rows]
    rest = {name: values for name, values in answers.items() if name not in ("graph", "node")}
    for name in keep:
        texts = read_table(source).column(name)
        while name in found or name in rest:
            name = f"input_{name}"
        found[name] = [texts.get(row, "") for row in rows]
    return {**found, **rest}


@contextmanager
def row_file(path: Path) -> Iterator[Callable[[Columns], None]]:
    """A function that writes rows, given as columns, to a file; it is there when it is complete.

    The format is told by the name: parquet, CSV (a list is a JSON list in one field, and no text
    is a formula) or one JSON object per line.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    ending, writer = check_output(path).suffix, None
    with atomic_path(path) as temporary, ExitStack() as stack:
        if ending != ".parquet":
            file = stack.enter_context(temporary.open("w", newline="", encoding="utf-8"))

        def write(columns: Columns) -> None:
            nonlocal writer
            rows = zip(*columns.values(), strict=True)
            if ending == ".parquet":
                if writer is None:  # the first rows tell the types
                    types = {name: _type_of(name, columns) for name in columns}
                    writer = pq.ParquetWriter(temporary, pa.schema(types.items()))
                    stack.enter_context(writer)
                writer.write_table(pa.table(dict(columns), schema=writer.schema))
            elif ending == ".jsonl":
                records = (dict(zip(columns, row, strict=True)) for row in rows)
                file.writelines(f"{to_json(record, indent=None)}\n" for record in records)
            else:
                head = [] if file.tell() else [list(columns)]
                csv.writer(file).writerows([*map(_cell, row)] for row in (*head, *rows))

        yield write


def _cell(value: object) -> object:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return safe_cell(value) if isinstance(value, str) else value


def _type_of(name: str, columns: Columns) -> Any:
    """The type of a column of a parquet file, whatever its first rows lack."""
    import pyarrow as pa

    found = pa.array(columns[name]).type
    if pa.types.is_null(found):  # reasons to abstain, if there are none
        return pa.string()
    if pa.types.is_list(found) and pa.types.is_null(found.value_type):  # empty sets
        return pa.list_(pa.string() if "class" in columns else pa.int64())
    return found
