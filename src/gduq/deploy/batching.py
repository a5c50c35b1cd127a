"""Requests of many clients, answered together by one thread."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from torch import Tensor
from torch_geometric.data import Data

from gduq.deploy.limits import Limits, Refused
from gduq.deploy.reading import Item, graph_from
from gduq.errors import InputError
from gduq.experiments.service import Service

__all__ = ["Batcher", "Counts"]

_log = logging.getLogger(__name__)


@dataclass
class Counts:
    """What was done so far."""

    requests: int = 0
    graphs: int = 0
    rejected: int = 0
    passes: int = 0


@dataclass(eq=False)
class _Job:
    """One request; its rows are ready when the future is."""

    items: Sequence[Item]
    deadline: float
    future: Future[bytes] = field(default_factory=Future)
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)

    def content(self) -> bytes:
        """The answer as JSON; numbers that are not finite are null."""
        rows = [row for place in sorted(self.rows) for row in self.rows[place]]
        bad = [{"row": place, "reason": why} for place, why in sorted(self.rejected.items())]
        return to_json({"answers": rows, "rejected": bad}, inf_nan_mode="null")


@dataclass(frozen=True)
class _Place:
    """A graph of a request: where its rows go."""

    job: _Job
    number: int
    graph: Data


class Batcher:
    """One thread that reads, predicts and answers; requests that wait meanwhile share a pass.

    Only graphs with the same attributes share one, so nobody's graph changes what another's
    becomes; and answers do not depend on batch-mates.

    Args:
        service: The model.
        limits: Bounds of queue, time and passes.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service, self.limits, self.counts = service, limits, Counts()
        self._waiting: queue.Queue[_Job | None] = queue.Queue(limits.queue)
        self._thread = threading.Thread(target=self._run, name="gduq-predict", daemon=True)
        self._closed = False

    def __enter__(self) -> Batcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether requests are being answered."""
        return self._thread.is_alive() and not self._closed

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._waiting.qsize()

    def submit(self, items: Sequence[Item]) -> Future[bytes]:
        """Line up a request; its future gives the answer as JSON."""
        if not self.alive:
            raise Refused(503, "the service is shutting down")
        job = _Job(items, time.monotonic() + self.limits.seconds)
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            raise Refused(503, "too many requests are waiting, try again in a moment") from None
        return job.future

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        going_on = True
        while going_on:
            jobs, going_on = self._take()
            wanted = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            late = time.monotonic()
            timely = [job for job in wanted if job.deadline > late]
            for job in wanted:
                if job.deadline <= late:
                    job.future.set_exception(TimeoutError())
            try:
                self._answer(timely)
            except Exception as error:  # the thread must outlive whatever a network does
                _log.exception("a pass failed")
                for job in timely:
                    if not job.future.done():
                        job.future.set_exception(error)

    def _take(self) -> tuple[list[_Job], bool]:
        """The next request and those behind it that fit into a pass; and whether to go on."""
        job = self._waiting.get()
        if job is None:
            return [], False
        jobs, graphs = [job], len(job.items)
        while graphs < self.limits.batch:
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return jobs, False
            jobs.append(job)
            graphs += len(job.items)
        return jobs, True

    def _answer(self, jobs: Sequence[_Job]) -> None:
        for part in self._passes(self._read(jobs)):
            self.counts.passes += 1
            for places, found in self.service.answer_each([place.graph for place in part]):
                chosen = [part[place] for place in places]
                if isinstance(found, str):
                    chosen[0].job.rejected[chosen[0].number] = found
                else:
                    self._share(chosen, found)
        for job in jobs:
            self.counts.requests += 1
            self.counts.graphs += len(job.rows)
            self.counts.rejected += len(job.rejected)
            job.future.set_result(job.content())

    def _read(self, jobs: Sequence[_Job]) -> Iterator[_Place]:
        """The sound graphs of all requests; the others are noted with the reason."""
        for job in jobs:
            for number, item in enumerate(job.items):
                try:
                    yield _Place(job, number, graph_from(item, self.limits))
                except (ValueError, TypeError, RuntimeError, OverflowError) as error:
                    reason = " ".join(str(error).split())[:300]
                    job.rejected[number] = reason or type(error).__name__

    def _passes(self, places: Iterator[_Place]) -> Iterator[list[_Place]]:
        """Graphs with the same attributes, as many as one pass may hold."""
        alike: dict[Any, list[_Place]] = {}
        for place in places:
            alike.setdefault(_attributes(place.graph), []).append(place)
        for group in alike.values():
            part, nodes, edges = list[_Place](), 0, 0
            for place in group:
                nodes += place.graph.num_nodes or 0
                edges += place.graph.num_edges
                full = len(part) == self.limits.batch
                if part and (full or nodes > self.limits.nodes or edges > self.limits.edges):
                    yield part
                    part, nodes, edges = [], place.graph.num_nodes or 0, place.graph.num_edges
                part.append(place)
            yield part

    def _share(self, places: Sequence[_Place], p: Any) -> None:
        """Give every request its rows."""
        columns = self.service.columns(p)
        nodes = self._counts_nodes(places, len(p))
        values = zip(*columns.values(), strict=True)
        for place in places:
            start: dict[str, Any] = {"row": place.number}
            if "smiles" in place.graph:
                start["smiles"] = place.graph.smiles
            if nodes:
                size = int(place.graph.num_nodes or 0)
                heads = [{**start, "node": node} for node in range(size)]
            else:
                heads = [start]
            place.job.rows[place.number] = [
                {**head, **dict(zip(columns, next(values), strict=True))} for head in heads
            ]

    def _counts_nodes(self, places: Sequence[_Place], rows: int) -> bool:
        """Whether rows are nodes."""
        nodes = self.service.rows == "node" or rows != len(places)
        if nodes and rows != sum(int(place.graph.num_nodes or 0) for place in places):
            raise InputError("a model that answers for graphs or nodes", f"{rows} rows")
        return nodes


def _attributes(graph: Data) -> tuple[tuple[str, Any], ...]:
    """Names, dtypes and widths: what graphs that are joined must have in common."""
    store = graph._store
    return tuple(
        (name, (value.dtype, value.shape[1:] if "index" not in name else value.shape[:-1]))
        if isinstance(value, Tensor)
        else (name, None)
        for name, value in sorted(store.items())
    )
