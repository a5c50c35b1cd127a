"""Requests of many clients, read and answered together."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic_core import to_json
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.smiles import RDKitProcess
from gduq.deploy.http_reading import Asked, Refused, Sized, graphs_from
from gduq.deploy.running import Limits
from gduq.deploy.service import Service

__all__ = ["Batcher", "Counts"]

_log = logging.getLogger(__name__)
_AHEAD = 4  # times that requests are read while the model is at work


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

    items: Sequence[Asked]
    future: asyncio.Future[bytes]
    graphs: dict[int, Sized] = field(default_factory=dict)
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.items) or len(self.graphs)

    def content(self) -> bytes:
        """The answer as JSON; numbers that are not finite are null."""
        rows = [row for place in sorted(self.rows) for row in self.rows[place]]
        bad = [{"row": place, "reason": why} for place, why in sorted(self.rejected.items())]
        return to_json({"answers": rows, "rejected": bad}, inf_nan_mode="null")


class _Place(NamedTuple):
    """A graph of a request: where its rows go."""

    job: _Job
    number: int
    graph: Data
    nodes: int
    edges: int


_Jobs = list[_Job] | None  # none: there are no more


class Batcher:
    """Two threads: one reads requests, one answers those that are read; many share a pass.

    RDKit reads in a process of its own, so the next requests are read while the model is at work.
    Only graphs with the same attributes share a pass, so nobody's graph changes what another's
    becomes; and answers do not depend on batch-mates.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service, self.limits, self.counts = service, limits, Counts()
        self._asked: queue.Queue[_Jobs] = queue.Queue()
        self._read: queue.Queue[_Jobs] = queue.Queue(_AHEAD)
        self._submitted = self._dropped = self._begun = 0  # each is counted by one thread
        self._rdkit = RDKitProcess(limits.reading)
        self._threads = [
            threading.Thread(target=work, name=f"gduq-{work.__name__}", daemon=True)
            for work in (self._reading, self._answering)
        ]
        self._closed = False

    def __enter__(self) -> Batcher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self._asked.put(None)
        for thread in self._threads:
            thread.join()
        self._rdkit.close()

    @property
    def alive(self) -> bool:
        """Whether requests are being answered."""
        return not self._closed and all(thread.is_alive() for thread in self._threads)

    @property
    def waiting(self) -> int:
        """Requests that the model has not begun with."""
        return self._submitted - self._dropped - self._begun

    def submit(self, items: Sequence[Asked]) -> asyncio.Future[bytes]:
        """Line up a request of the running event loop; its future gives the answer as JSON.

        A request whose future is cancelled while it waits is not answered at all.
        """
        if not self.alive:
            raise Refused(503, "the service is shutting down")
        if self.waiting >= self.limits.queue:
            raise Refused(503, "too many requests are waiting, try again in a moment")
        job = _Job(items, asyncio.get_running_loop().create_future())
        self._submitted += 1
        self._asked.put([job])
        return job.future

    # -- the threads ---------------------------------------------------------------------------

    def _reading(self) -> None:
        going_on = True
        while going_on:
            jobs, going_on = self._take(self._asked)
            good = _tried(self._read_all, jobs)
            self._dropped += len(jobs) - len(good)
            self._read.put(good)
        self._read.put(None)

    def _answering(self) -> None:
        going_on = True
        while going_on:
            jobs, going_on = self._take(self._read)
            self._begun += len(jobs)
            _tell([(job.future, job.content()) for job in _tried(self._answer, jobs)])

    def _take(self, source: queue.Queue[_Jobs]) -> tuple[list[_Job], bool]:
        """The next requests, as many as fit into a pass; and whether to go on."""
        found = list[_Job]()
        while sum(job.size for job in found) < self.limits.batch:
            try:
                jobs = source.get(block=not found)
            except queue.Empty:
                break
            if jobs is None:
                return found, False
            found += jobs
        return found, True

    def _read_all(self, jobs: Sequence[_Job]) -> None:
        """Note the sound graphs of requests, and the others with the reason."""
        found = graphs_from([job.items for job in jobs], self.limits, self._rdkit)
        for job, graphs in zip(jobs, found, strict=True):
            for number, graph in enumerate(graphs):
                if isinstance(graph, str):
                    job.rejected[number] = graph
                else:
                    job.graphs[number] = graph
            job.items = ()

    def _answer(self, jobs: Sequence[_Job]) -> None:
        waiting = (_Place(job, n, *graph) for job in jobs for n, graph in job.graphs.items())
        for part in self._passes(waiting):
            self.counts.passes += 1
            graphs = [place.graph for place in part]
            for places, found in self.service.answer_each(graphs, checked=True):
                chosen = [part[place] for place in places]
                if isinstance(found, str):
                    chosen[0].job.rejected[chosen[0].number] = found
                else:
                    self._share(chosen, found)
        for job in jobs:
            self.counts.requests += 1
            self.counts.graphs += len(job.rows)
            self.counts.rejected += len(job.rejected)

    def _passes(self, places: Iterable[_Place]) -> Iterator[list[_Place]]:
        """Graphs with the same attributes, as many as one pass may hold."""
        alike: dict[Any, list[_Place]] = {}
        for place in places:
            alike.setdefault(_attributes(place.graph), []).append(place)
        for group in alike.values():
            part, nodes, edges = list[_Place](), 0, 0
            for place in group:
                nodes += place.nodes
                edges += place.edges
                full = len(part) == self.limits.batch
                if part and (full or nodes > self.limits.nodes or edges > self.limits.edges):
                    yield part
                    part, nodes, edges = [], place.nodes, place.edges
                part.append(place)
            yield part

    def _share(self, places: Sequence[_Place], p: Any) -> None:
        """Give every request its rows."""
        columns = self.service.columns(p)
        nodes = self.service.rows_each([place.graph for place in places], p)
        values = zip(*columns.values(), strict=True)
        for place in places:
            start: dict[str, Any] = {"row": place.number}
            if "smiles" in place.graph:
                start["smiles"] = place.graph.smiles
            heads = [{"node": node} for node in range(place.nodes)] if nodes else [{}]
            place.job.rows[place.number] = [
                {**start, **head, **dict(zip(columns, next(values), strict=True))} for head in heads
            ]


def _attributes(graph: Data) -> frozenset[tuple[Any, ...]]:
    """Names, dtypes and widths: what graphs that are joined must have in common."""
    return frozenset(
        (name, value.dtype, value.shape[:-1] if "index" in name else value.shape[1:])
        for name, value in graph._store.items()
        if isinstance(value, Tensor)
    )


def _tried(work: Callable[[list[_Job]], None], jobs: list[_Job]) -> list[_Job]:
    """The requests with which work went well; where all together fail, each is tried alone."""
    jobs = [job for job in jobs if not job.future.done()]
    try:
        work(jobs)
        return jobs
    except Exception as error:  # the thread must outlive whatever a network does
        if len(jobs) > 1:
            return [good for job in jobs for good in _tried(work, [job])]
        _log.exception("a request failed")
        _tell([(jobs[0].future, error)])
        return []


def _tell(found: list[tuple[asyncio.Future[bytes], bytes | Exception]]) -> None:
    """Give out all answers of a pass at once, in the event loop, as waking it takes time."""

    def settle() -> None:
        for future, outcome in found:
            if future.done():  # the client has gone, or the time is over
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    if found:
        with suppress(RuntimeError):  # a loop that is closed has no more clients
            found[0][0].get_loop().call_soon_threadsafe(settle)
