"""Graphs as small pictures: the most novel, the least sure, the most confident errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gduq.data.view import View
from gduq.metrics.structure import neighbours
from gduq.report import told
from gduq.report.molecules import draw_molecule, nearest, smiles_of
from gduq.report.subject import Subject
from gduq.report.svg import picture, tag

__all__ = ["Example", "Kind", "Relative", "colour_legend", "draw", "examples", "layout"]

Kind = Literal["novel", "uncertain", "wrong"]
_NODES = 60  # of one picture; more are not told apart on a phone
_STEPS = 2  # around a node
_SIZE = 200.0
_COLOURS = 7


@dataclass(frozen=True)
class Relative:
    """A training compound like a drawn one: the picture, which it is, how alike, and its truth."""

    svg: str
    smiles: str
    figures: str


@dataclass(frozen=True)
class Example:
    """A drawn row: the picture, what the model said, and what is true."""

    title: str
    svg: str
    said: str
    truth: str
    wrong: bool
    figures: str
    note: str = ""
    smiles: str = ""
    relatives: tuple[Relative, ...] = ()


def examples(subject: Subject, split: str, kind: Kind, count: int = 4) -> list[Example]:
    """The most novel rows, those a model is least sure of, or its most confident errors, drawn.

    Empty where the graphs, or their novelty, are not known. Molecules are drawn as such, the most
    novel ones with the training compounds that are most like them.
    """
    view = _view(subject, split)
    if view is None:
        return []
    found = []
    for row in _rows(subject, split, kind)[:count]:
        example = _example(subject, split, view, row)
        if kind == "novel" and example.smiles:
            example = replace(example, relatives=_relatives(subject, split, example.smiles))
        found.append(example)
    return found


def _view(subject: Subject, split: str) -> View | None:
    if subject.splits is None:
        return None
    view = getattr(subject.splits, split, None) or subject.splits.severities.get(split)
    fits = isinstance(view, View) and len(view) == len(subject.predictions[split])
    return view if fits else None


def _rows(subject: Subject, split: str, kind: Kind) -> list[int]:
    if kind == "wrong":
        return told.certain_errors(subject, split)
    if kind == "novel":
        novelty = subject.predictions[split].novelty
        if novelty is None:
            return []
        return [int(i) for i in novelty.argsort(descending=True, stable=True)]
    order = told.uncertainty(subject, split).argsort(descending=True, stable=True)
    return [int(i) for i in order]


def _example(subject: Subject, split: str, view: View, row: int) -> Example:
    p = subject.predictions[split]
    graph, node = _place(view, row)
    title = f"Graph {row}" if node is None else f"Node {node}"
    said, truth = told.said(subject, split, row), told.truth(subject, split, row)
    wrong = p.target is not None and bool(told.wrong(subject, split)[row])
    figures = told.amount(subject, split, row)
    if p.novelty is not None:
        figures = f"novelty {float(p.novelty[row]):.2f}, {figures}"
    words = f"{title} of {split}: {subject.name} says {said}, true is {truth}, {figures}"
    smiles = smiles_of(graph) if node is None else None
    svg = None if smiles is None else draw_molecule(smiles, words)
    if smiles is not None and svg is not None:
        return Example(title, svg, said, truth, wrong, figures, smiles=smiles)
    svg, note = draw(graph, node, words)
    return Example(title, svg, said, truth, wrong, figures, note, smiles or "")


def _relatives(subject: Subject, split: str, smiles: str) -> tuple[Relative, ...]:
    """The training compounds most like a molecule, drawn; none where they are not known."""
    train = subject.splits.train if subject.splits is not None else None
    found = []
    for near in [] if train is None or train.rows is not None else nearest(smiles, train):
        words = f"similarity {near.similarity:.2f}"
        truth = told.of_target(subject, split, train.graphs[near.row].get("y")) if train else ""
        if truth:
            words = f"{words}, true {truth}"
        svg = draw_molecule(near.smiles, f"Training compound {near.row}: {words}")
        if svg is not None:
            found.append(Relative(svg, near.smiles, words))
    return tuple(found)


def _place(view: View, row: int) -> tuple[Any, int | None]:
    """The graph of a row and, in a node task, the number of its node there."""
    if view.rows is None:
        return view.graphs[row], None
    number = int(torch.nonzero(view.rows).flatten()[row])
    for graph in view.graphs:
        if number < int(graph.num_nodes or 0):
            return graph, number
        number -= int(graph.num_nodes or 0)
    raise IndexError(row)  # a View has as many mask entries as nodes


# -- the picture ---------------------------------------------------------------------------------


def draw(graph: Any, node: int | None = None, label: str = "A graph") -> tuple[str, str]:
    """A graph, or the neighbourhood of one of its nodes, as SVG, and a note on what is left out.

    Example:
        >>> from torch_geometric.data import Data
        >>> svg, note = draw(Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3))
        >>> svg.count("<circle"), svg.count("<line"), note
        (3, 2, '3 nodes')
    """
    import scipy.sparse as sp

    source, other = (part.numpy() for part in neighbours(graph))
    total = int(graph.num_nodes)
    links = sp.csr_matrix((np.ones(len(source)), (source, other)), shape=(total, total))
    kept = _kept(links, node)
    part = links[kept][:, kept]
    own = graph.get("pos") if node is None and len(kept) == total else None
    places = _fitted(layout(part) if own is None else _flat(own))
    ends = [(a, b) for a, b in zip(*part.nonzero(), strict=True) if a < b]
    body = "".join(_edge(places[a], places[b]) for a, b in ends)
    colours, radius = _node_colours(graph)[kept], 6.0 if len(kept) <= 25 else 4.5
    for i, (x, y) in enumerate(places.tolist()):
        if kept[i] == node:
            body += tag("circle", cx=x, cy=y, r=radius + 4, class_="ring")
        body += tag("circle", cx=x, cy=y, r=radius, class_=f"node n{colours[i]}")
    return picture(body, _SIZE, _SIZE, label), _note(len(kept), total, node)


def _edge(a: Any, b: Any) -> str:
    return tag(
        "line", x1=float(a[0]), y1=float(a[1]), x2=float(b[0]), y2=float(b[1]), class_="edge"
    )


def _note(shown: int, total: int, node: int | None) -> str:
    if node is not None:
        return (
            f"{shown} nodes within {_STEPS} steps" if shown < _NODES else f"nearest {shown} nodes"
        )
    return f"{shown} nodes" if shown == total else f"{shown} of {total} nodes"


def _kept(links: Any, node: int | None) -> Any:
    """Nodes to draw: near the one in question, or from the busiest one on."""
    from scipy.sparse.csgraph import breadth_first_order

    total = links.shape[0]
    if node is None and total <= _NODES:
        return np.arange(total)
    start = node if node is not None else int(np.diff(links.indptr).argmax())
    order, before = breadth_first_order(links, start, directed=False)
    depth = np.zeros(total, dtype=int)
    for i in order[1:]:
        depth[i] = depth[before[i]] + 1
    near = order[depth[order] <= _STEPS] if node is not None else order
    return near[:_NODES]


def _node_colours(graph: Any) -> Any:
    """A colour a node: its class where nodes have one, otherwise its one-hot type."""
    total = int(graph.num_nodes)
    y, x = graph.get("y"), graph.get("x")
    classes = isinstance(y, Tensor) and torch.equal(y, y.round())  # not values
    if classes and y.dim() > 0 and y.size(0) == total and total > 1:
        return y.reshape(total, -1)[:, 0].long().numpy() % _COLOURS
    if isinstance(x, Tensor) and x.layout == torch.strided and x.dim() == 2 and x.size(1) > 1:
        one_hot = bool(((x == 0) | (x == 1)).all()) and bool((x.sum(dim=1) == 1).all())
        if one_hot:
            return x.argmax(dim=1).numpy() % _COLOURS
    return np.zeros(total, dtype=int)


def _flat(pos: Tensor) -> Any:
    """Positions that came with the graph; pictures count downwards, as images do."""
    return pos.double().numpy()[:, :2]


def _fitted(places: Any) -> Any:
    """Places moved into the picture, with their shape kept."""
    edge = 16.0
    low, high = places.min(axis=0), places.max(axis=0)
    scale = (_SIZE - 2 * edge) / max(float((high - low).max()), 1e-9)
    return _SIZE / 2 + (places - (low + high) / 2) * scale


def layout(links: Any, steps: int = 150) -> Any:
    r"""Where to draw the nodes of a graph: distances on paper near distances in the graph.

    Lowers :math:`\sum_{i<j} d_{ij}^{-2} (\lVert x_i - x_j \rVert - d_{ij})^2`, with shortest paths
    :math:`d_{ij}`, by majorisation from a fixed start: the same graph gives the same picture.

    Args:
        links: A sparse symmetric adjacency matrix ``[n, n]``.
        steps: Rounds of majorisation.

    Returns:
        Places ``[n, 2]``.
    """
    from scipy.sparse.csgraph import shortest_path

    total = links.shape[0]
    if total == 1:
        return np.zeros((1, 2))
    wished = shortest_path(links, directed=False, unweighted=True)
    finite = wished[np.isfinite(wished)]
    wished[~np.isfinite(wished)] = finite.max() + 1.5  # parts without a path stand side by side
    np.fill_diagonal(wished, 1.0)
    weight = wished**-2.0
    np.fill_diagonal(weight, 0.0)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.pinv(laplacian)
    places = _start(total)
    for _ in range(steps):
        gap = np.linalg.norm(places[:, None] - places[None], axis=2)
        pull = weight * wished / np.where(gap > 1e-9, gap, np.inf)
        places = inverse @ ((np.diag(pull.sum(axis=1)) - pull) @ places)
    return places


def _start(total: int) -> Any:
    """A spiral, turned by the golden angle from node to node, so that none start in one place."""
    number = np.arange(total)
    angle, radius = number * np.pi * (3 - 5**0.5), np.sqrt(number + 0.5)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def colour_legend(subjects: Sequence[Subject], split: str) -> tuple[tuple[str, str], ...]:
    """Class names and their colours, for node tasks."""
    for subject in subjects:
        view = _view(subject, split)
        if subject.kind == "classes" and view is not None and view.rows is not None:
            p = subject.predictions[split]
            classes = range(min(p.num_classes, _COLOURS))
            return tuple((subject.class_name(c, split), f"n{c}") for c in classes)
    return ()
