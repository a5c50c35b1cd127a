"""Where can I anchor? `cut_points` runs a network once and lists the places."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.graph import check_graph, num_graphs
from gduq.nn.call import Call, call_network
from gduq.nn.cut import evaluating
from gduq.nn.gnn import GNN
from gduq.nn.replay import first_input
from gduq.nn.widths import anchor_names, input_width

__all__ = ["cut_points"]


def cut_points(
    net: nn.Module, graph: Data, call: Call | None = None
) -> list[tuple[int | str, tuple[int, int]]]:
    """Where a network can be anchored: names for ``at``, with the shape ``(rows, d)`` there.

    Args:
        net: A `GNN`, or any module.
        graph: A graph it takes.
        call: As in `gduq.anchor`.

    Example:
        >>> graph = Data(x=torch.ones(3, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> cut_points(GNN(4, 8, 2, num_layers=2, conv="gcn"), graph)
        [('input', (3, 4)), (1, (3, 8)), ('readout', (1, 8))]
    """
    found: list[tuple[int | str, tuple[int, int]]] = []
    with torch.no_grad(), evaluating(net):
        if isinstance(net, GNN):
            for point in net.points:
                rows, width = net.prefix(graph, point)[0].shape
                found.append((point, (rows, width)))
            return found
        check_graph(graph)
        x = graph.get("x")
        if x is not None and x.is_floating_point() and x.size(1) == input_width(net):
            found.append(("input", (graph.x.size(0), graph.x.size(1))))
        return found + _module_points(net, graph, call)


def _module_points(
    net: nn.Module, graph: Data, call: Call | None
) -> list[tuple[int | str, tuple[int, int]]]:
    seen: dict[str, list[tuple[int, ...]]] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            h = first_input(args, kwargs)
            shape = tuple(h.shape) if isinstance(h, Tensor) and h.is_floating_point() else ()
            seen.setdefault(name, []).append(shape)

        return hook

    names = set(anchor_names(net))
    handles = [
        module.register_forward_pre_hook(watch(name), with_kwargs=True)
        for name, module in net.named_modules()
        if name in names
    ]
    try:
        call_network(net, graph, call)
    finally:
        for handle in handles:
            handle.remove()
    sizes = (graph.num_nodes, num_graphs(graph))  # rows must be nodes or graphs
    return [
        (name, (shapes[0][0], shapes[0][1]))
        for name, shapes in seen.items()
        if len(shapes) == 1
        and len(shapes[0]) == 2
        and shapes[0][0] in sizes
        and shapes[0][1] == input_width(net.get_submodule(name))
    ]
