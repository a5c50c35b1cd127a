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

import torch
from torch import Tensor

from gduq.conformal import shift_test
from gduq.data.outputs import check_outputs, rejects_path
from gduq.data.rejected_rows import Reject, RejectList
from gduq.deploy.places import Item, Places
from gduq.deploy.rowfiles import Kind, RowFile, check_output, join_files, row_file
from gduq.deploy.service import Service
from gduq.errors import InputError
from gduq.prediction.base import Hypotheses

__all__ = ["Served", "ShiftSample", "join_served", "predict_files", "predict_part"]

_KEPT = 1000  # rows to test for shift


@dataclass
class ShiftSample:
    """Answered rows with the largest of random numbers, one number per row, to test for shift.

    The numbers depend on the file's place among the files and on the order of its rows only, so
    samples of single files, joined, are the sample of all of them: it does not matter how many
    processes made them.
    """

    rows: Hypotheses | None = None
    keys: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))

    def add(self, p: Hypotheses, keys: Tensor) -> None:
        """More rows with their numbers."""
        if self.rows is not None:
            p, keys = Hypotheses.concatenate([self.rows, p]), torch.cat([self.keys, keys])
        kept = keys.topk(min(_KEPT, len(keys))).indices
        self.rows, self.keys = p[kept], keys[kept]

    def pvalue(self, reference: Hypotheses | None) -> float | None:
        """Of a two-sample test against reference rows; ``None`` without rows or reference."""
        if self.rows is None or reference is None:
            return None
        return float(shift_test(reference, self.rows).pvalue)


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
        sample: Rows for the test.
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
    reasons: dict[str, int] = field(default_factory=Counter)
    units: dict[str, str] = field(default_factory=dict)
    sample: ShiftSample = field(default_factory=ShiftSample, repr=False)

    def _finished(self, service: Service) -> Served:
        """With what all files together tell; an error where no graph could be answered."""
        if not self.graphs:
            got = f"none; the first of {self.rejected}: {self.first}" if self.rejected else "none"
            do = f"All are listed in {self.rejects}." if self.rejected else ""
            raise InputError("at least one graph the model can read", got, do)
        if "abstain" in self.columns:
            self.abstained = sum(self.reasons.values())
        self.shift_pvalue = self.sample.pvalue(service.reference)
        self.units = service.units
        return self


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
    inputs = [Path(source).expanduser() for source in sources]
    for source in inputs:
        if not source.exists():
            raise InputError("a folder or file of graphs", f"{source}, which does not exist")
    listed = rejects_path(path, rejects)
    check_outputs({"the output": path, "the rejects": listed}, inputs)
    numbered, read = enumerate(inputs), places or Places.of(inputs)
    done = _predict(service, numbered, path, listed, read, batch_size, notify)
    return done._finished(service)


def predict_part(
    service: Service,
    number: int,
    source: Path,
    output: Path,
    places: Places | None = None,
    batch_size: int = 256,
) -> Served:
    """`predict_files` for one of several files, to be joined by `join_served`.

    Args:
        service: The model.
        number: The file's place among all files.
        source: The file.
        output: Its part of the answers; not written if no graph of it can be answered.
        places: Those of all files together: the parts must have the same columns.
        batch_size: Graphs at a time.
    """
    read, listed = places or Places.of([source]), rejects_path(output, None)
    return _predict(service, [(number, source)], output, listed, read, batch_size)


def join_served(
    service: Service, parts: Sequence[Served], output: Path, rejects: Path | None = None
) -> Served:
    """Answers of several calls of `predict_part` as those of one; the files of the parts stay."""
    full = [part for part in parts if part.rows]
    lists = [part.rejects for part in parts if part.rejects is not None]
    done = Served(output, first=next((part.first for part in parts if part.first), ""))
    listed = rejects_path(output, rejects)
    with RejectList(listed):  # empties a list of an earlier call
        pass
    if lists:
        join_files(lists, listed)
        done.rejects = listed
    if full:
        join_files([part.path for part in full], output)
        done.columns = full[0].columns
    for part in parts:
        done.graphs += part.graphs
        done.rows += part.rows
        done.rejected += part.rejected
        done.reasons = Counter(done.reasons) + Counter(part.reasons)
        if part.sample.rows is not None:
            done.sample.add(part.sample.rows, part.sample.keys)
    return done._finished(service)


def _predict(
    service: Service,
    sources: Iterable[tuple[int, Path]],
    path: Path,
    listed: Path,
    places: Places,
    batch_size: int,
    notify: Callable[[int], None] = lambda _: None,
) -> Served:
    """Answer for all graphs of numbered files."""
    done, reasons = Served(path), Counter[str]()
    rows: RowFile | None = None
    with RejectList(listed) as log, ExitStack() as stack:
        for number, source in sources:
            randomness = torch.Generator().manual_seed(number)
            for part in places.read(source, batch_size):
                for items, p in _answered(service, part, source, log):
                    answers = service.columns(p)
                    nodes = service.rows_each([item.graph for item in items], p)
                    columns = places.columns(str(source), items, nodes, answers)
                    if rows is None:  # columns depend on the number of classes
                        kinds = {name: _kind(service, name, answers) for name in columns}
                        rows = stack.enter_context(row_file(path, kinds))
                        done.columns = list(columns)
                    rows.write(columns)
                    done.graphs, done.rows = done.graphs + len(items), done.rows + len(p)
                    reasons.update(r for r in answers.get("abstain", ()) if r is not None)
                    if service.reference is not None:
                        keys = torch.rand(len(p), generator=randomness, dtype=torch.float64)
                        done.sample.add(p, keys)
                notify(done.graphs + log.rows)
    done.rejected, done.first, done.reasons = log.rows, log.first, dict(reasons)
    done.rejects = log.path if log.rows else None
    return done


def _answered(
    service: Service, items: Sequence[Item], source: Path, log: RejectList
) -> Iterator[tuple[list[Item], Any]]:
    """Rows with their predictions; those that cannot be read, or are refused, are listed."""
    good = []
    for item in items:
        if isinstance(item.graph, Reject):
            log.write(source, item.row, item.graph)
        else:
            good.append(item)
    for places, found in service.answer_each([item.graph for item in good]):
        if isinstance(found, str):
            log.write(source, good[places[0]].row, Reject(source.name, 0, found))
        else:
            yield [good[place] for place in places], found


def _kind(service: Service, column: str, answers: Iterable[str]) -> Kind:
    if column in answers:
        return service.kind_of(column)
    return "whole" if column in ("row", "node") else "text"
