"""How Motif graphs are built: all of a set at once from templates, no loop over graphs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gduq.data.packed import Packed, ragged, to_ptr

__all__ = ["BASES", "MOTIFS", "Recipe", "build_motif"]

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
class Recipe:
    """What to build: base, width and motif of every graph ``[G]``, and the domain it stands for."""

    base: Tensor
    width: Tensor
    motif: Tensor
    domain: Tensor

    @staticmethod
    def concatenate(parts: list[Recipe]) -> Recipe:
        return Recipe(*map(torch.cat, zip(*(vars(part).values() for part in parts), strict=True)))


@dataclass(frozen=True)
class _Templates:
    """All bases of all widths: edges one after the other, adjacency and role-0 nodes as masks."""

    edges: Tensor  # [2, sum of edges]
    ptr: Tensor  # [5 * widths + 1], template base * widths + width
    nodes: Tensor  # [5 * widths]
    adjacent: Tensor  # [5 * widths, n, n], n the largest base
    role: Tensor  # [5 * widths, n]: may be an end of a noise edge
    widths: int


@lru_cache(maxsize=2)
def _templates(widths: int) -> _Templates:
    found = [_base(base, width) for base in range(len(BASES)) for width in range(widths)]
    nodes = torch.tensor([n for n, _, _ in found])
    largest = int(nodes.max())
    adjacent = torch.zeros(len(found), largest, largest, dtype=torch.bool)
    role = torch.zeros(len(found), largest, dtype=torch.bool)
    for i, (_, edges, special) in enumerate(found):
        adjacent[i, edges[0], edges[1]] = adjacent[i, edges[1], edges[0]] = True
        role[i, special] = True
    ptr = to_ptr(torch.tensor([edges.size(1) for _, edges, _ in found]))
    return _Templates(torch.cat([e for _, e, _ in found], 1), ptr, nodes, adjacent, role, widths)


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
    recipe: Recipe, generator: torch.Generator, cut: dict[str, Tensor] | None = None
) -> Packed:
    """The graphs of a recipe: ``x`` is the constant 1, ``y`` the motif with label noise.

    ``extras`` hold ``base``, ``width``, ``motif`` (the true one) and ``domain`` of every graph, and
    the rows of each split.

    Example:
        >>> recipe = Recipe(*(torch.tensor([v]) for v in (2, 4, 0, 2)))  # a ladder with a house
        >>> graph = build_motif(recipe, torch.Generator().manual_seed(0))[0]
        >>> graph.num_nodes, graph.num_edges
        (13, 34)
    """
    count = recipe.base.numel()
    plan = _templates(int(recipe.width.max()) + 1)
    template = recipe.base * plan.widths + recipe.width
    nodes = plan.nodes[template]
    tie = (torch.rand(count, generator=generator, dtype=torch.float64) * nodes).long()
    graphs = torch.arange(count)
    rows, base_ptr = ragged(plan.ptr, template)
    motif_ptr = to_ptr(torch.tensor([len(e) for e in _MOTIF_EDGES]))
    motif_edges = torch.tensor([e for edges in _MOTIF_EDGES for e in edges]).t()
    motif_rows, per_motif = ragged(motif_ptr, recipe.motif)
    owner = [graphs.repeat_interleave(base_ptr.diff()), graphs.repeat_interleave(per_motif.diff())]
    parts = [
        plan.edges[:, rows],
        motif_edges[:, motif_rows] + nodes[owner[1]],
        torch.stack([tie, nodes]),
    ]
    attempts = ((base_ptr.diff() + per_motif.diff() + 1) * _NOISE_EDGES).long()
    who, noise = _noise(_Sites(plan, template, recipe.motif, tie), attempts, generator)
    owner += [graphs, who]
    edge_ptr, edge_index = _both_ways(torch.cat(owner), torch.cat([*parts, noise], 1), count)
    redrawn = torch.rand(count, generator=generator) < _NOISE_LABELS
    label = torch.where(redrawn, torch.randint(0, 3, (count,), generator=generator), recipe.motif)
    node_ptr = to_ptr(nodes + _MOTIF_NODES)
    return Packed.build(
        node_ptr,
        edge_ptr,
        edge_index,
        nodes={"x": torch.ones(int(node_ptr[-1]), 1)},
        graphs={"y": label},
        extras={**vars(recipe), **{f"rows/{name}": rows for name, rows in (cut or {}).items()}},
    )


def _both_ways(owner: Tensor, edges: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Edges grouped by graph, each in both directions: offsets and ``edge_index``."""
    order = torch.sort(owner, stable=True).indices
    edges = edges[:, order]
    doubled = torch.stack([edges, edges.flip(0)], dim=2).flatten(1)
    return to_ptr(2 * torch.bincount(owner, minlength=count)), doubled


