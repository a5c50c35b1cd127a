"""Datasets that are generated as in GOOD (NeurIPS 2022), and Laplacian encodings.

Motif: a base graph of a given width, a five-node motif tied to a random base node by one edge, and
a few noise edges; **the motif is the last five nodes** and the class. A tenth of the labels is
drawn anew: at most 93.3 % can be right. CBAS: one graph, of which 300 nodes of preferential
attachment (class 0) carry 80 houses (middle, bottom and roof: classes 1, 2, 3); a node's only
features are the four channels of its colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import cumsum, remove_self_loops, to_dense_adj, to_undirected

from gduq.data.catalog import SHIFTS
from gduq.errors import InputError, one_of
from gduq.graphs.packed import Packed, ragged
from gduq.graphs.view import Splits, View
from gduq.shifts.cuts import Cut, leave_out, make_splits, no_shift

__all__ = ["BASES", "MOTIFS", "MotifRecipe", "add_laplacian", "build_motif", "draw_recipe",
           "load_cbas", "load_motif"]  # fmt: skip

BASES = ("wheel", "tree", "ladder", "star", "path")
MOTIFS = ("house", "cycle", "crane")
_MOTIF_NODES = 5
_MOTIF_EDGES = (
    ((1, 2), (2, 3), (3, 4), (4, 1), (0, 1), (0, 4)),
    ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0)),
    ((0, 1), (0, 3), (1, 2), (2, 3), (1, 4), (3, 4)),
)
_NOISE_EDGES = 0.05  # attempts an edge
_NOISE_LABELS = 0.1
_ENTRIES = 1 << 22  # of the Laplacians that are decomposed at a time
_TIE = 1e-8  # largest addition to the diagonal, by position: it decides between equal eigenvalues
_BASE, _HOUSES = 300, 80
_HOUSE = ((0, 1), (0, 3), (0, 4), (1, 2), (1, 4), (2, 3))
_HOUSE_LABELS = (1, 1, 2, 2, 3)
# five of training, then ood_val and ood_test
_COVARIATE_COLOURS = ((1, 0, 0, 0.5), (0, 1, 0, 0.7), (0, 0, 1, 0.3), (1, 1, 0, 0.4),
                      (0, 1, 1, 0.6), (1, 0, 1, 1), (0, 0, 0, 0.1))  # fmt: skip
_CONCEPT_COLOURS = (*_COVARIATE_COLOURS[:3], (1, 1, 0, 0.2))  # one per class
_RATIOS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.3, 0.0)  # colour follows the class


def load_motif(domain: str, shift: str, seed: int = 0, pe: int = 0) -> Splits:
    """30 000 Motif graphs, cut as in GOOD by ``"basis"`` or ``"size"``; with ``pe`` so many columns
    of Laplacian encoding **instead of** the constant feature ``x``."""
    name = f"motif{'-lpe' if pe else ''}/{domain}/{shift}"
    generator = torch.Generator().manual_seed(seed)
    recipe, cut = draw_recipe(domain, shift, generator)
    packed = build_motif(recipe, generator)
    if pe:  # which encoding the paper used is not known
        packed = add_laplacian(packed, pe)
    else:
        packed = packed.with_columns({"x": torch.ones(int(packed.node_ptr[-1]), 1)})
    text = f"Motif: base graphs with a motif, which is the class. Shift of the {domain}: {shift}."
    splits = make_splits(View(packed), cut, recipe.domain, name=name, description=text)
    return splits.with_(class_names=MOTIFS)


class MotifRecipe(NamedTuple):
    """What to build: base, width and motif of every graph ``[G]``, and the domain it stands for."""

    base: Tensor
    width: Tensor
    motif: Tensor
    domain: Tensor


def draw_recipe(
    domain: str, shift: str, generator: torch.Generator, total: int = 30000
) -> tuple[MotifRecipe, Cut]:
    """Bases, widths and motifs of a setting, and which graphs belong to which split."""
    one_of("a Motif domain", domain, ("basis", "size"))
    one_of("a shift", shift, SHIFTS)
    by_base, tenth, fifth = domain == "basis", total // 10, total // 5

    def randint(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    def recipe(chosen: Tensor, motif: Tensor, bases: bool = by_base) -> MotifRecipe:
        """Base (or nominal size) as chosen; the other one is free."""
        jitter = randint(-5, 6, motif.numel())
        if bases:
            return MotifRecipe(chosen, 10 + jitter, motif, chosen)
        return MotifRecipe(randint(0, 5, motif.numel()), chosen + jitter, motif, chosen)

    if shift == "no_shift":
        motif = torch.arange(3).repeat_interleave(total // 3)
        found = recipe(randint(0, 5, motif.numel()), motif, bases=True)
        cut = no_shift(motif.numel(), seed=generator)
        return found if by_base else found._replace(domain=found.width), cut
    parts, counts, holdout = list[MotifRecipe](), [3 * fifth, fifth, fifth], int(0.45 * fifth)
    if shift == "covariate":
        counts, holdout = [total - 2 * tenth, tenth, tenth], tenth
        pools = ((0, 1, 2), (3,), (4,)) if by_base else ((6, 10, 15), (30,), (70,))
        for count, pool in zip(counts, pools, strict=True):
            chosen = torch.tensor(pool)[randint(0, len(pool), count)]
            parts.append(recipe(chosen, randint(0, 3, count)))
    else:
        values = torch.tensor((0, 1, 2) if by_base else (10, 40, 70))
        for ratio in (0.99, 0.97, 0.95, 0.3, 0.0):  # how often the base or size follows the motif
            motif = randint(0, 3, fifth)
            follows = torch.rand(fifth, generator=generator) < ratio
            parts.append(recipe(values[torch.where(follows, motif, randint(0, 3, fifth))], motif))
    pool_, val, test = torch.arange(sum(counts)).split(counts)
    cut = leave_out(pool_, val, test, holdout, generator)
    return MotifRecipe(*map(torch.cat, zip(*parts, strict=True))), cut


class _Templates(NamedTuple):
    """Every base of every width with every motif behind it, not yet tied to it; template
    ``(base * widths + width) * 3 + motif``."""

    edges: Tensor  # [2, sum of edges], one template after the other
    ptr: Tensor  # [templates + 1]
    base_nodes: Tensor  # [templates]
    adjacent: Tensor  # [templates, n, n], n the largest graph
    role: Tensor  # [templates, n]: may be an end of a noise edge


@lru_cache(maxsize=2)
def _templates(widths: int) -> _Templates:
    bases = [_base(base, width) for base in BASES for width in range(widths)]
    made = [(*base, motif) for base in bases for motif in _MOTIF_EDGES]
    nodes, edges = torch.tensor([n for n, *_ in made]), list[Tensor]()
    adjacent = torch.zeros(len(made), *[int(nodes.max()) + _MOTIF_NODES] * 2, dtype=torch.bool)
    role = torch.zeros_like(adjacent[:, 0])
    for i, (n, ends, special, motif) in enumerate(made):
        edges.append(torch.tensor([*ends, *((n + a, n + b) for a, b in motif)]).t())
        a, b = edges[-1]
        adjacent[i, a, b] = adjacent[i, b, a] = role[i, list(special)] = True
    ptr = cumsum(torch.tensor([ends.size(1) for ends in edges]))
    return _Templates(torch.cat(edges, 1), ptr, nodes, adjacent, role)


def _base(base: str, width: int) -> tuple[int, list[tuple[int, int]], Sequence[int]]:
    """Number of nodes, edges and role-0 nodes of a base graph."""
    w, line = max(width, 1), list(pairwise(range(max(width, 1))))
    if base == "wheel":
        rim = [*line[1:], (1, w - 1)] if w > 3 else line[1:]
        return w, [*((0, i) for i in range(1, w)), *rim], range(w)
    if base == "tree":
        nodes = 2 ** max(w.bit_length() - 1, 2) - 1  # of the height int(log2 w) - 1, at least 1
        return nodes, [((i - 1) // 2, i) for i in range(1, nodes)], range(nodes)
    if base == "ladder":
        other, rungs = [(a + w, b + w) for a, b in line], [(i, i + w) for i in range(w)]
        return 2 * w, line + other + rungs, range(2 * w)
    if base == "star":
        return w + 1, [(0, i) for i in range(1, w + 1)], [0]
    return w, line, range(1, max(w - 1, 1))


def build_motif(recipe: MotifRecipe, generator: torch.Generator) -> Packed:
    """The graphs of a recipe, without features: ``y`` is the motif with label noise.

    Example:
        >>> recipe = MotifRecipe(*(torch.tensor([v]) for v in (2, 4, 0, 2)))  # house
        >>> graph = build_motif(recipe, torch.Generator().manual_seed(0))[0]
        >>> graph.num_nodes, graph.num_edges
        (13, 34)
    """
    count, widths = recipe.base.numel(), int(recipe.width.max()) + 1
    plan = _templates(widths)
    template = (recipe.base * widths + recipe.width) * len(MOTIFS) + recipe.motif
    nodes = plan.base_nodes[template]
    tie = (torch.rand(count, generator=generator, dtype=torch.float64) * nodes).long()
    graphs = torch.arange(count)
    rows, ptr = ragged(plan.ptr, template)
    attempts = ((ptr.diff() + 1) * _NOISE_EDGES).long()
    who, noise = _noise(plan, template, tie, attempts, generator)
    owner = torch.cat([graphs.repeat_interleave(ptr.diff()), graphs, who])
    edges = torch.cat([plan.edges[:, rows], torch.stack([tie, nodes]), noise], 1)
    edges = edges[:, torch.sort(owner, stable=True).indices]  # grouped by graph
    redrawn = torch.rand(count, generator=generator) < _NOISE_LABELS
    label = torch.where(redrawn, torch.randint(0, 3, (count,), generator=generator), recipe.motif)
    edge_ptr = cumsum(2 * torch.bincount(owner, minlength=count))
    edge_index = torch.stack([edges, edges.flip(0)], dim=2).flatten(1)  # in both directions
    ptrs = {"edge_index": edge_ptr, "y": torch.arange(count + 1)}
    return Packed({"edge_index": edge_index, "y": label}, ptrs, cumsum(nodes + _MOTIF_NODES))


def _noise(
    plan: _Templates, template: Tensor, tie: Tensor, attempts: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Noise edges: their graphs ``[e]`` and ends ``[2, e]``. An attempt draws two distinct,
    non-adjacent nodes and joins them if one of them has role 0; other pairs are drawn again."""
    added = torch.full((attempts.numel(), int(attempts.max()), 2), -1)
    for attempt in range(added.size(1)):
        todo = torch.nonzero(attempts > attempt).flatten()
        while todo.numel():
            which = template[todo]
            size = plan.base_nodes[which]
            draw = torch.rand(todo.numel(), 2, generator=generator, dtype=torch.float64)
            pair = (draw * (size + _MOTIF_NODES)[:, None]).long().sort(dim=1).values
            low, high = pair.unbind(dim=1)
            tied = (low == tie[todo]) & (high == size)
            known = (added[todo, :attempt] == pair[:, None]).all(dim=2).any(dim=1)
            free = ~((low == high) | plan.adjacent[which, low, high] | tied | known)
            useful = free & plan.role[which[:, None], pair].any(dim=1)
            added[todo[useful], attempt] = pair[useful]
            todo = todo[~free]
    graph, slot = torch.nonzero(added[:, :, 0] >= 0, as_tuple=True)
    return graph, added[graph, slot].t()


