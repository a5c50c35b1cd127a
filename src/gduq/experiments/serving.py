"""Answers for files of graphs: read, predicted and written a batch at a time.

`predict_files` streams graphs through a `Service`, so memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from gduq.data.files import Reject, stream
from gduq.data.outputs import check_outputs
from gduq.data.rejects import RejectList
from gduq.errors import InputError
from gduq.experiments.rowfiles import Columns, RowFile, check_output, join_files, row_file
from gduq.experiments.service import Service
from gduq.experiments.shift_sample import ShiftSample
from gduq.prediction.base import Hypotheses

__all__ = ["Served", "join_served", "predict_files", "predict_part", "rejects_path"]


@dataclass
class Served:
    """What `predict_files` did.

    Attributes:
        path: The file of answers.
        graphs: Graphs answered.
        rows: Rows written: graphs, or nodes of them.
        rejected: Graphs left out.
        rejects: The file that lists them with reasons, or ``None``.
        first: The first of them.
        abstained: Rows marked ``abstain``, or ``None`` without reference data.
        shift_pvalue: Two-sample test of the rows against the reference data, or ``None``.
        columns: Names of the columns.
    """

    path: Path
    graphs: int = 0
    rows: int = 0
    rejected: int = 0
    rejects: Path | None = None
    first: str = ""
    abstained: int | None = None
    shift_pvalue: float | None = None
    columns: list[str] = field(default_factory=list)


def predict_files(
    service: Service,
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    rejects: str | Path | None = None,
    smiles: str = "smiles",
    batch_size: int = 256,
    notify: Callable[[int], None] = lambda _: None,
) -> Served:
    """Answer for all graphs of some files or TU folders, ``batch_size`` in memory at a time.

    A graph that cannot be read, or that the model refuses, is listed with the reason and left out.
    Both files are written atomically, at the end: an error leaves neither. If no graph could be
    answered, that is an error too, but the list is written.

    Args:
        service: The model.
        sources: Files or folders, as `gduq.data.stream` reads them. Labels in them are not used.
        output: A name that ends in ``.parquet``, ``.csv`` or ``.jsonl``; replaced if it exists.
        rejects: CSV file for graphs left out; by default ``<output>.rejects.csv``.
        smiles: Column of SMILES strings, for tables.
        batch_size: Graphs at a time.
        notify: Called with the number of graphs seen so far.
    """
    path = check_output(Path(output).expanduser())
    listed = rejects_path(path, rejects)
    inputs = [_existing(source) for source in sources]
    check_outputs({"the output": path, "the rejects": listed}, inputs)
    job = _Job(service, path, listed, smiles, batch_size, notify)
    done, sample = job.run(enumerate(inputs))
    if not done.graphs:
        raise _nothing(done)
    done.shift_pvalue = sample.pvalue(service.reference)
    return done


def predict_part(
    service: Service,
    number: int,
    source: Path,
    output: Path,
    smiles: str = "smiles",
    batch_size: int = 256,
) -> tuple[Served, ShiftSample]:
    """`predict_files` for one of several files, to be joined by `join_served`.

    Args:
        service: The model.
        number: The file's place among all files.
        source: The file.
        output: Its part of the answers; not written if no graph of it can be answered.
        smiles: Column of SMILES strings, for tables.
        batch_size: Graphs at a time.

    Returns:
        What was done, and a sample of the answers.
    """
    job = _Job(service, check_output(output), rejects_path(output, None), smiles, batch_size)
    done, sample = job.run([(number, _existing(source))])
    return done, sample.closed()


@dataclass(frozen=True)
class _Job:
    """Where the answers for some files go."""

    service: Service
    path: Path
    listed: Path
    smiles: str
    batch_size: int
    notify: Callable[[int], None] = lambda _: None

    def run(self, sources: Iterable[tuple[int, Path]]) -> tuple[Served, ShiftSample]:
        """Answer for all graphs of numbered files."""
        done, writer = Served(self.path), _Writer(self.service, self.path)
        with ExitStack() as open_files:
            log = _Rejected(done, open_files.enter_context(RejectList(self.listed)))
            open_files.enter_context(writer)
            for number, source in sources:
                writer.sample.start(number)
                for part in _parts(source, self.batch_size, self.smiles):
                    good = [item for item in part if isinstance(item[1], Data)]
                    log.write(source, [(i, r) for i, r in part if isinstance(r, Reject)])
                    for rows, p in _answered(self.service, good, source, log):
                        writer.write(str(source), rows, p)
                        done.graphs += len(rows)
                    self.notify(done.graphs + done.rejected)
        done.rows, done.abstained, done.columns = writer.rows, writer.abstained, writer.names
        return done, writer.sample


def rejects_path(output: Path, rejects: str | Path | None) -> Path:
    """Where the graphs that were left out are listed."""
    return Path(f"{output}.rejects.csv" if rejects is None else rejects).expanduser()


def _nothing(done: Served) -> InputError:
    """No graph could be answered; the list of them, if there were any, is in place."""
    if not done.rejected:
        return InputError("at least one graph the model can read", "none")
    return InputError(
        "at least one graph the model can read",
        f"none; the first of {done.rejected}: {done.first}",
        f"All are listed in {done.rejects}.",
    )


_Item = tuple[int, Data | Reject]


def _existing(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError("a folder or file of graphs", f"{path}, which does not exist")
    return path


def _parts(source: Path, size: int, smiles: str) -> Iterator[list[_Item]]:
    items = stream(source, size, smiles=smiles)
    while part := list(islice(items, size)):
        yield part


def _answered(
    service: Service, items: Sequence[tuple[int, Any]], source: Path, log: _Rejected
) -> Iterator[tuple[list[tuple[int, Data]], Any]]:
    """Graphs with their predictions; those that are refused are listed."""
    for places, found in service.answer_each([graph for _, graph in items]):
        part = [items[place] for place in places]
        if isinstance(found, str):
            log.write(source, [(index, Reject(source.name, 0, found)) for index, _ in part])
        else:
            yield part, found


@dataclass
class _Rejected:
    """Counts the graphs that are left out, and lists them."""

    done: Served
    list: RejectList

    def write(self, source: Path, rejects: Iterable[tuple[int, Reject]]) -> None:
        for index, reject in rejects:
            self.list.write(source, index, reject)
            self.done.rejected += 1
            self.done.first = self.done.first or f"{source}, row {index}: {reject.reason}"
            self.done.rejects = self.list.path


class _Writer:
    """Opens the output at the first rows, since columns depend on the number of classes."""

    def __init__(self, service: Service, path: Path) -> None:
        self.service, self.path, self.rows = service, path, 0
        self.abstained: int | None = None if service.reference is None else 0
        self.names: list[str] = []
        self._file: RowFile | None = None
        self._stack = ExitStack()
        self.sample = ShiftSample()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def write(self, source: str, items: Sequence[tuple[int, Data]], p: Hypotheses) -> None:
        columns = {**self._places(source, items, len(p)), **self.service.columns(p)}
        if self._file is None:
            self.names = list(columns)
            kinds = self.service.kinds(columns)
            self._file = self._stack.enter_context(row_file(self.path, kinds))
        self._file.write(columns)
        self.rows += len(p)
        if self.abstained is not None:
            self.abstained += sum(columns["abstain"])
            self.sample.add(p)

    def _places(self, source: str, items: Sequence[tuple[int, Data]], rows: int) -> Columns:
        """Where each row comes from: file and graph, for a node task also the node."""
        node_task = self.service.rows == "node" or rows != len(items)
        sizes = [int(g.num_nodes or 0) if node_task else 1 for _, g in items]
        places: dict[str, list[Any]] = {
            "file": [source] * rows,
            "row": [i for (i, _), size in zip(items, sizes, strict=True) for _ in range(size)],
        }
        if node_task:
            places["node"] = [node for size in sizes for node in range(size)]
        return places


def join_served(
    found: Sequence[tuple[Served, ShiftSample]],
    output: Path,
    rejects: Path | None = None,
    reference: Hypotheses | None = None,
) -> Served:
    """Answers of several calls of `predict_part` as those of one; the files of the parts stay."""
    parts = [part for part, _ in found]
    full = [part for part in parts if part.rows]
    listed = [part.rejects for part in parts if part.rejects is not None]
    target = rejects_path(output, rejects)
    with RejectList(target):  # empties a list of an earlier call
        pass
    if listed:
        join_files(listed, target)
    first = next((part.first for part in parts if part.first), "")
    rejected = sum(part.rejected for part in parts)
    where = target if listed else None
    if not full:
        raise _nothing(Served(output, rejected=rejected, rejects=where, first=first))
    join_files([part.path for part in full], output)
    abstained = [part.abstained for part in full if part.abstained is not None]
    return Served(
        output,
        sum(part.graphs for part in parts),
        sum(part.rows for part in parts),
        rejected,
        where,
        first,
        sum(abstained) if abstained else None,
        ShiftSample.joined(sample for _, sample in found).pvalue(reference),
        full[0].columns,
    )
