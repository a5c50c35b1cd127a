"""Requests of many clients, read and answered together in one thread. Nothing in a request is ever
run or looked up: it becomes graphs, or reasons why there are none."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.smiles import RDKitProcess
from gduq.errors import InputError, first_flaw, one_line
from gduq.graphs import Graph, check_graph
from gduq.serve.server import Limits
from gduq.serve.service import Service

__all__ = ["Batcher", "Entry", "Query", "Refused", "read_graphs", "read_query"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
# what labels or arranges rows is not for a request to say
_RESERVED = {"y", "batch", "ptr", "batch_size", "num_nodes", "smiles"}
_RESERVED |= {"edge_label", "edge_label_index", "edge_row_mask", "row_mask", "row_kind", "row_type"}
Rows = list[dict[str, object]]  # of one graph
Entry = Rows | str  # what becomes of an entry of a request: its rows, or why there are none


class Refused(Exception):
    """A request that is not answered: an HTTP status and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class GraphQuery(BaseModel):
    """A graph: arrays of numbers as the training graphs had them, also of other names."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, list[int] | list[list[int]] | list[float] | list[list[float]]]

    edge_index: list[list[int]] = Field(description="Two lists of node numbers, from and to.")
    x: list[list[float]] | None = Field(None, description="One list of numbers per node.")
    edge_attr: list[float] | list[list[float]] | None = None
    edge_weight: list[float] | None = None
    pos: list[list[float]] | None = None

    def data(self) -> Data:
        """The graph, if it is a sound one."""
        arrays = {name: values for name, values in self if values is not None}
        if self.x is None and self.pos is None:
            raise InputError("x, one list of numbers per node", "none")
        graph = Data(edge_index=torch.tensor(arrays.pop("edge_index") or [[], []]).long())
        for name, values in arrays.items():
            if name in _RESERVED or not _NAME.fullmatch(name):
                raise InputError("attributes that a network reads", repr(name)[:50])
            array = torch.tensor(values)
            graph[name] = array.float() if name in GraphQuery.model_fields else array
        check_graph(graph)
        return graph


_GRAPHS = {"type": "array", "items": GraphQuery.model_json_schema()}


class Query(BaseModel):
    """Molecules or graphs to answer for: one of the two lists."""

    model_config = ConfigDict(extra="forbid")

    # entries are looked at one by one, so that a bad one does not spoil the rest
    smiles: list[Any] | None = Field(None, examples=[["CCO", "c1ccccc1"]])
    graphs: Annotated[list[Any] | None, WithJsonSchema(_GRAPHS)] = None


def read_query(body: bytes, limits: Limits) -> list[object]:
    """The molecules (texts) or graphs (anything else) of a request, not yet looked at."""
    try:
        query = Query.model_validate_json(body)
    except ValidationError as error:
        raise Refused(422, first_flaw(error)) from None
    if (query.smiles is None) == (query.graphs is None):
        raise Refused(422, "expected one of the lists smiles and graphs, got both or neither")
    found = query.smiles or query.graphs or []
    if len(found) > limits.graphs:
        raise Refused(413, f"expected at most {limits.graphs} graphs, got {len(found)}")
    return found


def read_graphs(items: Sequence[object], limits: Limits, rdkit: RDKitProcess) -> list[Graph | str]:
    """Per entry of a request a sound graph, or the reason why it is none."""
    texts = {n: i.strip() for n, i in enumerate(items) if isinstance(i, str)}
    short = {n: text for n, text in texts.items() if len(text) <= limits.smiles}
    found: dict[int, object] = dict.fromkeys(texts, f"more than {limits.smiles} characters")
    found |= zip(short, rdkit.read(list(short.values())) if short else (), strict=True)
    return [_checked(found.get(number, item), limits) for number, item in enumerate(items)]


def _checked(item: object, limits: Limits) -> Graph | str:
    """A sound graph: what RDKit made of a text, which may be a reason, or one from arrays."""
    if isinstance(item, str):
        return item
    try:
        graph = item if isinstance(item, Data) else GraphQuery.model_validate(item).data()
        if int(graph.num_nodes or 0) > limits.nodes or graph.num_edges > limits.edges:
            raise InputError(f"at most {limits.nodes} nodes and {limits.edges} edges", "more")
        return graph
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        return first_flaw(error) if isinstance(error, ValidationError) else one_line(error)


def passes(graphs: Mapping[int, Graph], limits: Limits) -> Iterator[dict[int, Graph]]:
    """Graphs, by number, that are answered in one pass: they have the same attributes, so that
    nobody's graph changes what another's becomes, and are within bounds."""
    groups = defaultdict[object, list[int]](list)
    for number, graph in graphs.items():
        tensors = ((k, v) for k, v in graph._store.items() if isinstance(v, Tensor))
        wide = ((k, v.dtype, v.shape[:-1] if "index" in k else v.shape[1:]) for k, v in tensors)
        groups[frozenset(wide)].append(number)
    for group in groups.values():
        while group:
            nodes = accumulate(int(graphs[number].num_nodes or 0) for number in group)
            edges = accumulate(graphs[number].num_edges for number in group)
            sizes = zip(nodes, edges, strict=True)
            count = max(1, sum(n <= limits.nodes and e <= limits.edges for n, e in sizes))
            yield {number: graphs[number] for number in group[:count]}
            del group[:count]


class Batcher:
    """Reads and answers what has come, in one thread; many requests share a pass.

    Requests take turns, each with as many entries as a pass has: a small one never waits for all
    of a large one. Answers do not depend on batch-mates. ``notify`` is called before each pass.
    """

    def __init__(self, service: Service, limits: Limits, notify: Callable[[], object]) -> None:
        self.service, self.limits, self.notify, self.alive = service, limits, notify, True
        self.waiting = 0  # requests that are not answered yet
        self._queue = deque[tuple[Sequence[object], asyncio.Future[list[Entry]]]]()
        self._rdkit = RDKitProcess(limits.reading)
        self._thread = ThreadPoolExecutor(1, "gduq-batcher")
        self._work: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Answer no more; what is not answered by now is dropped."""
        self.alive = False
        self._rdkit.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, items: Sequence[object]) -> list[Entry]:
        """What becomes of the entries of a request; nobody answers them once this is cancelled."""
        if not self.alive:
            raise Refused(503, "the service is shutting down")
        if self.waiting >= self.limits.queue:
            raise Refused(503, "too many requests are waiting, try again in a moment")
        self.waiting += 1
        found = list[Entry]()
        try:
            for start in range(0, len(items), self.limits.batch):
                future = asyncio.get_running_loop().create_future()
                self._queue.append((items[start : start + self.limits.batch], future))
                if self._work is None or self._work.done():
                    self._work = asyncio.create_task(self._take_turns())
                found += await future
        finally:
            self.waiting -= 1
        return found

    async def _take_turns(self) -> None:
        """Answer until nobody waits."""
        loop = asyncio.get_running_loop()
        while self.alive and self._queue:
            turn, room = [], self.limits.batch
            while self._queue and (room := room - len(self._queue[0][0])) >= 0:
                turn.append(self._queue.popleft())
            # without those whose client has gone, or whose time is over
            turn = [(items, future) for items, future in turn if not future.done()]
            work = loop.run_in_executor(self._thread, self._respond, [items for items, _ in turn])
            try:
                answers: list[list[Entry] | Exception] = [*await work]
            except Exception as error:
                answers = [error] * len(turn)
            for (_, future), answer in zip(turn, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _respond(self, requests: Sequence[Sequence[object]]) -> list[list[Entry]]:
        read = [read_graphs(items, self.limits, self._rdkit) for items in requests]
        graphs = dict(enumerate(one for part in read for one in part if not isinstance(one, str)))
        rows, reasons = {number: Rows() for number in graphs}, dict[int, str]()
        for chosen in passes(graphs, self.limits):
            self.notify()
            for part, p in self.service.answer_each(chosen):
                if isinstance(p, str):
                    reasons |= dict.fromkeys(part, p)
                    continue
                for record in self.service.records(part, p):
                    rows[record["row"]].append(record)
        answers = (reasons.get(number, found) for number, found in rows.items())
        return [[one if isinstance(one, str) else next(answers) for one in part] for part in read]