def load_cbas(shift: str, seed: int = 0) -> Splits:
    """CBAS with the domain colour; ``shift`` is covariate, concept or no_shift."""
    one_of("a shift", shift, SHIFTS)
    generator = torch.Generator().manual_seed(seed)
    first = _BASE + 5 * torch.arange(_HOUSES)[:, None]  # [80, 1]
    inside = (first[None] + torch.tensor(_HOUSE).t()[:, None]).flatten(1)  # [2, 480]
    ties = torch.randperm(_BASE, generator=generator)[:_HOUSES]
    edges = [_preferential(_BASE, 5, generator), inside, torch.stack([ties, first.flatten()])]
    y = torch.cat([torch.zeros(_BASE).long(), torch.tensor(_HOUSE_LABELS).repeat(_HOUSES)])
    edge_index = to_undirected(torch.cat(edges, 1), num_nodes=y.numel())
    order = torch.randperm(y.numel(), generator=generator)
    colour = torch.zeros_like(y)
    if shift == "covariate":
        for number, rows in enumerate(torch.split(order, [112] * 5 + [70, 70])):
            colour[rows] = number
        x = torch.tensor(_COVARIATE_COLOURS)[colour]
        cut = leave_out(order[:560], order[560:630], order[630:], 70, generator)
    elif shift == "concept":
        for ratio, rows in zip(_RATIOS, torch.split(order, [84] * 5 + [140, 140]), strict=True):
            follows = torch.rand(rows.numel(), generator=generator) < ratio
            free = torch.randint(0, 4, (rows.numel(),), generator=generator)
            colour[rows] = torch.where(follows, y[rows], free)
        x = torch.tensor(_CONCEPT_COLOURS)[colour]
        cut = leave_out(order[:420], order[420:560], order[560:], 140, generator)
    else:
        x, parts = torch.ones(y.numel(), 4), order.split([420, 140, 140])
        cut = dict(zip(("train", "id_val", "id_test"), parts, strict=True))
    text = f"CBAS: houses on a random graph; the class is a node's place. Shift of colour: {shift}."
    nodes = View(Data(x, edge_index, y=y), torch.ones_like(y, dtype=torch.bool))
    splits = make_splits(nodes, cut, colour, name=f"cbas/color/{shift}", description=text)
    return splits.with_(class_names=("base", "middle", "bottom", "roof"))


