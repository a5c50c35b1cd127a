"""`Structure`: what the layers need of a graph besides its features, with cached operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops

from gduq._torch import exporting
from gduq.graphs import num_graphs
from gduq.graphs.sparse import csr, sparse_matmul

__all__ = ["Kind", "Structure", "scattered"]

Kind = Literal["gcn", "gin"]

_operators: WeakIdKeyDictionary = WeakIdKeyDictionary()  # edge_index -> {key: operator}


@dataclass(frozen=True, eq=False)
class Structure:
    """Nodes, edges and graph membership, possibly of several copies of one graph.

    Rows of tensors go copy by copy: with ``copies`` D, row ``k * nodes + i`` is node i of copy k.
    Copies share one adjacency, so D versions of a representation can pass through a layer together.
    """

    graph: Data  # of one copy, as are the numbers
    nodes: int
    graphs: int
    copies: int = 1

    @classmethod
    def of(cls, graph: Data) -> Structure:
        return cls(graph, graph.num_nodes or 0, num_graphs(graph))

    def repeat(self, copies: int) -> Structure:
        """The structure of ``copies`` disjoint copies."""
        return self if copies == self.copies else replace(self, copies=copies)

    @cached_property
    def batch(self) -> Tensor:
        """The graph each row belongs to, ``[copies * nodes]``."""
        batch = self.graph.get("batch")
        if batch is None:
            batch = torch.zeros(self.nodes, dtype=torch.int64, device=self.device)
        return self._stacked(batch, self.graphs)

    @cached_property
    def edge_index(self) -> Tensor:
        """Edges over all copies, ``[2, copies * E]``."""
        return self._stacked(self.graph.edge_index, self.nodes)

    @cached_property
    def edge_attr(self) -> Tensor | None:
        """Edge features over all copies ``[copies * E, f]``, or ``None``."""
        attr: Tensor | None = self.graph.get("edge_attr")
        if attr is None:
            return None
        attr = attr.unsqueeze(-1) if attr.dim() == 1 else attr
        return attr.repeat(self.copies, 1) if self.copies > 1 else attr

    @property
    def device(self) -> torch.device:
        return self.graph.edge_index.device  # type: ignore[no-any-return]

    def _stacked(self, numbers: Tensor, step: int) -> Tensor:
        """Numbers ``[..., n]`` of one copy as those of all, ``[..., copies * n]``."""
        if self.copies == 1:
            return numbers
        offsets = torch.arange(self.copies, device=numbers.device) * step
        return (numbers.unsqueeze(-2) + offsets.unsqueeze(1)).flatten(-2)

    # -- neighbourhood operators ---------------------------------------------------------------

    def edges(self, kind: Kind, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Edges (self-loops added) and weights of one copy's operator.

        ``"gcn"`` is the symmetrically normalised adjacency with self-loops, honouring
        ``edge_weight``; ``"gin"`` is adjacency plus identity.
        """
        edges: Tensor = self.graph.edge_index
        if kind == "gcn":
            weight = self.graph.get("edge_weight")
            weight = None if weight is None else weight.to(dtype)
            if exporting():
                return _normalised(edges, weight, self.nodes, dtype)
            found: tuple[Tensor, Tensor] = gcn_norm(edges, weight, self.nodes, dtype=dtype)
            return found
        edges, _ = add_self_loops(edges, num_nodes=self.nodes)
        return edges, torch.ones(edges.size(1), dtype=dtype, device=edges.device)

    def mix(self, z: Tensor, kind: Kind) -> Tensor:
        """Apply the operator to every copy of ``z`` ``[copies * nodes, m]``."""
        if exporting():  # which knows no sparse matrices
            return scattered(z, self, *self.edges(kind, z.dtype))
        matrix, _ = self._operator(kind, _exact(z.dtype))
        parts = [sparse_matmul(matrix, part) for part in z.split(self.nodes)]
        return (parts[0] if self.copies == 1 else torch.cat(parts)).to(z.dtype)

    def gain(self, kind: Kind, dtype: torch.dtype) -> Tensor:
        """The operator's row sums ``[nodes, 1]``: what it does to a vector shared by all nodes."""
        if exporting():
            (_, target), weight = self.edges(kind, dtype)
            return weight.new_zeros(self.nodes).index_add(0, target, weight).unsqueeze(1)
        return self._operator(kind, _exact(dtype))[1].to(dtype)

    def _operator(self, kind: Kind, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The operator and its row sums, kept while the edges live and nothing changes."""
        edges = self.graph.edge_index
        weight = self.graph.get("edge_weight") if kind == "gcn" else None
        if edges.is_inference() or (weight is not None and weight.is_inference()):
            return self._build(kind, dtype)  # changes of these cannot be seen
        stamp = (self.nodes, edges._version, None if weight is None else weight._version)
        known: dict[Any, Any] = _operators.setdefault(edges, {})
        found = known.get((kind, dtype))
        if found is None or found[0] != stamp or found[1] is not weight:
            found = known[kind, dtype] = (stamp, weight, self._build(kind, dtype))
        operator: tuple[Tensor, Tensor] = found[2]
        return operator

    def _build(self, kind: Kind, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        (source, target), values = self.edges(kind, dtype)
        matrix = csr(target, source, values, (self.nodes, self.nodes))
        ones = torch.ones(self.nodes, 1, dtype=dtype, device=values.device)
        return matrix, sparse_matmul(matrix, ones)


def scattered(z: Tensor, structure: Structure, edges: Tensor, weight: Tensor) -> Tensor:
    """Sums of weighted messages over edges, in every copy of ``z`` ``[copies * nodes, m]``."""
    rows = z.view(structure.copies, structure.nodes, -1)
    messages = rows[:, edges[0]] * weight.unsqueeze(-1)
    return torch.zeros_like(rows).index_add(1, edges[1], messages).flatten(0, 1)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """What sparse products are computed in: there are no kernels for half floats."""
    return dtype if dtype == torch.float64 else torch.float32


def _normalised(
    edges: Tensor, weight: Tensor | None, nodes: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """What ``gcn_norm`` gives, with as many edges whatever they are: loops weigh nothing, and one
    of the same weight per node comes after all edges."""
    source, target = edges
    loops, ends = source == target, torch.arange(nodes, device=edges.device)
    given = torch.ones_like(source, dtype=dtype) if weight is None else weight
    own = given.new_ones(nodes + 1)
    own = own.index_put((torch.where(loops, source, nodes),), given)[:nodes]
    whole = torch.cat([torch.where(loops, 0.0, given), own])
    edges = torch.cat([edges, torch.stack([ends, ends])], dim=1)
    degree = whole.new_zeros(nodes).index_add(0, edges[1], whole)
    scale = torch.where(degree == 0, 0.0, degree.rsqrt())
    return edges, scale[edges[0]] * whole * scale[edges[1]]