@dataclass(frozen=True)
class _Sites:
    """Some graphs before noise: enough to say whether two nodes are joined."""

    plan: _Templates
    template: Tensor
    motif: Tensor
    tie: Tensor  # the base node that motif node 0 hangs on

    @property
    def base_nodes(self) -> Tensor:
        return self.plan.nodes[self.template]

    def __getitem__(self, rows: Tensor) -> _Sites:
        return _Sites(self.plan, self.template[rows], self.motif[rows], self.tie[rows])

    def joined(self, pair: Tensor) -> Tensor:
        """Whether the nodes of each pair are equal or adjacent."""
        size = self.base_nodes
        low, high = pair.min(dim=1).values, pair.max(dim=1).values
        last = self.plan.adjacent.size(1) - 1
        base = self.plan.adjacent[self.template, low.clamp(max=last), high.clamp(max=last)]
        local = (pair - size[:, None]).clamp(0, _MOTIF_NODES - 1)
        inside = _motif_adjacency()[self.motif, local[:, 0], local[:, 1]]
        tied = (low == self.tie) & (high == size)
        return (low == high) | (base & (high < size)) | (inside & (low >= size)) | tied

    def has_role(self, pair: Tensor) -> Tensor:
        """Whether a node of each pair has role 0."""
        in_base = pair < self.base_nodes[:, None]
        clamped = pair.clamp(max=self.plan.role.size(1) - 1)
        return (self.plan.role[self.template[:, None], clamped] & in_base).any(dim=1)


@lru_cache(maxsize=1)
def _motif_adjacency() -> Tensor:
    out = torch.zeros(len(MOTIFS), _MOTIF_NODES, _MOTIF_NODES, dtype=torch.bool)
    for i, edges in enumerate(_MOTIF_EDGES):
        a, b = torch.tensor(edges).t()
        out[i, a, b] = out[i, b, a] = True
    return out


def _noise(sites: _Sites, attempts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise edges: their graphs ``[e]`` and ends ``[2, e]``.

    An attempt draws two distinct, non-adjacent nodes and joins them if one of them has role 0.
    Attempt t is made for all graphs at once; only pairs that are no candidates are drawn again.
    """
    most = int(attempts.max()) if attempts.numel() else 0
    added = torch.full((attempts.numel(), most, 2), -1)
    for attempt in range(most):
        todo = torch.nonzero(attempts > attempt).flatten()
        while todo.numel():
            here = sites[todo]
            nodes = here.base_nodes + _MOTIF_NODES
            draw = torch.rand(todo.numel(), 2, generator=generator, dtype=torch.float64)
            pair = (draw * nodes[:, None]).long().sort(dim=1).values
            known = (added[todo, :attempt] == pair[:, None]).all(dim=2).any(dim=1)
            free = ~(here.joined(pair) | known)
            useful = free & here.has_role(pair)
            added[todo[useful], attempt] = pair[useful]
            todo = todo[~free]
    graph, slot = torch.nonzero(added[:, :, 0] >= 0, as_tuple=True)
    return graph, added[graph, slot].t()
