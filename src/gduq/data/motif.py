"""Motif: base graph plus motif, the motif is the class (after GOODMotif; see GOOD, NeurIPS 2022).

A graph is a base (wheel, tree, ladder, star or path of a given width), a five-node motif (house,
cycle or crane) tied to a random base node by one edge, and a few noise edges. A tenth of the labels
is drawn anew, so no classifier is right in more than 93.3 % of the cases. **The motif is the last
five nodes of every graph.** All graphs are built at once from templates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from gduq._checks import one_of
from gduq.data.cache import cached_tensors
from gduq.data.catalog import SHIFTS
from gduq.data.laplacian import add_laplacian
from gduq.graphs.packed import Packed, ragged, to_ptr
from gduq.graphs.splits import Splits
from gduq.graphs.view import View
from gduq.shifts.cuts import Cut, leave_out, make_splits, no_shift

__all__ = ["BASES", "MOTIFS", "MotifRecipe", "build_motif", "draw_recipe", "load_motif"]

BASES = ("wheel", "tree", "ladder", "star", "path")
MOTIFS = ("house", "cycle", "crane")
VERSION = 2
_MOTIF_NODES = 5
_MOTIF_EDGES = (
    ((1, 2), (2, 3), (3, 4), (4, 1), (0, 1), (0, 4)),
    ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0)),
    ((0, 1), (0, 3), (1, 2), (2, 3), (1, 4), (3, 4)),
)
_NOISE_EDGES = 0.05  # attempts an edge
_NOISE_LABELS = 0.1
_TRAIN_RATIOS = (0.99, 0.97, 0.95)  # share of graphs whose base or size follows the motif


def load_motif(
    domain: str, shift: str, root: str | Path | None = None, seed: int = 0, pe: int = 0
) -> Splits:
    """30 000 Motif graphs, cut as in GOOD by ``"basis"`` or ``"size"``; with ``pe`` so many columns
    of Laplacian encoding **instead of** the constant feature ``x``."""
    name = f"motif{'-lpe' if pe else ''}/{domain}/{shift}"

    def build() -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        recipe, cut = draw_recipe(domain, shift, generator)
        packed = build_motif(recipe, generator)
        packed = add_laplacian(packed, pe, keep_x=False) if pe else packed
        pointers = {"nodes": packed.node_ptr, "edges": packed.ptrs["edge_index"]}
        rows = {f"rows/{split}": numbers for split, numbers in cut.items()}
        return {**packed.tensors, **pointers, "domain": recipe.domain, **rows}

    found = cached_tensors(build, root, name, version=VERSION, seed=seed, pe=pe)
    cut = {k.removeprefix("rows/"): v for k, v in found.items() if k.startswith("rows/")}
    packed = _packed(found["nodes"], found["edges"], found["edge_index"], found["y"])
    feature = "pe" if pe else "x"
    packed = packed.with_columns({feature: found[feature]})
    what = "base graph" if domain == "basis" else "size of the base graph"
    how = {
        "covariate": f"training and test differ in the {what}",
        "concept": f"the {what} goes with the motif in training and not in the tests",
        "no_shift": "no shift",
    }[shift]
    constant = "The only node feature is the constant 1."
    encoded = (
        f"Node features are {pe} Laplacian eigenvectors (attribute pe); which encoding the "
        "paper used is not known, this one is our own choice."
    )
    text = (
        "Motif: 30000 graphs of a base and a house, cycle or crane; the class is the motif, and a "
        f"tenth of the labels is drawn anew. {how.capitalize()}. {encoded if pe else constant}"
    )
    splits = make_splits(View(packed), cut, found["domain"], name=name, description=text)
    return splits.with_(class_names=MOTIFS, sources=("generated on this machine",))


def _packed(node_ptr: Tensor, edge_ptr: Tensor, edge_index: Tensor, y: Tensor) -> Packed:
    """Graphs without features."""
    ptrs = {"edge_index": edge_ptr, "y": torch.arange(node_ptr.numel())}
    return Packed({"edge_index": edge_index, "y": y}, ptrs, node_ptr)


# -- what to build ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class MotifRecipe:
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

    def randint(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    def recipe(chosen: Tensor, motif: Tensor) -> MotifRecipe:
        """Base (or nominal size) as chosen; the other one is free."""
        jitter = randint(-5, 6, motif.numel())
        if domain == "basis":
            return MotifRecipe(chosen, 10 + jitter, motif, chosen)
        return MotifRecipe(randint(0, 5, motif.numel()), chosen + jitter, motif, chosen)

    parts = []
    if shift == "no_shift":
        motif = torch.arange(3).repeat_interleave(total // 3)
        base = randint(0, 5, motif.numel())
        width = 10 + randint(-5, 6, motif.numel())
        cut = no_shift(motif.numel(), seed=generator)
        return MotifRecipe(base, width, motif, base if domain == "basis" else width), cut
    if shift == "covariate":
        counts = (total - 2 * (total // 10), total // 10, total // 10)
        pools = ((0, 1, 2), (3,), (4,)) if domain == "basis" else ((6, 10, 15), (30,), (70,))
        for count, pool in zip(counts, pools, strict=True):
            chosen = torch.tensor(pool)[randint(0, len(pool), count)]
            parts.append(recipe(chosen, randint(0, 3, count)))
        holdout = int(0.1 * total)
    else:
        fifth = total // 5
        values = torch.tensor((0, 1, 2) if domain == "basis" else (10, 40, 70))
        for ratio in (*_TRAIN_RATIOS, 0.3, 0.0):
            motif = randint(0, 3, fifth)
            follows = torch.rand(fifth, generator=generator) < ratio
            index = torch.where(follows, motif, randint(0, 3, fifth))
            parts.append(recipe(values[index], motif))
        counts, holdout = (3 * fifth, fifth, fifth), int(0.15 * (3 * fifth))
    pool_, val, test = torch.arange(sum(counts)).split(list(counts))
    cut = leave_out(pool_, val, test, holdout, generator)
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return MotifRecipe(*map(torch.cat, columns)), cut


# -- how graphs are built --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Templates:
    """Every base of every width with every motif behind it, not yet tied to it; template
    ``(base * widths + width) * 3 + motif``. Adjacency and role-0 nodes are masks."""

    edges: Tensor  # [2, sum of edges], one template after the other
    ptr: Tensor  # [templates + 1]
    base_nodes: Tensor  # [templates]
    adjacent: Tensor  # [templates, n, n], n the largest graph
    role: Tensor  # [templates, n]: may be an end of a noise edge


@lru_cache(maxsize=2)
def _templates(widths: int) -> _Templates:
    bases = [_base(base, width) for base in range(len(BASES)) for width in range(widths)]
    motifs = [torch.tensor(edges).t() for edges in _MOTIF_EDGES]
    edges = [torch.cat([ends, motif + n], 1) for n, ends, _ in bases for motif in motifs]
    nodes = torch.tensor([n for n, _, _ in bases])
    largest = int(nodes.max()) + _MOTIF_NODES
    adjacent = torch.zeros(len(edges), largest, largest, dtype=torch.bool)
    for i, (a, b) in enumerate(edges):
        adjacent[i, a, b] = adjacent[i, b, a] = True
    role = torch.zeros(len(bases), largest, dtype=torch.bool)
    for i, (_, _, special) in enumerate(bases):
        role[i, special] = True
    ptr, each = to_ptr(torch.tensor([ends.size(1) for ends in edges])), len(motifs)
    nodes, role = nodes.repeat_interleave(each), role.repeat_interleave(each, 0)
    return _Templates(torch.cat(edges, 1), ptr, nodes, adjacent, role)


def _base(base: int, width: int) -> tuple[int, Tensor, Tensor]:
    """Number of nodes, edges ``[2, E]`` and role-0 nodes of a base graph."""
    w = max(width, 1)
    line = torch.stack([torch.arange(w - 1), torch.arange(1, w)])
    everyone = torch.arange(w)
    if BASES[base] == "wheel":
        spokes = torch.stack([torch.zeros(w - 1).long(), torch.arange(1, w)])
        close = torch.tensor([[1], [w - 1]]) if w > 3 else torch.zeros(2, 0).long()
        return w, torch.cat([spokes, line[:, 1:], close], 1), everyone
    if BASES[base] == "tree":
        height = max(w.bit_length() - 2, 1)  # int(log2 w) - 1
        nodes = torch.arange(2 ** (height + 1) - 1)
        return len(nodes), torch.stack([(nodes[1:] - 1) // 2, nodes[1:]]), nodes
    if BASES[base] == "ladder":
        rungs = torch.stack([everyone, everyone + w])
        return 2 * w, torch.cat([line, line + w, rungs], 1), torch.arange(2 * w)
    if BASES[base] == "star":
        rays = torch.stack([torch.zeros(w).long(), torch.arange(1, w + 1)])
        return w + 1, rays, torch.zeros(1).long()
    return w, line, torch.arange(1, max(w - 1, 1))


def build_motif(recipe: MotifRecipe, generator: torch.Generator) -> Packed:
    """The graphs of a recipe: ``x`` is the constant 1, ``y`` the motif with label noise.

    Example:
        >>> recipe = MotifRecipe(*(torch.tensor([v]) for v in (2, 4, 0, 2)))  # house
        >>> graph = build_motif(recipe, torch.Generator().manual_seed(0))[0]
        >>> graph.num_nodes, graph.num_edges
        (13, 34)
    """
    count = recipe.base.numel()
    widths = int(recipe.width.max()) + 1
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
    node_ptr = to_ptr(nodes + _MOTIF_NODES)
    edge_ptr = to_ptr(2 * torch.bincount(owner, minlength=count))
    edge_index = torch.stack([edges, edges.flip(0)], dim=2).flatten(1)  # in both directions
    packed = _packed(node_ptr, edge_ptr, edge_index, label)
    return packed.with_columns({"x": torch.ones(int(node_ptr[-1]), 1)})


def _noise(
    plan: _Templates, template: Tensor, tie: Tensor, attempts: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Noise edges: their graphs ``[e]`` and ends ``[2, e]``.

    An attempt draws two distinct, non-adjacent nodes and joins them if one of them has role 0.
    Attempt t is made for all graphs at once; only pairs that are no candidates are drawn again.
    """
    most = int(attempts.max()) if attempts.numel() else 0
    added = torch.full((attempts.numel(), most, 2), -1)
    for attempt in range(most):
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
