"""Requests of many clients, read and answered together."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic_core import to_json
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.smiles import Ended, RDKitProcess
from gduq.deploy.http_reading import Asked, Refused, Sized, graphs_from
from gduq.deploy.running import Limits
from gduq.deploy.service import Service

__all__ = ["Batcher", "Counts"]

_log = logging.getLogger(__name__)
_AHEAD = 2  # turns that are read while the model is at work


@dataclass
class Counts:
    """What was done so far."""

    requests: int = 0
    graphs: int = 0
    rejected: int = 0
    passes: int = 0


@dataclass(eq=False)
class _Job:
    """One request; its answer is ready when the future is."""

    items: deque[tuple[int, Asked]]  # not yet read
    size: int
    future: asyncio.Future[bytes]
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    answer: bytes = b""

    @property
    def complete(self) -> bool:
        return len(self.rows) + len(self.rejected) == self.size


@dataclass
class _Part:
    """What is done of a request in one turn."""

    job: _Job
    items: dict[int, Asked] = field(default_factory=dict)
    found: dict[int, Sized | str] = field(default_factory=dict)


class _Place(NamedTuple):
    """A graph of a request: where its rows go."""

    job: _Job
    number: int
    graph: Data
    nodes: int
    edges: int


class Batcher:
    """Two threads: one reads requests, one answers those that are read; many share a pass.

    RDKit reads in a process of its own, so the next requests are read while the model is at work.
    Requests take turns, graph by graph: a small one never waits for all of a large one.
    Only graphs with the same attributes share a pass, so nobody's graph changes what another's
    becomes; and answers do not depend on batch-mates.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service, self.limits, self.counts = service, limits, Counts()
        self._asked: queue.Queue[_Job | None] = queue.Queue()
        self._read: queue.Queue[list[_Part] | None] = queue.Queue(_AHEAD)
        self._waiting = set[_Job]()
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
        """What is not answered by now is dropped."""
        self._closed = True
        self._asked.put(None)
        self._rdkit.close()
        for thread in self._threads:
            thread.join(self.limits.stopping)  # a pass may take longer

    @property
    def alive(self) -> bool:
        """Whether requests are being answered."""
        return not self._closed and all(thread.is_alive() for thread in self._threads)

    @property
    def waiting(self) -> int:
        """Requests that the model has not begun with."""
        return len(self._waiting)

    def submit(self, items: Sequence[Asked]) -> asyncio.Future[bytes]:
        """Line up a request of the running event loop; its future gives the answer as JSON.

        A request whose future is cancelled while it waits is not answered at all.
        """
        if not self.alive:
            raise Refused(503, "the service is shutting down")
        if self.waiting >= self.limits.queue:
            raise Refused(503, "too many requests are waiting, try again in a moment")
        future = asyncio.get_running_loop().create_future()
        job = _Job(deque(enumerate(items)), len(items), future)
        self._waiting.add(job)
        future.add_done_callback(lambda _: self._waiting.discard(job))
        self._asked.put(job)
        return future

    # -- the threads ---------------------------------------------------------------------------

    def _reading(self) -> None:
        jobs = deque[_Job]()
        while not self._closed:
            with suppress(queue.Empty):
                while True:  # all that has come; where there is nothing to do, wait for it
                    job = self._asked.get(block=not jobs)
                    if job is None:
                        break
                    jobs.append(job)
            self._read.put(_tried(self._read_all, self._turn(jobs)))
        self._read.put(None)

    def _turn(self, jobs: deque[_Job]) -> list[_Part]:
        """The next items, one of each request after the other, as many as fit into a pass."""
        parts = dict[_Job, _Part]()
        items = size = 0
        while jobs and items < self.limits.batch and size < self.limits.nodes:
            job = jobs.popleft()
            if job.future.done():
                continue
            part = parts.setdefault(job, _Part(job))
            if job.items:
                number, asked = job.items.popleft()
                part.items[number] = asked
                items, size = items + 1, size + _size(asked)
            if job.items:
                jobs.append(job)
        return list(parts.values())

    def _answering(self) -> None:
        going_on = True
        while going_on:
            parts, going_on = self._take()
            for part in parts:
                self._waiting.discard(part.job)
            good = [] if self._closed else _tried(self._answer, parts)
            complete = {part.job: part for part in good if part.job.complete}
            done = _tried(self._finish, list(complete.values()))
            _tell([(part.job.future, part.job.answer) for part in done])

    def _take(self) -> tuple[list[_Part], bool]:
        """What was read next, as much as fits into a pass; and whether to go on."""
        parts, items, nodes = list[_Part](), 0, 0
        while items < self.limits.batch and nodes < self.limits.nodes:
            try:
                more = self._read.get(block=not parts)
            except queue.Empty:
                break
            if more is None:
                return parts, False
            parts += more
            sizes = [g.nodes for p in more for g in p.found.values() if isinstance(g, Sized)]
            items, nodes = items + len(sizes), nodes + sum(sizes)
        return parts, True

    def _read_all(self, parts: Sequence[_Part]) -> None:
        """Note the sound graphs of requests, and the others with the reason."""
        asked = [list(part.items.values()) for part in parts]
        found = graphs_from(asked, self.limits, self._rdkit)
        for part, graphs in zip(parts, found, strict=True):
            part.found = dict(zip(part.items, graphs, strict=True))
            late = next((n for n, one in part.found.items() if isinstance(one, Ended)), None)
            if late is not None:  # its time is over
                after = [n for n in part.items if n > late] + [n for n, _ in part.job.items]
                why = f"not read: RDKit did not end with row {late} before it"
                part.found |= dict.fromkeys(after, why)
                part.job.items.clear()

    def _answer(self, parts: Sequence[_Part]) -> None:
        waiting = list[_Place]()
        for one in parts:
            for number, found in one.found.items():
                if isinstance(found, str):
                    one.job.rejected[number] = found
                else:
                    waiting.append(_Place(one.job, number, *found))
        for part in self._passes(waiting):
            self.counts.passes += 1
            graphs = [place.graph for place in part]
            for places, answers in self.service.answer_each(graphs, checked=True):
                chosen = [part[place] for place in places]
                if isinstance(answers, str):
                    chosen[0].job.rejected[chosen[0].number] = answers
                else:
                    self._share(chosen, answers)

    def _finish(self, parts: Sequence[_Part]) -> None:
        """Make the answers as JSON; numbers that are not finite are null."""
        for job in (part.job for part in parts):
            rows = [row for place in sorted(job.rows) for row in job.rows[place]]
            bad = [{"row": place, "reason": why} for place, why in sorted(job.rejected.items())]
            job.answer = to_json({"answers": rows, "rejected": bad}, inf_nan_mode="null")
        self.counts.requests += len(parts)
        self.counts.graphs += sum(len(part.job.rows) for part in parts)
        self.counts.rejected += sum(len(part.job.rejected) for part in parts)

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


def _size(asked: Asked) -> int:
    """About as many nodes as the graph has."""
    kind, value = asked
    held = value.get("x") if kind == "graph" and isinstance(value, dict) else value
    return len(held) if isinstance(held, (str, list)) else 1


def _tried(work: Callable[[list[_Part]], None], parts: list[_Part]) -> list[_Part]:
    """The parts with which work went well; where all together fail, each is tried alone."""
    parts = [part for part in parts if not part.job.future.done()]
    try:
        work(parts)
        return parts
    except Exception as error:  # the thread must outlive whatever a network does
        if len(parts) > 1:
            return [good for part in parts for good in _tried(work, [part])]
        _log.exception("a request failed")
        _tell([(part.job.future, error) for part in parts])
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
