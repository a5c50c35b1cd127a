"""Graphs as small pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gduq.metrics.structure import neighbours
from gduq.plots import to_svg
from gduq.plots.style import COLOURS, GREY

__all__ = ["CLASS_COLOURS", "draw"]

CLASS_COLOURS = (*(f"var(--s{i})" for i in range(6)), "var(--soft)")  # what `to_svg` makes of these
_COLOURS = (*COLOURS[:6], GREY)
_NODES = 60  # of one picture; more are not told apart on a phone
_STEPS = 2  # around a node
_INCHES = 2.2


def draw(graph: Any, node: int | None = None, label: str = "A graph") -> tuple[str, str]:
    """A graph, or the neighbourhood of one of its nodes, as SVG, and a note on what is left out.

    Nodes lie so that distances on paper are near those in the graph (Kamada and Kawai), or where
    the graph's ``pos`` says.

    Example:
        >>> from torch_geometric.data import Data
        >>> svg, note = draw(Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3))
        >>> svg.count("<use"), note
        (3, '3 nodes')
    """
    import scipy.sparse as sp

    source, other = (part.numpy() for part in neighbours(graph))
    total = int(graph.num_nodes)
    links = sp.csr_matrix((np.ones(len(source)), (source, other)), shape=(total, total))
    kept = _kept(links, node)
    part, shown = links[kept][:, kept], len(kept)
    own = graph.get("pos") if node is None and shown == total else None
    places = _layout(part) if own is None else own.double().numpy()[:, :2] * (1, -1)  # downwards
    svg = _picture(places, part, _node_colours(graph)[kept], kept == node, label)
    if node is None:
        return svg, f"{shown} nodes" if shown == total else f"{shown} of {total} nodes"
    near = f"{shown} nodes within {_STEPS} steps" if shown < _NODES else f"nearest {shown} nodes"
    return svg, near


def _kept(links: Any, node: int | None) -> Any:
    """Nodes to draw: near the one in question, or from the busiest one on."""
    from scipy.sparse.csgraph import dijkstra

    if node is None and links.shape[0] <= _NODES:
        return np.arange(links.shape[0])
    start = int(np.diff(links.indptr).argmax()) if node is None else node
    limit = np.inf if node is None else _STEPS
    steps = dijkstra(links, directed=False, indices=start, unweighted=True, limit=limit)
    near = np.argsort(steps, kind="stable")
    return near[np.isfinite(steps[near])][:_NODES]


def _layout(links: Any) -> Any:
    """Where to draw the nodes of a graph ``[n, 2]``, given its sparse symmetric adjacency matrix.

    The same graph gives the same picture. Parts without a path stand side by side.
    """
    import networkx as nx
    from scipy.sparse.csgraph import shortest_path

    wished = shortest_path(links, directed=False, unweighted=True)
    apart = np.isinf(wished)
    wished[apart] = wished[~apart].max() + 1.5
    number = np.arange(len(wished))  # starts on a spiral of the golden angle: no two in one place
    angle, radius = number * np.pi * (3 - 5**0.5), np.sqrt(number + 0.5)
    start = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    distances = {i: dict(enumerate(row)) for i, row in enumerate(wished.tolist())}
    graph = nx.from_scipy_sparse_array(links)
    found = nx.kamada_kawai_layout(graph, dist=distances, pos=dict(enumerate(start)))
    return np.array([found[i] for i in number], dtype=float)


def _picture(places: Any, links: Any, colours: Any, ringed: Any, label: str) -> str:
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES, _INCHES))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    ends = [(places[a], places[b]) for a, b in zip(*links.nonzero(), strict=True) if a < b]
    axes.add_collection(LineCollection(ends, colors=GREY, linewidths=0.8, alpha=0.6, zorder=1))
    size = 60 if len(places) <= 25 else 30
    if ringed.any():
        x, y = places[ringed].T
        axes.scatter(x, y, s=4 * size, facecolors="none", edgecolors="#000000", linewidths=1.6)
    for colour in np.unique(colours):
        x, y = places[colours == colour].T
        axes.scatter(x, y, s=size, c=_COLOURS[colour], edgecolors="#ffffff", linewidths=0.8)
    middle = (places.min(axis=0) + places.max(axis=0)) / 2
    reach = 1.16 * max(float(np.abs(places - middle).max()), 1e-9)
    x, y = zip(middle - reach, middle + reach, strict=True)
    axes.set(xlim=x, ylim=y)
    return to_svg(figure, label)


def _node_colours(graph: Any) -> Any:
    """A colour per node: its class where nodes have one, otherwise its one-hot type."""
    total = int(graph.num_nodes)
    y, x = graph.get("y"), graph.get("x")
    classes = isinstance(y, Tensor) and torch.equal(y, y.round())  # not values
    if classes and y.dim() > 0 and y.size(0) == total and total > 1:
        return y.reshape(total, -1)[:, 0].long().numpy() % len(_COLOURS)
    types = isinstance(x, Tensor) and x.layout == torch.strided and x.dim() == 2 and x.size(1) > 1
    if types and bool(((x == 0) | (x == 1)).all()) and bool((x.sum(dim=1) == 1).all()):
        return x.argmax(dim=1).numpy() % len(_COLOURS)
    return np.zeros(total, dtype=int)
