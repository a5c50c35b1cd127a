"""Requests of many clients, read and answered together in one thread.

Nothing in a request is ever run or looked up: it becomes graphs, or reasons why there are none.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple

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

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
# what labels or arranges rows is not for a request to say
_RESERVED = {"y", "batch", "ptr", "batch_size", "num_nodes", "smiles"}
_RESERVED |= {"edge_label", "edge_label_index", "edge_row_mask", "row_mask", "row_kind", "row_type"}
_FLOATS = ("x", "edge_attr", "edge_weight", "pos")
_MOST = 8  # attributes of a graph, and dimensions of one of them
Rows = list[dict[str, Any]]  # of one graph
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


def read_graphs(items: Sequence[Any], limits: Limits, rdkit: RDKitProcess) -> list[Graph | str]:
    """Per entry of a request a sound graph, or the reason why it is none.

    Example:
        >>> graph = {"x": [[1, 0]], "edge_index": [[0], [1]]}
        >>> read_graphs([graph], Limits(), RDKitProcess())
        ['expected edge_index with node numbers from 0 to 0, got 0 to 1.']
    """
    numbers = [n for n, i in enumerate(items) if isinstance(i, str) and len(i) <= limits.smiles]
    molecules = rdkit.read([items[n].strip() for n in numbers]) if numbers else []
    read = dict(zip(numbers, molecules, strict=True))
    return [_graph(item, read.get(number), limits) for number, item in enumerate(items)]


def _graph(item: Any, read: Graph | str | None, limits: Limits) -> Graph | str:
    """A sound graph: what RDKit made of a text, which may be a reason, or one from arrays."""
    if isinstance(read, str):
        return read
    try:
        if read is None and isinstance(item, str):
            raise InputError(f"a SMILES string of at most {limits.smiles} characters", len(item))
        graph = _from_arrays(item) if read is None else read
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
    if item.get("x") is None and item.get("pos") is None:
        raise InputError("x, one list of numbers per node", "none")
    graph = Data()
    for name, values in item.items():
        if name in _RESERVED or not _NAME.fullmatch(name):
            raise InputError("attributes that a network reads", repr(name)[:50])
        graph[name] = _array(name, values)
    check_graph(graph)
    return graph


def _array(name: str, values: Any) -> Tensor:
    """Whole numbers for indices, decimals for features, and what they look like for the rest."""
    try:
        found = torch.tensor(values if isinstance(values, list) else True)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError):
        found = torch.tensor(True)
    if found.dim() > _MOST or found.dtype == torch.bool:
        raise InputError(f"{name} as an array of numbers", "something else")
    if "index" not in name:
        return found.float() if name in _FLOATS else found
    if found.is_floating_point() and found.numel():
        raise InputError(f"whole numbers in {name}", "decimals")
    return found.long().view(2, 0) if name == "edge_index" and not found.numel() else found.long()


class _Row(NamedTuple):
    """A graph that waits for its answer: rows of a table, or the reason why there are none."""

    turn: int
    graph: Graph
    attributes: frozenset[tuple[Any, ...]]  # graphs that are joined have them in common
    future: asyncio.Future[Rows | str]


class Batcher:
    """Reads and answers what has come, in one thread; many requests share a pass.

    Requests take turns, graph by graph: a small one never waits for all of a large one.
    Only graphs with the same attributes share a pass, so nobody's graph changes what another's
    becomes; and answers do not depend on batch-mates.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service, self.limits, self.alive = service, limits, True
        self.counts = Counter(requests=0, graphs=0, rejected=0, passes=0)
        self.waiting = 0  # requests that are not answered yet
        self._queue, self._turn = list[_Row](), 0  # that of the last pass
        self._rdkit = RDKitProcess(limits.reading)
        self._thread = ThreadPoolExecutor(1, "gduq-batcher")
        self._work: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Answer no more; what is not answered by now is dropped."""
        self.alive = False
        self._rdkit.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, items: Sequence[Any]) -> bytes:
        """The answer to a request as JSON; if this is cancelled, nobody answers it any more."""
        if not self.alive:
            raise Refused(503, "the service is shutting down")
        if self.waiting >= self.limits.queue:
            raise Refused(503, "too many requests are waiting, try again in a moment")
        self.waiting += 1
        try:
            found = dict(enumerate(await self._answers(items)))
        finally:
            self.waiting -= 1
        bad = [{"row": n, "reason": str(one)} for n, one in found.items() if isinstance(one, str)]
        rows = [
            {"row": n, **row} for n, one in found.items() if not isinstance(one, str) for row in one
        ]
        answer = to_json({"answers": rows, "rejected": bad}, inf_nan_mode="null")
        self.counts.update(requests=1, graphs=len(found) - len(bad), rejected=len(bad))
        return answer

    async def _answers(self, items: Sequence[Any]) -> list[Rows | str]:
        """Per entry of a request its rows or a reason; as many entries at a time as a pass has."""
        loop, found = asyncio.get_running_loop(), list[Rows | str]()
        for start in range(0, len(items), self.limits.batch):
            part = items[start : start + self.limits.batch]
            read = await loop.run_in_executor(
                self._thread, read_graphs, part, self.limits, self._rdkit
            )
            rows = {
                number: _Row(self._turn + number, graph, _attributes(graph), loop.create_future())
                for number, graph in enumerate(read)
                if not isinstance(graph, str)
            }
            self._queue += rows.values()
            if self._queue and (self._work is None or self._work.done()):
                self._work = asyncio.create_task(self._take_turns())
            await asyncio.gather(*(row.future for row in rows.values()))
            answers: dict[int, Any] = dict(enumerate(read))
            found += (answers | {n: row.future.result() for n, row in rows.items()}).values()
            late = next((n for n, one in enumerate(read) if isinstance(one, Ended)), None)
            if late is not None:  # the time of this request is over
                why = f"not read: RDKit did not end with row {start + late} before it"
                del found[start + late + 1 :]
                return found + [why] * (len(items) - len(found))
        return found

    async def _take_turns(self) -> None:
        """Answer until nobody waits."""
        loop = asyncio.get_running_loop()
        while self.alive and (chosen := self._next_pass()):
            answers: Sequence[Rows | str | Exception]
            try:
                graphs = [row.graph for row in chosen]
                answers = await loop.run_in_executor(self._thread, self._predict, graphs)
            except Exception as error:
                answers = [error] * len(chosen)
            for row, answer in zip(chosen, answers, strict=True):
                if row.future.done():  # the client has gone, or the time is over
                    continue
                if isinstance(answer, Exception):
                    row.future.set_exception(answer)
                else:
                    row.future.set_result(answer)

    def _next_pass(self) -> list[_Row]:
        """Graphs with the same attributes whose turn it is, within bounds."""
        chosen, rest, nodes, edges = list[_Row](), list[_Row](), 0, 0
        for row in sorted(self._queue, key=lambda row: row.turn):
            if row.future.done():
                continue
            more, links = int(row.graph.num_nodes or 0), int(row.graph.num_edges)
            fits = nodes + more <= self.limits.nodes and edges + links <= self.limits.edges
            fits = fits and len(chosen) < self.limits.batch
            if not chosen or (fits and row.attributes == chosen[0].attributes):
                chosen.append(row)
                nodes, edges, self._turn = nodes + more, edges + links, row.turn
            else:
                rest.append(row)
        self._queue = rest
        return chosen

    def _predict(self, graphs: Sequence[Graph]) -> list[Rows | str]:
        """What is said of each graph, in the thread."""
        self.counts["passes"] += 1
        found: list[Any] = [[] for _ in graphs]
        for numbers, p in self.service.answer_each(graphs):
            if isinstance(p, str):
                found[numbers[0]] = p
                continue
            table = self.service.table([graphs[number] for number in numbers], p)
            owners = [numbers[number] for number in table.pop("graph")]
            for owner, values in zip(owners, zip(*table.values(), strict=True), strict=True):
                head = {"smiles": graphs[owner].smiles} if "smiles" in graphs[owner] else {}
                found[owner].append({**head, **dict(zip(table, values, strict=True))})
        return found


def _attributes(graph: Graph) -> frozenset[tuple[Any, ...]]:
    """Names, dtypes and widths."""
    return frozenset(
        (name, value.dtype, value.shape[:-1] if "index" in name else value.shape[1:])
        for name, value in graph._store.items()
        if isinstance(value, Tensor)
    )