def _preferential(nodes: int, each: int, generator: torch.Generator) -> Tensor:
    """A preferential-attachment graph: every new node draws ``each`` ends by degree, with
    replacement; self-loops go (repeated edges go when the graph is made undirected)."""
    source = torch.cat([torch.arange(each), torch.arange(each, nodes).repeat_interleave(each)])
    target = torch.zeros_like(source)
    target[:each] = torch.randperm(each, generator=generator)
    for new in range(each, nodes):
        known = each * (new - each + 1)  # edges whose two ends are settled
        ends = torch.cat([source[: known + each], target[:known]])
        draw = torch.randint(0, ends.numel(), (each,), generator=generator)
        target[known : known + each] = ends[draw]
    return torch.stack([source, target])[:, source != target]


def add_laplacian(packed: Packed, k: int = 4) -> Packed:
    r"""The same graphs with an attribute ``pe [n, k]``: the first ``k`` non-trivial eigenvectors of
    the normalised Laplacian.

    .. math:: L = I - D^{-1/2} A D^{-1/2}

    Missing columns are zero. Edges count as undirected, self-loops and repeated edges once.
    Eigenvectors have unit length and a positive largest entry; those of a repeated eigenvalue are
    one basis among many. For graphs of thousands of nodes: PyG's ``AddLaplacianEigenvectorPE``.

    Example:
        >>> from torch_geometric.data import Data
        >>> path = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> add_laplacian(Packed.pack([path]), k=2)[0].pe[:, 1].abs()
        tensor([0.5000, 0.7071, 0.5000])
    """
    if k < 1:
        raise InputError("k >= 1 eigenvectors", k)
    sizes = packed.num_nodes
    first = cumsum(sizes)[:-1]
    found = torch.zeros(int(sizes.sum()), k, dtype=torch.float64)
    for size in map(int, sizes[sizes > 1].unique()):  # single nodes have no encoding
        for graphs in torch.nonzero(sizes == size).flatten().split(-(-_ENTRIES // size**2)):
            part = packed.collate(graphs)
            ends = to_undirected(remove_self_loops(part.edge_index)[0], num_nodes=len(part.batch))
            joined = to_dense_adj(ends, part.batch, None, size, len(graphs)).double().numpy()
            scale = 1.0 / np.sqrt(np.maximum(joined.sum(2), 1.0))
            # Without the tie-break, rounding would choose the basis of a repeated eigenvalue.
            diagonal = np.diag(1.0 + np.linspace(0.0, _TIE, size))
            laplacian = diagonal - scale[:, :, None] * joined * scale[:, None]
            vectors = np.linalg.eigh(laplacian).eigenvectors[:, :, 1 : k + 1]
            biggest = np.abs(vectors).round(6).argmax(axis=1)[:, None]  # rounded: ties by position
            vectors = vectors * np.sign(np.take_along_axis(vectors, biggest, axis=1))
            rows = first[graphs][:, None] + torch.arange(size)
            found[rows, : vectors.shape[2]] = torch.from_numpy(vectors)
    return packed.with_columns({"pe": found.float()})
