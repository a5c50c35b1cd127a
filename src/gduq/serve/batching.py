"""Requests of many clients, read and answered together in one thread.

Nothing in a request is ever run or looked up: it becomes graphs, or reasons why there are none.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import to_json
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.smiles import Ended, RDKitProcess
from gduq.errors import InputError, one_line
from gduq.graphs import Graph, check_graph
from gduq.serve.service import Service
from gduq.serve.settings import Limits

__all__ = ["Batcher", "Query", "Refused", "read_graphs", "read_query"]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
# what labels or arranges rows is not for a request to say
_RESERVED = {"y", "batch", "ptr", "batch_size", "num_nodes", "smiles"}
_RESERVED |= {"edge_label", "edge_label_index", "edge_row_mask", "row_mask", "row_kind", "row_type"}
_FLOATS = ("x", "edge_attr", "edge_weight", "pos")
_MOST = 8  # attributes of a graph, and dimensions of one of them
# Entries are looked at one by one, so that a bad one does not spoil the rest.
_Texts = Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"type": "string"}})]
_Objects = Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"type": "object"}})]


class Refused(Exception):
    """A request that is not answered: an HTTP status and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Query(BaseModel):
    """Molecules or graphs to answer for: one of the two lists."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"smiles": ["CCO", "c1ccccc1"]},
                {"graphs": [{"x": [[1.0], [0.5]], "edge_index": [[0, 1], [1, 0]]}]},
            ]
        },
    )

    smiles: _Texts | None = Field(None, description="SMILES strings.")
    graphs: _Objects | None = Field(
        None,
        description="Objects with edge_index, two lists of node numbers (from, to); x, one list of "
        "numbers per node; and where the network reads them edge_attr, edge_weight, pos or others: "
        "arrays of numbers as the training graphs had them.",
    )


def read_query(body: bytes, limits: Limits) -> list[Any]:
    """The molecules (texts) or graphs (anything else) of a request, not yet looked at.

    Example:
        >>> read_query(b'{"smiles": ["CCO"]}', Limits())
        ['CCO']
        >>> read_query(b'{"files": ["/etc/passwd"]}', Limits())
        Traceback (most recent call last):
        ...
        gduq.serve.batching.Refused: files: Extra inputs are not permitted
    """
    try:
        query = Query.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        raise Refused(422, f"{where}: {first['msg']}"[:300].removeprefix(": ")) from None
    if (query.smiles is None) == (query.graphs is None):
        raise Refused(422, "expected one of the lists smiles and graphs, got both or neither")
    found = query.smiles or query.graphs or []
    if len(found) > limits.graphs:
        raise Refused(413, f"expected at most {limits.graphs} graphs, got {len(found)}")
    return found


def read_graphs(
    requests: Sequence[Sequence[Any]], limits: Limits, rdkit: RDKitProcess
) -> list[list[Graph | str]]:
    """Per entry of each request a sound graph, or the reason why it is none.

    RDKit is asked once for all requests; one that keeps it busy takes nothing from the others.

    Example:
        >>> graph = {"x": [[1, 0]], "edge_index": [[0], [1]]}
        >>> read_graphs([[graph]], Limits(), RDKitProcess())
        [['expected edge_index with node numbers from 0 to 0, got 0 to 1.']]
    """

    def is_short(item: Any) -> bool:
        return isinstance(item, str) and len(item) <= limits.smiles

    texts = [[item.strip() for item in items if is_short(item)] for items in requests]
    found = rdkit.read(texts) if any(texts) else texts
    return [
        [_graph(next(molecules) if is_short(item) else item, limits) for item in items]
        for items, molecules in zip(requests, map(iter, found), strict=True)
    ]


def _graph(item: Any, limits: Limits) -> Graph | str:
    """A sound graph from arrays by name, or from what RDKit made (which may be a reason)."""
    try:
        if isinstance(item, str) and len(item) > limits.smiles:
            raise InputError(f"a SMILES string of at most {limits.smiles} characters", len(item))
        if isinstance(item, str):
            return item
        graph = item if isinstance(item, Data) else _from_arrays(item)
        for name, count in (("nodes", graph.num_nodes or 0), ("edges", graph.num_edges)):
            if count > getattr(limits, name):
                raise InputError(f"a graph of at most {getattr(limits, name)} {name}", count)
        return graph
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        return one_line(error)


def _from_arrays(item: Any) -> Graph:
    if not isinstance(item, dict) or "edge_index" not in item:
        got = f"only {sorted(item)[:5]}" if isinstance(item, dict) else type(item).__name__
        raise InputError("a SMILES string, or an object with edge_index", got)
    if len(item) > _MOST:
        raise InputError(f"at most {_MOST} attributes", len(item))
    graph = Data()
    for name, values in item.items():
        if name in _RESERVED or not _NAME.fullmatch(name):
            raise InputError("attributes that a network reads", repr(name)[:50])
        graph[name] = _array(name, values)
    if graph.get("x") is None and graph.get("pos") is None:
        raise InputError("x, one list of numbers per node", "none")
    check_graph(graph)
    return graph


def _array(name: str, values: Any) -> Tensor:
    """Whole numbers for indices, decimals for features, and what they look like for the rest."""
    try:
        found = torch.tensor(values) if isinstance(values, list) else torch.tensor(True)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError):
        found = torch.tensor(True)
    if found.dim() > _MOST or found.dtype == torch.bool:
        raise InputError(f"{name} as an array of numbers", "something else")
    if "index" in name:
        if found.is_floating_point() and found.numel():
            raise InputError(f"whole numbers in {name}", "decimals")
        found = found.long()
        return found.view(2, 0) if name == "edge_index" and not found.numel() else found
    return found.float() if name in _FLOATS else found


@dataclass(eq=False)
class _Job:
    """One request; its answer is ready when the future is."""

    items: deque[tuple[int, Any]]  # not yet read, by number
    size: int
    future: asyncio.Future[bytes]
    begun: bool = False
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)


_Turn = Mapping[_Job, Mapping[int, Any]]  # what is done of each request, by number
_Sound = list[tuple[_Job, int, Graph]]


class Batcher:
    """Reads and answers what has come, in one thread; many requests share a pass.

    Requests take turns, graph by graph: a small one never waits for all of a large one.
    Only graphs with the same attributes share a pass, so nobody's graph changes what another's
    becomes; and answers do not depend on batch-mates.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service, self.limits, self.alive = service, limits, True
        self.counts = Counter(requests=0, graphs=0, rejected=0, passes=0)
        self._jobs = deque[_Job]()
        self._rdkit = RDKitProcess(limits.reading)
        self._thread = ThreadPoolExecutor(1, "gduq-batcher")
        self._work: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Answer no more; what is not answered by now is dropped."""
        self.alive = False
        self._rdkit.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def waiting(self) -> int:
        """Requests that the model has not begun with."""
        return sum(not job.begun and not job.future.done() for job in self._jobs)

    async def answer(self, items: Sequence[Any]) -> bytes:
        """The answer to a request as JSON; if this is cancelled, nobody answers it any more."""
        if not self.alive:
            raise Refused(503, "the service is shutting down")
        if self.waiting >= self.limits.queue:
            raise Refused(503, "too many requests are waiting, try again in a moment")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._jobs.append(_Job(deque(enumerate(items)), len(items), future))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._take_turns())
        return await future

    async def _take_turns(self) -> None:
        """Answer until nobody waits."""
        loop = asyncio.get_running_loop()
        while self._jobs and self.alive:
            turn = self._next_turn()
            answers = await loop.run_in_executor(self._thread, self._answer, turn)
            for job, answer in answers.items():
                if job.future.done():  # the client has gone, or the time is over
                    continue
                if isinstance(answer, Exception):
                    job.future.set_exception(answer)
                else:
                    job.future.set_result(answer)

    def _next_turn(self) -> _Turn:
        """The next items, one of each request after the other, as many as fit into a pass."""
        turn: dict[_Job, dict[int, Any]] = {}
        items = size = 0
        while self._jobs and items < self.limits.batch and size < self.limits.nodes:
            job = self._jobs.popleft()
            if job.future.done():
                continue
            part, job.begun = turn.setdefault(job, {}), True
            if job.items:
                number, item = job.items.popleft()
                part[number] = item
                held = item.get("x") if isinstance(item, dict) else item
                about = len(held) if isinstance(held, (str, list)) else 1  # nodes
                items, size = items + 1, size + about
            if job.items:
                self._jobs.append(job)
        return turn

    # -- in the thread -------------------------------------------------------------------------

    def _answer(self, turn: _Turn) -> dict[_Job, bytes | Exception]:
        """What is finished by a turn; where all together fail, each request is tried alone."""
        try:
            self._predict(self._read(turn))
            done = [job for job in turn if len(job.rows) + len(job.rejected) == job.size]
            return {job: self._finished(job) for job in done}
        except Exception as error:  # the thread must outlive whatever a network does
            if len(turn) > 1:
                each = [self._answer({job: items}) for job, items in turn.items()]
                return {job: answer for found in each for job, answer in found.items()}
            _log.exception("a request failed")
            return dict.fromkeys(turn, error)

    def _read(self, turn: _Turn) -> _Sound:
        """The sound graphs of requests; the others are noted with the reason."""
        items = [list(part.values()) for part in turn.values()]
        sound: _Sound = []
        for job, graphs in zip(turn, read_graphs(items, self.limits, self._rdkit), strict=True):
            late = None
            for number, graph in zip(turn[job], graphs, strict=True):
                if late is None and not isinstance(graph, str):
                    sound.append((job, number, graph))
                    continue
                job.rejected[number] = late or str(graph)
                if isinstance(graph, Ended):  # its time is over
                    late = late or f"not read: RDKit did not end with row {number} before it"
            if late is not None:
                job.rejected |= {number: late for number, _ in job.items}
                job.items.clear()
        return sound

    def _predict(self, sound: _Sound) -> None:
        for part in self._passes(sound):
            self.counts["passes"] += 1
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
                    head = {"row": number}
                    head |= {"smiles": graph.smiles} if "smiles" in graph else {}
                    each = [{}] if nodes is None else [{"node": n} for n in range(nodes[i])]
                    job.rows[number] = [
                        {**head, **one, **dict(zip(columns, next(values), strict=True))}
                        for one in each
                    ]

    def _passes(self, sound: _Sound) -> Iterator[_Sound]:
        """Graphs with the same attributes, as many as one pass may hold."""
        alike: dict[Any, _Sound] = {}
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

    def _finished(self, job: _Job) -> bytes:
        """The answer as JSON; numbers that are not finite are null."""
        rows = [row for number in sorted(job.rows) for row in job.rows[number]]
        bad = [{"row": number, "reason": why} for number, why in sorted(job.rejected.items())]
        answer = to_json({"answers": rows, "rejected": bad}, inf_nan_mode="null")
        self.counts.update(requests=1, graphs=len(job.rows), rejected=len(job.rejected))
        return answer


def _attributes(graph: Graph) -> frozenset[tuple[Any, ...]]:
    """Names, dtypes and widths: what graphs that are joined must have in common."""
    return frozenset(
        (name, value.dtype, value.shape[:-1] if "index" in name else value.shape[1:])
        for name, value in graph._store.items()
        if isinstance(value, Tensor)
    )
