"""Requests of many clients, read and answered together by one thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from torch import Tensor

from gduq.data.smiles import Ended, RDKitProcess
from gduq.graphs import Graph
from gduq.serve.reading import Item, Refused, read_graphs
from gduq.serve.service import Service
from gduq.serve.settings import Limits

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
    """One request; its answer is ready when the future is."""

    items: deque[tuple[int, Item]]  # not yet read
    size: int
    future: Future[bytes] = field(default_factory=Future)
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)


_Turn = dict[_Job, dict[int, Item]]  # what is done of each request, by number in the request


class Batcher:
    """One thread that reads and answers what has come; many requests share a pass.

    Requests take turns, graph by graph: a small one never waits for all of a large one.
    Only graphs with the same attributes share a pass, so nobody's graph changes what another's
    becomes; and answers do not depend on batch-mates.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service, self.limits, self.counts = service, limits, Counts()
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._waiting = set[_Job]()
        self._rdkit = RDKitProcess(limits.reading)
        self._thread = threading.Thread(target=self._work, name="gduq-batcher", daemon=True)
        self._closed = False

    def __enter__(self) -> Batcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """What is not answered by now is dropped."""
        self._closed = True
        self._queue.put(None)
        self._rdkit.close()
        self._thread.join(self.limits.stopping)  # a pass may take longer

    @property
    def alive(self) -> bool:
        """Whether requests are being answered."""
        return not self._closed and self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Requests that the model has not begun with."""
        return len(self._waiting)

    def submit(self, items: Sequence[Item]) -> Future[bytes]:
        """Line up a request; its future gives the answer as JSON.

        A request whose future is cancelled while it waits is not answered at all.
        """
        if not self.alive:
            raise Refused(503, "the service is shutting down")
        if self.waiting >= self.limits.queue:
            raise Refused(503, "too many requests are waiting, try again in a moment")
        job = _Job(deque(enumerate(items)), len(items))
        self._waiting.add(job)
        job.future.add_done_callback(lambda _: self._waiting.discard(job))
        self._queue.put(job)
        return job.future

    # -- the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        jobs = deque[_Job]()
        while not self._closed:
            with suppress(queue.Empty):
                while (job := self._queue.get(block=not jobs)) is not None:  # all that has come
                    jobs.append(job)
            turn = self._turn(jobs)
            self._waiting -= turn.keys()
            self._answer(turn)

    def _turn(self, jobs: deque[_Job]) -> _Turn:
        """The next items, one of each request after the other, as many as fit into a pass."""
        turn: _Turn = {}
        items = size = 0
        while jobs and items < self.limits.batch and size < self.limits.nodes:
            job = jobs.popleft()
            if job.future.done():
                continue
            part = turn.setdefault(job, {})
            if job.items:
                number, item = job.items.popleft()
                part[number] = item
                items, size = items + 1, size + len(item)
            if job.items:
                jobs.append(job)
        return turn

    def _answer(self, turn: _Turn) -> None:
        """Do a turn; where all together fail, each request is tried alone."""
        turn = {job: items for job, items in turn.items() if not job.future.done()}
        try:
            self._predict(self._read(turn))
            for job in turn:
                if len(job.rows) + len(job.rejected) == job.size:
                    self._finish(job)
        except Exception as error:  # the thread must outlive whatever a network does
            if len(turn) > 1:
                for job, items in turn.items():
                    self._answer({job: items})
                return
            _log.exception("a request failed")
            for job in turn:
                _set(job.future.set_exception, error)

    def _read(self, turn: _Turn) -> list[tuple[_Job, int, Graph]]:
        """The sound graphs of requests; the others are noted with the reason."""
        found = read_graphs(
            [list(items.values()) for items in turn.values()], self.limits, self._rdkit
        )
        sound = []
        for (job, items), graphs in zip(turn.items(), found, strict=True):
            late = None
            for number, graph in zip(items, graphs, strict=True):
                if late is not None:
                    job.rejected[number] = late
                elif isinstance(graph, str):
                    job.rejected[number] = str(graph)
                    if isinstance(graph, Ended):  # its time is over
                        late = f"not read: RDKit did not end with row {number} before it"
                else:
                    sound.append((job, number, graph))
            if late is not None:
                job.rejected |= {number: late for number, _ in job.items}
                job.items.clear()
        return sound

    def _predict(self, sound: Sequence[tuple[_Job, int, Graph]]) -> None:
        for part in self._passes(sound):
            self.counts.passes += 1
            graphs = [graph for _, _, graph in part]
            for numbers, p in self.service.answer_each(graphs, checked=True):
                chosen = [part[number] for number in numbers]
                if isinstance(p, str):
                    job, number, _ = chosen[0]
                    job.rejected[number] = p
                    continue
                columns = self.service.columns(p)
                nodes = self.service.rows_each([graph for _, _, graph in chosen], p)
                values = zip(*columns.values(), strict=True)
                for i, (job, number, graph) in enumerate(chosen):
                    head: dict[str, Any] = {"row": number}
                    if "smiles" in graph:
                        head["smiles"] = graph.smiles
                    heads = (
                        [head] if nodes is None else [head | {"node": n} for n in range(nodes[i])]
                    )
                    job.rows[number] = [
                        one | dict(zip(columns, next(values), strict=True)) for one in heads
                    ]

    def _passes(
        self, sound: Sequence[tuple[_Job, int, Graph]]
    ) -> Iterator[list[tuple[_Job, int, Graph]]]:
        """Graphs with the same attributes, as many as one pass may hold."""
        alike: dict[Any, list[tuple[_Job, int, Graph]]] = {}
        for one in sound:
            alike.setdefault(_attributes(one[2]), []).append(one)
        for group in alike.values():
            part, nodes, edges = list[Any](), 0, 0
            for one in group:
                more, links = int(one[2].num_nodes or 0), int(one[2].num_edges)
                full = len(part) == self.limits.batch or nodes + more > self.limits.nodes
                if part and (full or edges + links > self.limits.edges):
                    yield part
                    part, nodes, edges = [], 0, 0
                part.append(one)
                nodes, edges = nodes + more, edges + links
            yield part

    def _finish(self, job: _Job) -> None:
        """The answer as JSON; numbers that are not finite are null."""
        rows = [row for number in sorted(job.rows) for row in job.rows[number]]
        bad = [{"row": number, "reason": why} for number, why in sorted(job.rejected.items())]
        answer = to_json({"answers": rows, "rejected": bad}, inf_nan_mode="null")
        self.counts.requests += 1
        self.counts.graphs += len(job.rows)
        self.counts.rejected += len(job.rejected)
        _set(job.future.set_result, answer)


def _set(settle: Any, value: Any) -> None:
    with suppress(InvalidStateError):  # the client has gone, or the time is over
        settle(value)


def _attributes(graph: Graph) -> frozenset[tuple[Any, ...]]:
    """Names, dtypes and widths: what graphs that are joined must have in common."""
    return frozenset(
        (name, value.dtype, value.shape[:-1] if "index" in name else value.shape[1:])
        for name, value in graph._store.items()
        if isinstance(value, Tensor)
    )
