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

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.conformal import shift_test
from gduq.data.files import Reject, stream
from gduq.data.outputs import check_outputs
from gduq.data.rejects import RejectList
from gduq.errors import InputError
from gduq.experiments.rowfiles import Columns, RowFile, check_output, join_files, row_file
from gduq.experiments.service import Service
from gduq.graph import check_graph
from gduq.prediction import Prediction

__all__ = ["Served", "join_served", "predict_files", "rejects_path"]

_WATCHED = 1000  # rows kept, at random, to test for shift at the end
# what a network may say to a graph it cannot read
_REFUSALS = (ValueError, RuntimeError, TypeError, KeyError, IndexError, AttributeError)


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
    allow_none: bool = False,
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
        allow_none: Whether it is fine that no graph can be answered; no file is then written.
        notify: Called with the number of graphs seen so far.
    """
    path = check_output(Path(output).expanduser())
    listed = rejects_path(path, rejects)
    inputs = [_existing(source) for source in sources]
    check_outputs({"the output": path, "the rejects": listed}, inputs)
    done, writer = Served(path), _Writer(service, path)
    with ExitStack() as open_files:
        log = _Rejected(done, open_files.enter_context(RejectList(listed)))
        open_files.enter_context(writer)
        for source in inputs:
            for part in _parts(source, batch_size, smiles):
                good = [item for item in part if isinstance(item[1], Data)]
                log.write(source, [(i, r) for i, r in part if isinstance(r, Reject)])
                for rows, p in _answered(service, good, source, log):
                    writer.write(str(source), rows, p)
                    done.graphs += len(rows)
                notify(done.graphs + done.rejected)
    if not done.graphs and not allow_none:
        raise _nothing(done)
    done.rows, done.abstained, done.columns = writer.rows, writer.abstained, writer.names
    done.shift_pvalue = writer.shift_pvalue()
    return done


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
) -> Iterator[tuple[list[tuple[int, Data]], Prediction]]:
    """Graphs with their predictions: all in one pass, or in halves where some are refused."""
    items = [(index, _unlabelled(graph)) for index, graph in items]
    try:
        for _, graph in items:
            check_graph(graph)
        if items:
            yield items, service.answer([graph for _, graph in items])
    except _REFUSALS as error:
        if len(items) == 1:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            log.write(source, [(items[0][0], Reject(source.name, 0, reason))])
            return
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            yield from _answered(service, half, source, log)


def _unlabelled(graph: Data) -> Data:
    if "y" not in graph:
        return graph
    graph = graph.__copy__()
    del graph["y"]
    return graph


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
        self._generator = torch.Generator().manual_seed(0)
        self._watched: tuple[Prediction, Tensor] | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def write(self, source: str, items: Sequence[tuple[int, Data]], p: Prediction) -> None:
        columns = {**self._places(source, items, len(p)), **self.service.columns(p)}
        if self._file is None:
            self.names = list(columns)
            kinds = self.service.kinds(columns)
            self._file = self._stack.enter_context(row_file(self.path, kinds))
        self._file.write(columns)
        self.rows += len(p)
        if self.abstained is not None:
            self.abstained += sum(columns["abstain"])
            self._watch(p)

    def _places(self, source: str, items: Sequence[tuple[int, Data]], rows: int) -> Columns:
        """Where each row comes from: file and graph, for a node task also the node."""
        node_task = self.service.task == "node" or rows != len(items)
        sizes = [int(g.num_nodes or 0) if node_task else 1 for _, g in items]
        places: dict[str, list[Any]] = {
            "file": [source] * rows,
            "row": [i for (i, _), size in zip(items, sizes, strict=True) for _ in range(size)],
        }
        if node_task:
            places["node"] = [node for size in sizes for node in range(size)]
        return places

    def _watch(self, p: Prediction) -> None:
        """Keep a uniform sample of the rows: those with the largest random numbers."""
        keys = torch.rand(len(p), generator=self._generator)
        if self._watched is not None:
            p = Prediction.concatenate([self._watched[0], p])
            keys = torch.cat([self._watched[1], keys])
        kept = keys.topk(min(_WATCHED, len(keys))).indices
        self._watched = p[kept], keys[kept]

    def shift_pvalue(self) -> float | None:
        if self._watched is None or self.service.reference is None:
            return None
        return shift_test(self.service.reference, self._watched[0]).pvalue


def join_served(parts: Sequence[Served], output: Path, rejects: Path | None = None) -> Served:
    """Answers of several calls as those of one; the files of the parts stay.

    The p-value is that of the part which differs most, multiplied by the number of parts.
    """
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
    pvalues = [part.shift_pvalue for part in full if part.shift_pvalue is not None]
    return Served(
        output,
        sum(part.graphs for part in parts),
        sum(part.rows for part in parts),
        rejected,
        where,
        first,
        sum(abstained) if abstained else None,
        min(1.0, len(pvalues) * min(pvalues)) if pvalues else None,
        full[0].columns,
    )
