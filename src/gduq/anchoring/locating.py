"""Where a network can be anchored: finding the place that `at` names, and listing all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchoring.cuts import CutPoint, GNNCut, ModuleCut
from gduq.anchoring.head import HeadCut
from gduq.anchoring.recipe import Recipe
from gduq.errors import InputError, did_you_mean, warn_user
from gduq.graphs import Graph, Rows
from gduq.nn.gnn import GNN, as_chain
from gduq.tracing.call import (
    Call,
    call_network,
    check_complete,
    check_logits,
    copied,
    cut_names,
    evaluating,
    input_width,
)
from gduq.tracing.trace import Trace, infer_row_kind, row_counts, trace
from gduq.tracing.trunk import Trunk, no_place, run_through

__all__ = ["cut_from", "cut_points", "needs_graph", "resolve_cut"]

_FOUND = ("head", "readout")  # in any network
_ADVICE = "See gduq.cut_points(net, graph) for the places one can anchor at."


def needs_graph(net: nn.Module, at: int | str) -> bool:
    """Whether only a pass over a graph shows where a place is; raises where there is none."""
    if as_chain(net) is not None:
        return False
    check_complete(net)
    if at not in _FOUND and (isinstance(at, bool) or not isinstance(at, int)):
        _check_name(net, at)
    return True


def resolve_cut(
    net: nn.Module,
    recipe: Recipe,
    call: Call | None,
    graph: Graph | None,
    trunk: Trunk | None = None,
) -> CutPoint:
    """The point of a network (which it changes) that a recipe names.

    The graph is one that the network takes; a `GNN` needs none. A frozen head may stand on a trunk
    that it shares with other models.
    """
    chain = as_chain(net)
    seen: Trace | None = None
    if trunk is None and chain is None:
        check_complete(net)
        assert graph is not None
        seen = trace(net, graph, call)
    if recipe.freeze and recipe.at in _FOUND:
        found = trunk
        if found is None:
            found = Trunk.of(net) if seen is None else Trunk.from_trace(net, seen, call)
        if found is not None and found.has_head:
            return HeadCut(found, branch=recipe.at == "head")
    if chain is not None:
        return GNNCut(chain, _chain_place(chain, recipe.at), keep=recipe.init == "identity")
    assert graph is not None
    return _module_cut(net, recipe.at, call, graph, seen or trace(net, graph, call))


def _module_cut(
    net: nn.Module, at: int | str, call: Call | None, graph: Graph, seen: Trace
) -> ModuleCut:
    if seen.head is None and seen.ending is None:  # else it is known to give logits
        with torch.no_grad(), evaluating(net):
            check_logits(call_network(net, graph, call), known=not seen.bounded)
    if at == "input":
        return ModuleCut(net, "", call, "node", seen.rows, seen.ending)
    matters = cache(partial(_matters, net, graph, call))
    path = _path(net, seen, at, matters)
    if at in _FOUND and seen.rescaled is not None:
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
    names = list(seen.calls)
    before = [name for name in names[: names.index(path)] if not f"{path}.".startswith(f"{name}.")]
    return ModuleCut(net, path, call, rows, seen.rows, seen.ending, before)


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
    if at in _FOUND and seen.head is not None:
        return seen.head.path
    if at in _FOUND and not seen.layers:
        raise no_place(net)
    if at in _FOUND or at == -1:  # the last layer is a convolution: its input
        return next(filter(matters, seen.layers[::-1]), seen.layers[-1])
    if isinstance(at, int) and not isinstance(at, bool):
        many = len(seen.layers)
        if -many <= at < many:
            return seen.layers[at]
        raise InputError(
            f"a layer from 0 to {many - 1} (or -{many} to -1) as at",
            at,
            f"The layers of message passing are {', '.join(seen.layers) or 'none'}.",
        )
    return _check_name(net, at)


def _matters(net: nn.Module, graph: Graph, call: Call | None, path: str) -> bool:
    """Whether the outputs of evaluation mode depend on what a submodule reads."""

    def out(change: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            return run_through(copied(net).eval(), path, graph, call, change)

    try:
        if bool(out(lambda h: h * math.nan).isnan().any()):
            return True
        return not torch.equal(out(lambda h: 1 - 2 * h), out(lambda h: h))  # it may drop NaN
    except Exception:  # a network may refuse any other numbers than its own
        return True


def _check_name(net: nn.Module, at: object) -> str:
    names = list(dict.fromkeys(["head", "input", *cut_names(net)]))
    if not isinstance(at, str) or at not in names:
        do = did_you_mean(at, names, otherwise="")
        raise InputError(f"at one of {', '.join(map(repr, names))}", repr(at), do)
    return at


def _rows_at(net: nn.Module, path: str, seen: Trace, graph: Graph, call: Call | None) -> Rows:
    """What the rows are that a submodule reads."""
    if seen.head is not None and path == seen.head.path:
        return seen.rows
    if path in seen.layers:
        return "node"
    shapes = seen.calls.get(path, [])
    if len(shapes) != 1:
        raise InputError(f"'{path}' to be called once in a pass", f"{len(shapes)} calls", _ADVICE)
    if len(shapes[0]) != 2:
        got = f"shape {list(shapes[0])}" if shapes[0] else "something else"
        raise InputError(f"'{path}' to read a float matrix [rows, d]", got, _ADVICE)
    return infer_row_kind(net, graph, call, shapes[0][0], path)


def cut_from(spec: Mapping[str, Any], net: nn.Module, call: Call | None) -> CutPoint:
    """The point of a fresh network that `CutPoint.spec` described."""
    options = dict(spec)
    kind = options.pop("kind")
    if kind == "chain":
        return GNNCut(net, options["at"], options["keep"])  # type: ignore[arg-type]
    if kind == "module":
        return ModuleCut(net, call=call, **options)
    if kind == "head":
        trunk = Trunk.from_spec(options["trunk"], net, call)
        return HeadCut(trunk, options["branch"], options["values"])
    raise InputError("a kind of point this gduq knows", repr(kind), "Upgrade gduq.")


def cut_points(
    net: nn.Module, graph: Graph, call: Call | None = None
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
    calls = trace(net, graph, call).calls
    found: list[tuple[int | str, tuple[int, int]]] = []
    x = graph.get("x")
    if isinstance(x, Tensor) and x.is_floating_point() and x.size(1) == input_width(net):
        found.append(("input", (x.size(0), x.size(1))))
    names, sizes = set(cut_names(net)), row_counts(graph).values()
    for name, read in calls.items():
        shape = read[0]
        if name not in names or len(read) != 1 or len(shape) != 2 or shape[0] not in sizes:
            continue
        if shape[1] == input_width(net.get_submodule(name)):
            found.append((name, (shape[0], shape[1])))
    return found
