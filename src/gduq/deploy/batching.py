"""Requests of many clients, answered together by one thread."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from torch import Tensor
from torch_geometric.data import Data

from gduq.deploy.http_limits import Limits, Refused
from gduq.deploy.http_reading import Asked, graphs_from
from gduq.deploy.rdkit_process import RDKitProcess
from gduq.deploy.service import Service

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

    items: Sequence[Asked]
    future: asyncio.Future[bytes]
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
    nodes: int
    edges: int


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
        self._rdkit = RDKitProcess(limits.reading)

    def __enter__(self) -> Batcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self._waiting.put(None)
        self._thread.join()
        self._rdkit.close()

    @property
    def alive(self) -> bool:
        """Whether requests are being answered."""
        return self._thread.is_alive() and not self._closed

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._waiting.qsize()

    def submit(self, items: Sequence[Asked]) -> asyncio.Future[bytes]:
        """Line up a request of the running event loop; its future gives the answer as JSON.

        It ends with a ``TimeoutError`` after the time for a request; who still waits in the queue
        then is not answered at all.
        """
        if not self.alive:
            raise Refused(503, "the service is shutting down")
        loop = asyncio.get_running_loop()
        job = _Job(items, loop.create_future())
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            raise Refused(503, "too many requests are waiting, try again in a moment") from None
        clock = loop.call_later(self.limits.seconds, _settle, [(job.future, TimeoutError())])
        job.future.add_done_callback(lambda _: clock.cancel())
        return job.future

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        going_on = True
        while going_on:
            jobs, going_on = self._take()
            jobs = [job for job in jobs if not job.future.done()]  # nobody waits for the others
            if jobs:
                found = self._outcomes(jobs)
                with suppress(RuntimeError):  # a loop that is closed has no more clients
                    jobs[0].future.get_loop().call_soon_threadsafe(_settle, found)

    def _outcomes(self, jobs: Sequence[_Job]) -> list[_Outcome]:
        """What becomes of requests; where all together fail, each is tried alone."""
        try:
            self._answer(jobs)
            return [(job.future, job.content()) for job in jobs]
        except Exception as error:  # the thread must outlive whatever a network does
            if len(jobs) > 1:
                return [outcome for job in jobs for outcome in self._outcomes([job])]
            _log.exception("a request failed")
            return [(jobs[0].future, error)]

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

    def _read(self, jobs: Sequence[_Job]) -> Iterator[_Place]:
        """The sound graphs of all requests; the others are noted with the reason."""
        for job in jobs:
            found = graphs_from(job.items, self.limits, self._rdkit)
            for number, graph in enumerate(found):
                if isinstance(graph, str):
                    job.rejected[number] = graph
                else:
                    yield _Place(job, number, *graph)

    def _passes(self, places: Iterator[_Place]) -> Iterator[list[_Place]]:
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


_Outcome = tuple["asyncio.Future[bytes]", "bytes | Exception"]


def _settle(found: Sequence[_Outcome]) -> None:
    """In the event loop: all answers of a pass at once, as waking the loop takes time."""
    for future, outcome in found:
        if future.done():  # the client has gone, or the time is over
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
