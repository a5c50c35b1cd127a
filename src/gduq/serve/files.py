"""Answers for files of graphs: read, predicted and written a batch at a time, so that memory does
not grow with their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from gduq.conformal import shift_test
from gduq.data import outputs
from gduq.data.files import stream
from gduq.data.outputs import Reject
from gduq.data.table import is_table, read_table
from gduq.errors import InputError
from gduq.prediction import Prediction
from gduq.serve.service import Graphs, Service

__all__ = ["Served", "predict_files"]

_SAMPLE = 1000  # rows to test for shift
Rows = list[dict[str, Any]]


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
    path, inputs = Path(output).expanduser(), [Path(source).expanduser() for source in sources]
    listed = outputs.rejects_path(path, rejects)
    outputs.check_output(path)
    outputs.check_outputs({"the output": path, "the rejects": listed}, inputs)
    outputs.check_rejects(listed)
    kept, done = _kept_columns(inputs, smiles, keep, ids), Served(path)
    left, own, sample = list[tuple[object, int, Reject]](), dict[str, str](), None
    keys, generator = torch.empty(0, dtype=torch.float64), torch.Generator().manual_seed(0)

    def parts() -> Iterator[Rows]:
        nonlocal own, sample, keys
        for source, graphs, p in _answers(service, inputs, smiles, batch_size):
            if isinstance(p, dict):
                left.extend((source, row, one) for row, one in p.items())
                notify(done.graphs + len(left))
                continue
            rows = service.records(graphs, p)
            if not done.graphs:  # all rows have the columns of the first
                done.columns, own = _columns(rows[0], kept, any(map(is_table, inputs)))
            texts = {name: read_table(source).column(own[name]) for name in own}
            for row in rows:
                row |= {"file": str(source)} | {n: texts[n].get(row["row"], "") for n in own}
            yield [{name: row.get(name) for name in done.columns} for row in rows]
            done.graphs, done.rows = done.graphs + len(graphs), done.rows + len(rows)
            done.reasons.update(row["abstain"] for row in rows if row.get("abstain"))
            notify(done.graphs + len(left))
            if service.reference is not None:  # rows drawn evenly from all that came so far
                sample = p if sample is None else Prediction.concatenate([sample, p])
                keys = torch.cat([keys, torch.rand(len(p), generator=generator, dtype=keys.dtype)])
                best = keys.topk(min(_SAMPLE, len(keys))).indices
                sample, keys = sample[best], keys[best]
        if left:
            file, number, reject = left[0]
            done.rejected, done.rejects = len(left), listed
            done.first = f"{file}, row {number}: {reject.reason}"
        if not done.graphs:
            outputs.write_rejects(listed, left)
            do = f"All are listed in {listed}." if left else ""
            raise InputError("at least one graph the model can read", done.first or "none", do)

    outputs.write_rows(path, parts())
    outputs.write_rejects(listed, left)
    done.abstained = done.reasons.total() if "abstain" in done.columns else None
    if sample is not None and service.reference is not None:
        done.shift_pvalue = float(shift_test(service.reference, sample).pvalue)
    return done


def _answers(
    service: Service, sources: Sequence[Path], smiles: str, size: int
) -> Iterator[tuple[Path, Graphs, Prediction | dict[int, Reject]]]:
    """Graphs of files, by row, with what is predicted of them; or why rows have no answer."""
    for source in sources:
        items = iter(stream(source, smiles=smiles))
        while part := dict(islice(items, size)):
            yield source, {}, {row: one for row, one in part.items() if isinstance(one, Reject)}
            good = {row: one for row, one in part.items() if not isinstance(one, Reject)}
            for graphs, p in service.answer_each(good):
                if isinstance(p, str):
                    yield source, {}, {row: Reject(source.name, 0, p) for row in graphs}
                else:
                    yield source, graphs, p


def _kept_columns(
    sources: Sequence[Path], smiles: str, keep: Sequence[str], ids: Sequence[str]
) -> list[str]:
    """Columns of tables that go into the answers: those that name a row where all have them."""
    _ = [read_table(source).column(name) for source in sources for name in keep]  # are there
    tables = [read_table(source).names if is_table(source) else [] for source in sources]
    own = [name for name in ids if all(names.count(name) == 1 for names in tables)]
    return [name for name in dict.fromkeys([*own, *keep]) if name.lower() != smiles.lower()]


def _columns(
    row: Mapping[str, object], keep: Sequence[str], tables: bool
) -> tuple[list[str], dict[str, str]]:
    """The columns of the answers, as the first row has them, and how kept ones are called in their
    tables: ``input_`` is in front of a name that is taken."""
    first = [n for n in ("row", "node", "smiles") if n in row or (tables and n == "smiles")]
    own = dict[str, str]()
    for name in keep:
        free = name
        while free in row or free in own or free == "file":
            free = f"input_{free}"
        own[free] = name
    return list(dict.fromkeys(["file", *first, *own, *row])), own
