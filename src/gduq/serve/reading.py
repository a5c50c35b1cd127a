"""From the JSON of a request to graphs; nothing in it is ever run or looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.smiles import RDKitProcess
from gduq.errors import InputError, one_line
from gduq.graphs import Graph, check_graph
from gduq.serve.settings import Limits

__all__ = ["Item", "Query", "Refused", "read_graphs", "read_query"]

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


class Item:
    """A molecule or graph of a request, not yet looked at; its length is about its nodes."""

    __slots__ = ("is_smiles", "value")

    def __init__(self, value: Any, is_smiles: bool) -> None:
        self.value, self.is_smiles = value, is_smiles

    def __len__(self) -> int:
        held = self.value.get("x") if isinstance(self.value, dict) else self.value
        return len(held) if isinstance(held, (str, list)) else 1


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


def read_query(body: bytes, limits: Limits) -> list[Item]:
    """The items of a request, not yet looked at.

    Example:
        >>> [item.value for item in read_query(b'{"smiles": ["CCO"]}', Limits())]
        ['CCO']
        >>> read_query(b'{"files": ["/etc/passwd"]}', Limits())
        Traceback (most recent call last):
        ...
        gduq.serve.reading.Refused: expected smiles or graphs, got 'files'
    """
    try:
        query = Query.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise Refused(422, f"expected smiles or graphs, got {where[:100]!r}") from None
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise Refused(422, reason[:300]) from None
    if (query.smiles is None) == (query.graphs is None):
        raise Refused(422, "expected one of the lists smiles and graphs, got both or neither")
    given = query.graphs if query.smiles is None else query.smiles
    found = [Item(value, query.smiles is not None) for value in given or ()]
    if len(found) > limits.graphs:
        raise Refused(413, f"expected at most {limits.graphs} graphs, got {len(found)}")
    return found


def read_graphs(
    requests: Sequence[Sequence[Item]], limits: Limits, rdkit: RDKitProcess
) -> list[list[Graph | str]]:
    """Per item of each request a sound graph, or the reason why it is none.

    RDKit is asked once for all requests; one that keeps it busy takes nothing from the others.

    Example:
        >>> item = Item({"x": [[1, 0]], "edge_index": [[0], [1]]}, is_smiles=False)
        >>> read_graphs([[item]], Limits(), RDKitProcess())
        [['expected edge_index with node numbers from 0 to 0, got 0 to 1.']]
    """
    texts = [
        [item.value.strip() for item in items if item.is_smiles and not _flaw(item.value, limits)]
        for items in requests
    ]
    found = rdkit.read(texts) if any(texts) else [[] for _ in requests]
    return [
        [_graph(item, limits, molecules) for item in items]
        for items, molecules in zip(requests, map(iter, found), strict=True)
    ]


def _graph(item: Item, limits: Limits, molecules: Iterator[Graph | str]) -> Graph | str:
    try:
        if item.is_smiles:
            found = _flaw(item.value, limits) or next(molecules)
        else:
            found = _from_arrays(item.value)
            check_graph(found)  # what RDKit makes is sound
        if not isinstance(found, str):
            sizes = {"nodes": int(found.num_nodes or 0), "edges": int(found.num_edges)}
            for name, count in sizes.items():
                if count > getattr(limits, name):
                    raise InputError(f"a graph of at most {getattr(limits, name)} {name}", count)
        return found
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        return one_line(error)


def _flaw(value: Any, limits: Limits) -> str:
    """Why something is no text to read as SMILES."""
    if not isinstance(value, str):
        return f"expected a SMILES text, got {_kind(value)}."
    if len(value) > limits.smiles:
        return f"expected a SMILES string of at most {limits.smiles} characters, got {len(value)}."
    return ""


def _from_arrays(item: Any) -> Graph:
    if not isinstance(item, dict) or "edge_index" not in item:
        got = f"only {sorted(map(str, item))[:5]}" if isinstance(item, dict) else _kind(item)
        raise InputError("an object with edge_index", got)
    if len(item) > _MOST:
        raise InputError(f"at most {_MOST} attributes", len(item))
    graph = Data()
    for name, values in item.items():
        if name in _RESERVED or not _NAME.fullmatch(name):
            raise InputError("attributes that a network reads", repr(name)[:50])
        graph[name] = _array(name, values)
    if graph.get("x") is None and graph.get("pos") is None:
        raise InputError("x, one list of numbers per node", "none")
    return graph


def _array(name: str, values: Any) -> Tensor:
    """Whole numbers for indices, decimals for features, and what they look like for the rest."""
    if not isinstance(values, list):
        raise InputError(f"{name} as a list", _kind(values))
    try:
        found = torch.tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError):
        raise InputError(f"{name} as an array of numbers", "something else in it") from None
    if found.dim() > _MOST or found.dtype == torch.bool:
        raise InputError(f"{name} as an array of numbers", f"{found.dtype}, {found.dim()} deep")
    if "index" in name:
        if found.is_floating_point() and found.numel():
            raise InputError(f"whole numbers in {name}", "decimals")
        found = found.long()
        return found.view(2, 0) if name == "edge_index" and not found.numel() else found
    return found.float() if name in _FLOATS else found


def _kind(value: Any) -> str:
    words = {str: "a text", bool: "a truth value", dict: "an object", list: "a list"}
    return "null" if value is None else words.get(type(value), "a number")
