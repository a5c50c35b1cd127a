"""Answers for files of graphs: read, predicted and written a batch at a time.

`predict_files` streams graphs through a `Service`, so memory does not grow with their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from gduq.data.outputs import check_outputs, rejects_path
from gduq.data.rejected_rows import Reject, RejectList
from gduq.deploy.places import Item, Places
from gduq.deploy.rowfiles import RowFile, check_output, join_files, row_file
from gduq.deploy.service import Service
from gduq.deploy.shift_sample import ShiftSample
from gduq.errors import InputError
from gduq.prediction.base import Hypotheses

__all__ = ["Served", "join_served", "predict_files", "predict_part"]


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
        abstained: Rows with a reason to abstain, or ``None`` where nothing could tell.
        shift_pvalue: Two-sample test of the rows against the reference data, or ``None``.
        columns: Names of the columns.
        reasons: How often each reason to abstain is given.
        units: Of values, the unit of each that has one.
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
    reasons: dict[str, int] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)


def predict_files(
    service: Service,
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    rejects: str | Path | None = None,
    places: Places | None = None,
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
        places: How the sources are read and what of a row is kept; by default the SMILES.
        batch_size: Graphs at a time.
        notify: Called with the number of graphs seen so far.
    """
    path = check_output(Path(output).expanduser())
    listed = rejects_path(path, rejects)
    inputs = [_existing(source) for source in sources]
    check_outputs({"the output": path, "the rejects": listed}, inputs)
    job = _Job(service, path, listed, places or Places.of(inputs), batch_size, notify)
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
    places: Places | None = None,
    batch_size: int = 256,
) -> tuple[Served, ShiftSample]:
    """`predict_files` for one of several files, to be joined by `join_served`.

    Args:
        service: The model.
        number: The file's place among all files.
        source: The file.
        output: Its part of the answers; not written if no graph of it can be answered.
        places: Those of all files together: the parts must have the same columns.
        batch_size: Graphs at a time.

    Returns:
        What was done, and a sample of the answers.
    """
    read, listed = _existing(source), rejects_path(output, None)
    job = _Job(service, check_output(output), listed, places or Places.of([read]), batch_size)
    done, sample = job.run([(number, read)])
    return done, sample.closed()


@dataclass(frozen=True)
class _Job:
    """Where the answers for some files go."""

    service: Service
    path: Path
    listed: Path
    places: Places
    batch_size: int
    notify: Callable[[int], None] = lambda _: None

    def run(self, sources: Iterable[tuple[int, Path]]) -> tuple[Served, ShiftSample]:
        """Answer for all graphs of numbered files."""
        done, writer = Served(self.path), _Writer(self.service, self.path, self.places)
        with ExitStack() as open_files:
            log = open_files.enter_context(RejectList(self.listed))
            open_files.enter_context(writer)
            for number, source in sources:
                writer.sample.start(number)
                for part in self.places.read(source, self.batch_size):
                    good = [item for item in part if isinstance(item.graph, Data)]
                    for row, graph, _ in part:
                        if isinstance(graph, Reject):
                            log.write(source, row, graph)
                    for rows, p in _answered(self.service, good, source, log):
                        writer.write(str(source), rows, p)
                        done.graphs += len(rows)
                    self.notify(done.graphs + log.rows)
        done.rows, done.columns, done.reasons = writer.rows, writer.names, dict(writer.reasons)
        done.abstained, done.rejected, done.first = writer.abstained, log.rows, log.first
        done.rejects = log.path if log.rows else None
        return done, writer.sample


def _nothing(done: Served) -> InputError:
    """No graph could be answered; the list of them, if there were any, is in place."""
    if not done.rejected:
        return InputError("at least one graph the model can read", "none")
    return InputError(
        "at least one graph the model can read",
        f"none; the first of {done.rejected}: {done.first}",
        f"All are listed in {done.rejects}.",
    )


def _existing(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError("a folder or file of graphs", f"{path}, which does not exist")
    return path


def _answered(
    service: Service, items: Sequence[Item], source: Path, log: RejectList
) -> Iterator[tuple[list[Item], Any]]:
    """Graphs with their predictions; those that are refused are listed."""
    graphs = [item.graph for item in items if isinstance(item.graph, Data)]
    for places, found in service.answer_each(graphs):
        part = [items[place] for place in places]
        if isinstance(found, str):
            for item in part:
                log.write(source, item.row, Reject(source.name, 0, found))
        else:
            yield part, found


class _Writer:
    """Opens the output at the first rows, since columns depend on the number of classes."""

    def __init__(self, service: Service, path: Path, places: Places) -> None:
        self.service, self.path, self.places = service, path, places
        self.rows, self.reasons = 0, Counter[str]()
        self.names: list[str] = []
        self._file: RowFile | None = None
        self._stack = ExitStack()
        self.sample = ShiftSample()

    @property
    def abstained(self) -> int | None:
        return sum(self.reasons.values()) if "abstain" in self.names else None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def write(self, source: str, items: Sequence[Item], p: Hypotheses) -> None:
        answers = self.service.columns(p)
        graphs = [item.graph for item in items if isinstance(item.graph, Data)]
        nodes = self.service.rows_each(graphs, p)
        columns = self.places.columns(source, items, nodes, answers)
        if self._file is None:
            self.names = list(columns)
            kinds = self.service.kinds(columns)
            for name in set(columns) - set(answers) - {"row", "node"}:
                kinds[name] = "text"
            self._file = self._stack.enter_context(row_file(self.path, kinds))
        self._file.write(columns)
        self.rows += len(p)
        self.reasons.update(r for r in answers.get("abstain", ()) if r is not None)
        if self.service.reference is not None:
            self.sample.add(p)


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
    reasons = sum((Counter(part.reasons) for part in full), Counter[str]())
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
        dict(reasons),
    )
