"""From the JSON of a request to graphs; nothing in it is ever run or looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.smiles import RDKitProcess
from gduq.deploy.running import Limits
from gduq.errors import InputError, one_line
from gduq.graph import check_graph

__all__ = ["Asked", "Query", "Refused", "Sized", "graphs_from", "read_query"]

Asked = tuple[str, Any]  # "smiles" or "graph", and what the request holds


class Refused(Exception):
    """A request that is not answered: an HTTP status and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Sized(NamedTuple):
    """A graph with the numbers of its nodes and edges."""

    graph: Data
    nodes: int
    edges: int


_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
# what labels or arranges rows is not for a request to say
_RESERVED = {"y", "batch", "ptr", "batch_size", "num_nodes", "smiles"}
_RESERVED |= {"edge_label", "edge_label_index", "edge_row_mask", "row_mask", "row_kind", "row_type"}
_FLOATS = ("x", "edge_attr", "edge_weight", "pos")
_MOST = 8  # attributes of a graph, and dimensions of one of them
# Entries are looked at one by one, so that a bad one does not spoil the rest.
_Texts = Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"type": "string"}})]
_Objects = Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"type": "object"}})]


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


def read_query(body: bytes, limits: Limits) -> list[Asked]:
    """The items of a request, not yet looked at.

    Example:
        >>> read_query(b'{"smiles": ["CCO"]}', Limits())
        [('smiles', 'CCO')]
        >>> read_query(b'{"files": ["/etc/passwd"]}', Limits())
        Traceback (most recent call last):
        ...
        gduq.deploy.http_reading.Refused: expected smiles or graphs, got 'files'
    """
    try:
        query = Query.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise Refused(422, f"expected smiles or graphs, got {place[:100]!r}") from None
        reason = f"{place}: {first['msg']}" if place else first["msg"]
        raise Refused(422, reason[:300]) from None
    given = {"smiles": query.smiles, "graph": query.graphs}
    found = [(kind, item) for kind, items in given.items() for item in items or ()]
    if sum(items is not None for items in given.values()) != 1:
        raise Refused(422, "expected one of the lists smiles and graphs, got both or neither")
    if len(found) > limits.graphs:
        raise Refused(413, f"expected at most {limits.graphs} graphs, got {len(found)}")
    return found


def graphs_from(
    requests: Sequence[Sequence[Asked]], limits: Limits, rdkit: RDKitProcess
) -> list[list[Sized | str]]:
    """Per item of each request a sound graph with its size, or the reason why it is none.

    RDKit is asked once for all requests; one that keeps it busy takes nothing from the others.

    Example:
        >>> item = ("graph", {"x": [[1, 0]], "edge_index": [[0], [1]]})
        >>> graphs_from([[item]], Limits(), RDKitProcess())
        [['expected edge_index with node numbers from 0 to 0, got 0 to 1.']]
    """
    texts = [
        [value.strip() for kind, value in items if kind == "smiles" and not _flaw(value, limits)]
        for items in requests
    ]
    found = rdkit.read(texts) if any(texts) else [[] for _ in requests]
    return [
        [_tried(kind, value, limits, molecules) for kind, value in items]
        for items, molecules in zip(requests, map(iter, found), strict=True)
    ]


def _tried(kind: str, value: Any, limits: Limits, molecules: Iterator[Data | str]) -> Sized | str:
    try:
        if kind == "graph":
            found = _sized(_from_arrays(value), limits)
            check_graph(found.graph)
            return found
        molecule = _flaw(value, limits) or next(molecules)  # what RDKit makes is sound
        return molecule if isinstance(molecule, str) else _sized(molecule, limits)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        return one_line(error)


def _sized(graph: Data, limits: Limits) -> Sized:
    nodes, edges = int(graph.num_nodes or 0), graph.edge_index.size(-1)
    for name, count, most in (("nodes", nodes, limits.nodes), ("edges", edges, limits.edges)):
        if count > most:
            raise InputError(f"a graph of at most {most} {name}", count)
    return Sized(graph, nodes, edges)


def _flaw(value: Any, limits: Limits) -> str:
    """Why something is no text to read as SMILES."""
    if not isinstance(value, str):
        return f"expected a SMILES text, got {_kind(value)}."
    if len(value) > limits.smiles:
        most = f"at most {limits.smiles} characters"
        return f"expected a SMILES string of {most}, got {len(value)}."
    return ""


def _from_arrays(item: Any) -> Data:
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
