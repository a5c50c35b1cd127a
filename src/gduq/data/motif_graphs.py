"""How Motif graphs are built: all of a set at once from templates, no loop over graphs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gduq.graphs.packed import Packed, ragged, to_ptr

__all__ = ["BASES", "MOTIFS", "MotifRecipe", "build_motif"]

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


@dataclass(frozen=True)
class MotifRecipe:
    """What to build: base, width and motif of every graph ``[G]``, and the domain it stands for."""

    base: Tensor
    width: Tensor
    motif: Tensor
    domain: Tensor

    @staticmethod
    def concatenate(parts: list[MotifRecipe]) -> MotifRecipe:
        return MotifRecipe(
            *map(torch.cat, zip(*(vars(part).values() for part in parts), strict=True))
        )


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
    ptr = to_ptr(torch.tensor([ends.size(1) for ends in edges]))
    each = len(motifs)
    return _Templates(
        torch.cat(edges, 1),
        ptr,
        nodes.repeat_interleave(each),
        adjacent,
        role.repeat_interleave(each, 0),
    )


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


def build_motif(
    recipe: MotifRecipe, generator: torch.Generator, cut: dict[str, Tensor] | None = None
) -> Packed:
    """The graphs of a recipe: ``x`` is the constant 1, ``y`` the motif with label noise.

    ``extras`` hold ``base``, ``width``, ``motif`` (the true one) and ``domain`` of every graph, and
    the rows of each split.

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
    return Packed.build(
        node_ptr,
        to_ptr(2 * torch.bincount(owner, minlength=count)),
        torch.stack([edges, edges.flip(0)], dim=2).flatten(1),  # each in both directions
        nodes={"x": torch.ones(int(node_ptr[-1]), 1)},
        graphs={"y": label},
        extras={**vars(recipe), **{f"rows/{name}": rows for name, rows in (cut or {}).items()}},
    )


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
