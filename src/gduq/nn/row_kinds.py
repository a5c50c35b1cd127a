"""Whether a value has one row per node, graph or edge: told from its size and its computation."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import Tensor

from gduq.errors import InputError
from gduq.graph import Rows, num_rows, row_kind
from gduq.nn.recording import Entry, Event, Recording

__all__ = ["kind_of_rows", "row_counts"]

# What the attributes of a graph are: rows, or (in capitals) numbers of rows.
_ATTRIBUTES = {
    **dict.fromkeys(("x", "pos", "z"), "node"),
    **dict.fromkeys(("batch", "ptr"), "GRAPHS"),
    **dict.fromkeys(("edge_index", "adj_t"), "ENDS"),
    "edge_label_index": "JUDGED",
}
_GATHERED = {"GRAPHS": "node", "ENDS": "message", "JUDGED": "edge"}  # x[index]
_SCATTERED = {"GRAPHS": "graph", "ENDS": "node"}  # sums over rows with the same index
_GATHERS = ("index_select", "__getitem__", "gather", "take_along_dim")
_PRODUCTS = ("mm", "matmul", "__matmul__", "spmm", "addmm")
_SUMMARIES = ("mean", "sum", "amax", "amin", "max", "min")
_MOVES = (  # what was a row is a row no more, or not all of them are there
    *("t", "transpose", "permute", "swapaxes", "__get__", "sort", "topk", "select", "narrow"),
    *("split", "chunk", "unbind", "masked_select", *_PRODUCTS),
)


def row_counts(graph: Any) -> dict[Rows, int]:
    """How many rows of each kind a graph has, as far as it has them."""
    found: dict[Rows, int] = {"graph": num_rows(graph, "graph")}
    if graph.get("edge_label_index") is not None:
        found["edge"] = num_rows(graph, "edge")
    with suppress(InputError):  # several node types, none of which is the one with labels
        found["node"] = num_rows(graph, "node")
    return found


def kind_of_rows(seen: Recording, entry: Entry, path: str | None, do: str) -> Rows:
    """What the rows are that a network gives, or that the submodule at ``path`` reads.

    Told from their number or, where that fits several kinds, from how they were computed (and,
    of an output, from the graph). ``do`` is what to say where it fits none.
    """
    graph = seen.graph
    count, sizes = entry.shape[0], row_counts(graph)
    where = "of the output" if path is None else f"at '{path}'"
    fits = [kind for kind, size in sizes.items() if size == count]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        have = ", ".join(f"{size} {kind}(s)" for kind, size in sizes.items())
        raise InputError(
            f"one row per node, graph or judged edge ({have}) {where}", f"{count} rows", do
        )
    kinds = [None if entry.value is None else _computed_rows(seen, entry.value)]
    if path is None:
        kinds += [row_kind(graph), "node" if graph.get("train_mask") is not None else None]
    for kind in kinds:
        if kind in fits:
            return kind
    raise InputError(
        f"a graph that shows what the {count} row(s) {where} are",
        f"one with as many {'s as '.join(fits)}s",
        "Pass a larger graph.",
    )


def _computed_rows(seen: Recording, value: int) -> Rows | None:
    """What the rows of a value with this number are; ``None`` where the pass does not show it."""
    known = {seen.number(weight): "" for weight in (*seen.net.parameters(), *seen.net.buffers())}
    for name, tensor in ((n, v) for store in seen.graph.stores for n, v in store.items()):
        if name in _ATTRIBUTES and isinstance(tensor, Tensor):
            known[seen.number(tensor)] = _ATTRIBUTES[name]
    for event in seen.events:
        found = _rows(event, known)
        if found is not None:
            known |= dict.fromkeys(event.made, found)
    answer = known.get(value)
    return answer if answer in ("node", "graph", "edge") else None  # type: ignore[return-value]


def _rows(event: Event, known: dict[int, str]) -> str | None:
    """What the rows of the values are that a call made; empty for what weights alone made."""
    read = [known.get(number) for number in event.read]
    numbers = {rows for rows in read if rows is not None and rows.isupper()}
    if numbers and read[0] in numbers and event.name not in _PRODUCTS:
        return read[0]  # a part or another shape of the numbers
    if numbers:
        effect = _GATHERED if event.name in _GATHERS else _SCATTERED
        return effect.get(numbers.pop()) if len(numbers) == 1 else None
    if not read or None in read:  # something unknown may have been an index
        return None
    kinds = {kind for kind in read if kind}
    if len(kinds) > 1:
        return None
    return _kept(event, kinds.pop() if kinds else "")


def _kept(event: Event, kind: str) -> str | None:
    """What becomes of rows in a call that reads no numbers of rows."""
    if event.name in _MOVES:
        return None
    if event.name in _GATHERS:
        first = event.args[0] if event.args else None
        first = first[0] if isinstance(first, tuple) and first else first
        return kind if first is Ellipsis or first == slice(None) else None
    over = event.over
    over = over[0] if isinstance(over, (tuple, list)) and len(over) == 1 else over
    if event.name in _SUMMARIES and over in (0, None, -len(event.before)):
        return "graph" if kind == "node" else None
    return kind
