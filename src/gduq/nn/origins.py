"""Whether a value has one row per node, graph or edge, told from how it was computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gduq.graph import Rows
from gduq.nn.recording import Event, Recording

__all__ = ["computed_rows"]

# What the attributes of a graph are: rows, or (in capitals) numbers of rows.
_ATTRIBUTES = {
    "x": "node",
    "pos": "node",
    "z": "node",
    "batch": "GRAPHS",
    "ptr": "GRAPHS",
    "edge_index": "ENDS",
    "adj_t": "ENDS",
    "edge_label_index": "JUDGED",
}
_GATHERED = {"GRAPHS": "node", "ENDS": "message", "JUDGED": "edge"}  # x[index]
_SCATTERED = {"GRAPHS": "graph", "ENDS": "node"}  # sums over rows with the same index
_GATHERS = ("index_select", "__getitem__", "gather", "take_along_dim")
_PRODUCTS = ("mm", "matmul", "__matmul__", "spmm", "addmm")
_SUMMARIES = ("mean", "sum", "amax", "amin", "max", "min")


def computed_rows(seen: Recording, graph: Any, out: Tensor) -> Rows | None:
    """What the rows of a network's output are, or ``None`` where its pass does not show it.

    Args:
        seen: The recorded pass.
        graph: The graph that was read.
        out: The output.
    """
    known = {seen.number(tensor): _ATTRIBUTES[name] for name, tensor in _tensors(graph)}
    for event in seen.events:
        found = _rows(event, known)
        if found is not None:
            known |= dict.fromkeys(event.made, found)
    answer = known.get(seen.number(out))
    return answer if answer in ("node", "graph", "edge") else None  # type: ignore[return-value]


def _tensors(graph: Any) -> Iterator[tuple[str, Tensor]]:
    for store in graph.stores:
        for name, value in store.items():
            if name in _ATTRIBUTES and isinstance(value, Tensor):
                yield name, value


def _rows(event: Event, known: dict[int, str]) -> str | None:
    """What the rows of the values are that a call made."""
    read = [known.get(number) for number in event.read]
    numbers = {rows for rows in read if rows is not None and rows.isupper()}
    if numbers and read[0] in numbers and event.name not in _PRODUCTS:
        return read[0]  # a part or another shape of the numbers
    if numbers:
        effect = _GATHERED if event.name in _GATHERS else _SCATTERED
        return effect.get(numbers.pop()) if len(numbers) == 1 else None
    rows = {kind for kind in read if kind is not None}
    if len(rows) != 1:
        return None
    kind = rows.pop()
    over = event.kwargs.get("dim", event.args[0] if event.args else None)
    if event.name in _SUMMARIES and over in (0, (0,), [0]):
        return "graph" if kind == "node" else None
    return kind
