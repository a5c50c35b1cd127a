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
from gduq.plots import to_svg
from gduq.plots.style import COLOURS, GREY
from gduq.report import row_words
from gduq.report.molecules import draw_molecule, nearest, smiles_of
from gduq.report.subject import Subject

__all__ = ["Example", "Kind", "Relative", "colour_legend", "draw", "drawn", "examples"]

Kind = Literal["novel", "uncertain", "wrong"]
_NODES = 60  # of one picture; more are not told apart on a phone
_STEPS = 2  # around a node
_LONG = 28  # letters of a SMILES string in a title
_INCHES = 2.2
_COLOURS = (*COLOURS[:6], GREY)
_DRAWN = 3  # subjects whose graphs are drawn


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


def drawn(subjects: Sequence[Subject], split: str | None) -> list[dict[str, Any]]:
    """Drawn rows of the first few subjects, by kind."""
    found = []
    for subject in subjects[:_DRAWN]:
        if split is None or split not in subject.predictions:
            continue
        kinds: tuple[Kind, ...] = ("novel", "uncertain", "wrong")
        shown: dict[str, Any] = {kind: examples(subject, split, kind) for kind in kinds}
        if shown["uncertain"]:
            score = row_words.uncertainty_name(subject, split)
            found.append({"name": subject.name, "score": score, **shown})
    return found


def _view(subject: Subject, split: str) -> View | None:
    if subject.splits is None:
        return None
    view = getattr(subject.splits, split, None) or subject.splits.severities.get(split)
    fits = isinstance(view, View) and len(view) == len(subject.predictions[split])
    return view if fits else None


def _rows(subject: Subject, split: str, kind: Kind) -> list[int]:
    if kind == "wrong":
        return row_words.certain_errors(subject, split)
    if kind == "novel":
        novelty = subject.predictions[split].novelty
        if novelty is None:
            return []
        return [int(i) for i in novelty.argsort(descending=True, stable=True)]
    order = row_words.uncertainty(subject, split).argsort(descending=True, stable=True)
    return [int(i) for i in order]


def _example(subject: Subject, split: str, view: View, row: int) -> Example:
    p = subject.predictions[split]
    graph, node = _place(view, row)
    title = _title(graph, row) if node is None else f"Node {node}"
    said, truth = row_words.said(subject, split, row), row_words.truth(subject, split, row)
    wrong = p.target is not None and bool(row_words.wrong(subject, split)[row])
    figures = row_words.amount(subject, split, row)
    if p.novelty is not None:
        figures = f"novelty {float(p.novelty[row]):.2f}, {figures}"
    words = f"{title} of {split}: {subject.name} says {said}, true is {truth}, {figures}"
    smiles = smiles_of(graph) if node is None else None
    svg = None if smiles is None else draw_molecule(smiles, words)
    if smiles is not None and svg is not None:
        return Example(title, svg, said, truth, wrong, figures, smiles=smiles)
    svg, note = draw(graph, node, words)
    return Example(title, svg, said, truth, wrong, figures, note, smiles or "")


def _title(graph: Any, row: int) -> str:
    """What a graph is called: its id in the table or, of a molecule without one, its SMILES."""
    known = graph.get("id")
    if isinstance(known, str) and known:
        return known
    smiles = smiles_of(graph)
    if smiles is None:
        return f"Graph {row}"
    return smiles if len(smiles) <= _LONG else f"{smiles[: _LONG - 1]}…"


def _relatives(subject: Subject, split: str, smiles: str) -> tuple[Relative, ...]:
    """The training compounds most like a molecule, drawn; none where they are not known."""
    train = subject.splits.train if subject.splits is not None else None
    found = []
    for near in [] if train is None or train.rows is not None else nearest(smiles, train):
        words = f"similarity {near.similarity:.2f}"
        truth = (
            row_words.of_target(subject, split, train.graphs[near.row].get("y")) if train else ""
        )
        if truth:
            words = f"{words}, true {truth}"
        name = _title(train.graphs[near.row], near.row) if train else ""
        words = f"{name}: {words}" if name and name != near.smiles else words
        svg = draw_molecule(near.smiles, f"Training compound {words}")
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
    part = links[kept][:, kept]
    own = graph.get("pos") if node is None and len(kept) == total else None
    places = layout(part) if own is None else own.double().numpy()[:, :2] * (1, -1)  # downwards
    svg = _picture(places, part, _node_colours(graph)[kept], kept == node, label)
    return svg, _note(len(kept), total, node)


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
    (left, low), (right, high) = middle - reach, middle + reach
    axes.set(xlim=(left, right), ylim=(low, high))
    return to_svg(figure, label)


def layout(links: Any) -> Any:
    """Where to draw the nodes of a graph ``[n, 2]``, given its sparse symmetric adjacency matrix.

    The same graph gives the same picture. Parts without a path stand side by side.
    """
    import networkx as nx
    from scipy.sparse.csgraph import shortest_path

    wished = shortest_path(links, directed=False, unweighted=True)
    apart = np.isinf(wished)
    wished[apart] = wished[~apart].max() + 1.5
    distances = {i: dict(enumerate(row)) for i, row in enumerate(wished.tolist())}
    graph = nx.from_scipy_sparse_array(links)
    found = nx.kamada_kawai_layout(graph, dist=distances, pos=_start(len(wished)))
    return np.array([found[i] for i in range(len(wished))], dtype=float)


def _start(total: int) -> dict[int, Any]:
    """A spiral, turned by the golden angle from node to node, so that none start in one place."""
    number = np.arange(total)
    angle, radius = number * np.pi * (3 - 5**0.5), np.sqrt(number + 0.5)
    places = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return dict(enumerate(places))


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
    """A colour per node: its class where nodes have one, otherwise its one-hot type."""
    total = int(graph.num_nodes)
    y, x = graph.get("y"), graph.get("x")
    classes = isinstance(y, Tensor) and torch.equal(y, y.round())  # not values
    if classes and y.dim() > 0 and y.size(0) == total and total > 1:
        return y.reshape(total, -1)[:, 0].long().numpy() % len(_COLOURS)
    if isinstance(x, Tensor) and x.layout == torch.strided and x.dim() == 2 and x.size(1) > 1:
        one_hot = bool(((x == 0) | (x == 1)).all()) and bool((x.sum(dim=1) == 1).all())
        if one_hot:
            return x.argmax(dim=1).numpy() % len(_COLOURS)
    return np.zeros(total, dtype=int)


def colour_legend(subjects: Sequence[Subject], split: str) -> tuple[tuple[str, str], ...]:
    """Class names and their colours, for node tasks."""
    for subject in subjects:
        view = _view(subject, split)
        if subject.kind == "classes" and view is not None and view.rows is not None:
            p = subject.predictions[split]
            classes = range(min(p.num_classes, len(_COLOURS)))
            return tuple(
                (subject.class_name(c, split), f"var(--s{c})" if c < 6 else "var(--soft)")
                for c in classes
            )
    return ()
