"""Where a network can be anchored: finding the place that `at` names, and listing all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchoring.head_point import HeadPoint
from gduq.anchoring.module_points import InputPoint, ModulePoint
from gduq.anchoring.points import GNNPoint, Point
from gduq.anchoring.recipe import Recipe
from gduq.errors import InputError, did_you_mean, warn_user
from gduq.graph import Rows, check_graph
from gduq.nn.call import ONE_PASS, Call, call_network, check_logits, evaluating
from gduq.nn.gnn import GNN
from gduq.nn.recording import kept_as_it_was, record
from gduq.nn.replay import Cut
from gduq.nn.row_kinds import kind_of_rows, row_counts
from gduq.nn.tracing import Trace, trace
from gduq.nn.trunk import Trunk, as_chain, no_place
from gduq.nn.widths import check_complete, cut_names, input_width

__all__ = ["cut_points", "make_point", "needs_graph", "point_from"]

_FOUND = ("head", "readout")  # in any network


def needs_graph(net: nn.Module, at: int | str) -> bool:
    """Whether only a pass over a graph shows where a place is; raises where there is none."""
    if as_chain(net) is not None:
        return False
    check_complete(net)
    if at not in _FOUND and (isinstance(at, bool) or not isinstance(at, int)):
        _check_name(net, at)
    return True


def make_point(
    net: nn.Module, recipe: Recipe, call: Call | None, graph: Any, trunk: Trunk | None = None
) -> Point:
    """The point of a network (which it changes) that a recipe names.

    The graph is one that the network takes; a `GNN` needs none. A frozen head may stand on a trunk
    that it shares with other models.
    """
    if recipe.freeze and recipe.at in _FOUND:
        found = Trunk.of(net, graph, call) if trunk is None else trunk
        if found.has_head:
            return HeadPoint(found, branch=recipe.at == "head")
    chain = as_chain(net)
    if chain is not None:
        return GNNPoint(chain, _chain_place(chain, recipe.at), keep=recipe.init == "identity")
    check_complete(net)
    seen = trace(net, graph, call)
    if seen.head is None and seen.ending is None:  # else it is known to give logits
        with torch.no_grad(), evaluating(net):
            check_logits(call_network(net, graph, call), known=not seen.bounded)
    if recipe.at == "input":
        return InputPoint(net, call, seen.rows, seen.ending)
    matters = cache(partial(_matters, net, graph, call))
    path = _path(net, seen, recipe.at, matters)
    if recipe.at in _FOUND and seen.rescaled is not None:
        warn_user(
            f"no head was found, since {type(net).__name__} rescales its outputs at the end; "
            f"anchored at '{path}' instead (pass at='{seen.rescaled}' with freeze=True to anchor "
            "the head, or let the network return its outputs before they are rescaled)"
        )
    rows = _rows_at(net, path, seen, graph, call)
    if not matters(path):
        raise InputError(
            "a place that the outputs of evaluation mode depend on",
            f"at='{path}', which changes nothing there",
            "See gduq.cut_points(net, graph) for others.",
        )
    return ModulePoint(net, path, call, rows, seen.rows, seen.ending)


def _chain_place(chain: GNN, at: int | str) -> Any:
    place, inner = "readout" if at == "head" else at, chain.points[:-1]
    if isinstance(place, int) and -len(inner) <= place < 0:
        place = inner[place]
    if place not in chain.points or isinstance(place, bool):
        known = ", ".join(map(repr, chain.points))
        raise InputError(f"at one of 'head', {known}", repr(at))
    return place


def _path(net: nn.Module, seen: Trace, at: int | str, matters: Callable[[str], bool]) -> str:
    """The submodule that reads the pair; of layers at the end only one that matters."""
    if at in _FOUND:
        if seen.head is not None:
            return seen.head.path
        if seen.layers:  # the last layer is a convolution: its input
            return _last(seen.layers, matters)
        raise no_place(net)
    if isinstance(at, int) and not isinstance(at, bool):
        many = len(seen.layers)
        if -many <= at < many:
            return _last(seen.layers, matters) if at == -1 else seen.layers[at]
        raise InputError(
            f"a layer from 0 to {many - 1} (or -{many} to -1) as at",
            at,
            f"The layers of message passing are {', '.join(seen.layers) or 'none'}.",
        )
    return _check_name(net, at)


def _last(layers: Sequence[str], matters: Callable[[str], bool]) -> str:
    return next(filter(matters, layers[::-1]), layers[-1])


def _matters(net: nn.Module, graph: Any, call: Call | None, path: str) -> bool:
    """Whether the outputs of evaluation mode depend on what a submodule reads."""

    def out(change: Callable[[Any], Any]) -> Tensor:
        with ONE_PASS, kept_as_it_was(net), evaluating(net), torch.no_grad():
            return Cut(path).run(net, graph, call, change)

    try:
        if bool(out(lambda h: h * math.nan).isnan().any()):
            return True
        return not torch.equal(out(lambda h: 1 - 2 * h), out(lambda h: h))  # it may drop NaN
    except Exception:  # a network may refuse any other numbers than its own
        return True


def _check_name(net: nn.Module, at: Any) -> str:
    names = list(dict.fromkeys(["head", "input", *cut_names(net)]))
    if not isinstance(at, str) or at not in names:
        do = did_you_mean(at, names, otherwise="")
        raise InputError(f"at one of {', '.join(map(repr, names))}", repr(at), do)
    return at


def _rows_at(net: nn.Module, path: str, seen: Trace, graph: Any, call: Call | None) -> Rows:
    """What the rows are that a submodule reads."""
    if seen.head is not None and path == seen.head.path:
        return seen.rows
    if path in seen.layers:
        return "node"
    do = "See gduq.cut_points(net, graph) for the places one can anchor at."
    passed = record(net, graph, call)
    entries = passed.entered.get(path, [])
    if len(entries) != 1:
        raise InputError(f"'{path}' to be called once in a pass", f"{len(entries)} calls", do)
    shape, value = entries[0]
    if value is None or len(shape) != 2:
        got = f"shape {list(shape)}" if shape else "something else"
        raise InputError(f"'{path}' to read a float matrix [rows, d]", got, do)
    return kind_of_rows(passed, entries[0], path, do)


def point_from(spec: Mapping[str, Any], net: nn.Module, call: Call | None) -> Point:
    """The point of a fresh network that `Point.spec` described."""
    kind = spec["kind"]
    if kind == "chain":
        return GNNPoint(net, spec["at"], spec["keep"])  # type: ignore[arg-type]
    if kind == "input":
        return InputPoint(net, call, spec["answers"], spec["ending"])
    if kind == "module":
        return ModulePoint(net, spec["path"], call, spec["rows"], spec["answers"], spec["ending"])
    if kind == "head":
        trunk = Trunk.from_spec(spec["trunk"], net, call)
        return HeadPoint(trunk, spec["branch"], spec["values"])
    raise InputError("a kind of point this gduq knows", repr(kind), "Upgrade gduq.")


def cut_points(
    net: nn.Module, graph: Any, call: Call | None = None
) -> list[tuple[int | str, tuple[int, int]]]:
    """Where a network can be anchored: names for ``at``, with the shape ``(rows, d)`` there.

    Run on a graph that the network takes; ``call`` is as in `gduq.anchor`.

    Example:
        >>> from torch_geometric.data import Data
        >>> from gduq.nn import GNN
        >>> graph = Data(x=torch.ones(3, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> cut_points(GNN(4, 8, 2, num_layers=2, conv="gcn"), graph)
        [('input', (3, 4)), (1, (3, 8)), ('readout', (1, 8))]
    """
    chain = as_chain(net)
    if chain is not None:
        with torch.no_grad(), evaluating(net):
            shapes = [(point, chain.prefix(graph, point)[0].shape) for point in chain.points]
        return [(point, (shape[0], shape[1])) for point, shape in shapes]
    check_graph(graph)
    found: list[tuple[int | str, tuple[int, int]]] = []
    x = graph.get("x") if hasattr(graph, "get") else None
    if isinstance(x, Tensor) and x.is_floating_point() and x.size(1) == input_width(net):
        found.append(("input", (x.size(0), x.size(1))))
    names, sizes = set(cut_names(net)), row_counts(graph).values()
    for name, entries in record(net, graph, call).entered.items():
        shape = entries[0].shape
        if name not in names or len(entries) != 1 or len(shape) != 2 or shape[0] not in sizes:
            continue
        if shape[1] == input_width(net.get_submodule(name)):
            found.append((name, (shape[0], shape[1])))
    return found
