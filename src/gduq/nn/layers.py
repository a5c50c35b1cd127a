r"""One message-passing layer each, split behind its linear map.

GCN and GIN layers are a linear map, a linear neighbourhood operator and the rest:

.. math::
    \mathrm{layer}(h) = \mathrm{after}(M h W^\top + b)

with M the normalised adjacency (GCN) or adjacency plus identity (GIN). The operator and the map
commute, so whichever order is cheaper is taken. In evaluation mode BatchNorm is folded into W.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data
from torch_geometric.nn import GPSConv, PNAConv, ResGatedGraphConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops

from gduq._torch import exporting
from gduq.graphs import num_graphs
from gduq.graphs.sparse import csr, is_sparse, linear, sparse_matmul

__all__ = ["CONVS", "ConvLayer", "EdgeGate", "GCNLayer", "GINLayer", "PropagationLayer",
           "Structure", "VirtualNode", "affine", "folded", "make_layer", "two_layers"]  # fmt: skip

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


# -- layers ----------------------------------------------------------------------------------------


def folded(weight: Tensor, bias: Tensor, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """The linear map that equals ``norm(weight, bias map)`` in evaluation mode."""
    scale, offset = affine(norm)
    return weight * scale.unsqueeze(1), bias * scale + offset


def affine(norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Scale and offset that BatchNorm amounts to in evaluation mode."""
    mean, var = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    scale = norm.weight * (var + norm.eps).rsqrt()
    return scale, norm.bias - mean * scale


def two_layers(
    channels: int, dropout: float, norm: type[nn.BatchNorm1d] = nn.BatchNorm1d
) -> nn.Sequential:
    """Linear(H, 2H), BN, ReLU, Linear(2H, H), BN, ReLU, dropout."""
    wide = 2 * channels
    first = [nn.Linear(channels, wide), norm(wide), nn.ReLU()]
    return nn.Sequential(
        *first, nn.Linear(wide, channels), norm(channels), nn.ReLU(), nn.Dropout(dropout)
    )


class EdgeGate(nn.Module):
    r"""A weight in (0, 1) for each edge from the distance of its ends' encodings.

    .. math::
        w_{uv} = \mathrm{sigmoid}\bigl(\mathrm{MLP}(\lVert p_u - p_v \rVert^2)\bigr)

    Distances do not change when eigenvectors flip sign or turn within an eigenspace, so the layer
    is equivariant and stable in the sense of PEG (Wang et al., ICLR 2022).
    """

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, pe: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        distance = (pe[source] - pe[target]).square().sum(dim=-1, keepdim=True)
        return self.mlp(distance).sigmoid().squeeze(-1)  # type: ignore[no-any-return]


class PropagationLayer(nn.Module, ABC):
    """Base of GCN and GIN: ``after(mix(h W^T) + b)``.

    ``linear`` becomes ``None`` when somebody else takes over the reading (`release`); the layer
    then serves through `mix`, `gain` and `after` only.
    """

    kind: Kind

    def __init__(self, channels: int, inner: int, dropout: float, last: bool, gated: bool) -> None:
        super().__init__()
        self.dropout, self.last = dropout, last
        self.gate = EdgeGate() if gated else None
        self.linear: nn.Linear | None = nn.Linear(channels, inner)
        self.inner_norm = nn.BatchNorm1d(inner)

    def mix(self, z: Tensor, structure: Structure) -> Tensor:
        """The neighbourhood operator on rows ``[copies * nodes, m]``."""
        if self.gate is None:
            return structure.mix(z, self.kind)
        edges, weight = structure.edges(self.kind, z.dtype)
        gates = self.gate(structure.graph.pe.to(z.dtype), edges)
        return scattered(z, structure, edges, weight * gates)

    def gain(self, structure: Structure, dtype: torch.dtype) -> Tensor:
        """Row sums of the operator ``[nodes, 1]``."""
        if self.gate is None:
            return structure.gain(self.kind, dtype)
        ones = torch.ones(structure.nodes, 1, dtype=dtype, device=structure.device)
        return self.mix(ones, structure.repeat(1))

    def read(self, h: Tensor, weight: Tensor, structure: Structure) -> Tensor:
        """``mix(h W^T)`` in the cheaper order; bias-free."""
        if not is_sparse(h) and h.size(1) < weight.size(0):
            return F.linear(self.mix(h, structure), weight)
        return self.mix(linear(h, weight), structure)

    def forward(self, h: Tensor, structure: Structure) -> Tensor:
        assert self.linear is not None
        if self.training:
            return self.after(self.read(h, self.linear.weight, structure) + self.linear.bias)
        weight, bias = folded(self.linear.weight, self.linear.bias, self.inner_norm)
        return self.after(self.read(h, weight, structure).add_(bias), normed=True)

    @abstractmethod
    def after(self, z: Tensor, normed: bool = False) -> Tensor:
        """All that follows the mixed map; ``normed`` says its BatchNorm is done already."""

    def release(self, grow: bool, keep: bool) -> nn.Linear:
        """Hand over the first linear map to a caller that will read for this layer.

        A layer may ``grow``, as the caller reads twice the channels; ``keep`` its function then.
        """
        taken, self.linear = self.linear, None
        assert taken is not None
        return taken

    def _finish(self, h: Tensor) -> Tensor:
        h = h if self.last else F.relu(h, inplace=not self.training)
        return F.dropout(h, self.dropout, self.training)


class GCNLayer(PropagationLayer):
    r"""Graph convolution (Kipf & Welling, ICLR 2017), BatchNorm, ReLU (not in the last), dropout.

    .. math::
        h' = \mathrm{dropout}(\mathrm{relu}(\mathrm{BN}(\hat A h W^\top + b)))

    The same function and parameters as PyG's ``GCNConv`` and ``BatchNorm``.
    """

    kind: Kind = "gcn"

    def __init__(
        self, in_channels: int, out_channels: int, dropout: float, last: bool, gated: bool = False
    ) -> None:
        super().__init__(in_channels, out_channels, dropout, last, gated)
        assert self.linear is not None
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def after(self, z: Tensor, normed: bool = False) -> Tensor:
        return self._finish(z if normed else self.inner_norm(z))

    def folded_into(self, head: nn.Linear) -> tuple[Tensor, Tensor]:
        """Weight and bias of this (last) layer's map followed by a linear head."""
        assert self.linear is not None
        weight, bias = folded(self.linear.weight, self.linear.bias, self.inner_norm)
        return head.weight @ weight, head.weight @ bias + head.bias


class GINLayer(PropagationLayer):
    r"""Graph isomorphism layer (Xu et al., ICLR 2019) with :math:`\epsilon = 0`.

    .. math::
        h' = \mathrm{dropout}(\mathrm{relu}(\mathrm{BN}(W_2\,\mathrm{relu}(\mathrm{BN}(
        (A + I) h W_1^\top + b_1)) + b_2)))

    The inner width is twice ``out_channels``.
    """

    kind: Kind = "gin"

    def __init__(
        self, in_channels: int, out_channels: int, dropout: float, last: bool, gated: bool = False
    ) -> None:
        inner = 2 * out_channels
        super().__init__(in_channels, inner, dropout, last, gated)
        self.outer = nn.Linear(inner, out_channels)
        self.norm = nn.BatchNorm1d(out_channels)

    def after(self, z: Tensor, normed: bool = False) -> Tensor:
        if self.training:
            return self._finish(self.norm(self.outer(F.relu(self.inner_norm(z)))))
        z = F.relu(z if normed else self.inner_norm(z), inplace=True)
        return self._finish(F.linear(z, *folded(self.outer.weight, self.outer.bias, self.norm)))

    def release(self, grow: bool, keep: bool) -> nn.Linear:
        first = super().release(grow, keep)
        if not grow:
            return first
        wide = nn.Linear(first.in_features, 2 * first.out_features).to(first.weight)
        norm = nn.BatchNorm1d(wide.out_features).to(first.weight)
        outer = nn.Linear(wide.out_features, self.outer.out_features).to(first.weight)
        if keep:  # old units as they were; new ones read but do not speak yet
            units = first.out_features
            with torch.no_grad():
                wide.weight[:units], wide.bias[:units] = first.weight, first.bias
                for name in ("weight", "bias", "running_mean", "running_var"):
                    getattr(norm, name)[:units] = getattr(self.inner_norm, name)
                outer.weight[:, :units], outer.bias[:] = self.outer.weight, self.outer.bias
                outer.weight[:, units:] = 0.0
        self.inner_norm, self.outer = norm, outer
        return wide


class ConvLayer(nn.Module):
    """Any PyG convolution, then BatchNorm, ReLU (not in the last layer), dropout.

    A convolution that normalises inside has no ``norm``. The value of an `EdgeGate` (``gated``) is
    handed on as one more edge feature. GPS takes the batch vector, too.
    """

    def __init__(
        self,
        conv: nn.Module,
        norm: nn.BatchNorm1d | None,
        dropout: float,
        last: bool,
        edge_channels: int = 0,
        gated: bool = False,
        takes_batch: bool = False,
    ) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm
        self.dropout, self.last = dropout, last
        self.edge_channels, self.takes_batch = edge_channels, takes_batch
        self.gate = EdgeGate() if gated else None

    def _edge_features(self, structure: Structure, dtype: torch.dtype) -> Tensor | None:
        parts = []
        if self.edge_channels:
            assert structure.edge_attr is not None
            parts.append(structure.edge_attr.to(dtype))
        if self.gate is not None:
            gates = self.gate(structure.graph.pe.to(dtype), structure.graph.edge_index)
            parts.append(gates.repeat(structure.copies).unsqueeze(-1))
        return torch.cat(parts, dim=-1) if parts else None

    def forward(self, h: Tensor, structure: Structure) -> Tensor:
        features = self._edge_features(structure, h.dtype)
        extra = {} if features is None else {"edge_attr": features}
        if self.takes_batch:
            extra["batch"] = structure.batch
        h = self.conv(h, structure.edge_index, **extra)
        if self.norm is not None:
            h = self.norm(h)
            h = h if self.last else F.relu(h)
            h = F.dropout(h, self.dropout, self.training)
        return h


class VirtualNode(nn.Module):
    """One extra state per graph, read by all its nodes and fed by their sum.

    The state starts from one learned vector; the MLP that updates it is the same for all layers.
    """

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.start = nn.Embedding(1, channels)
        self.mlp = two_layers(channels, dropout)

    def initial(self, graphs: int) -> Tensor:
        """The start state for so many graphs, ``[graphs, H]``."""
        return self.start.weight.expand(graphs, -1)

    def update(self, h: Tensor, state: Tensor, batch: Tensor) -> Tensor:
        """The next state from a layer's output ``h`` ``[n, H]``."""
        return self.mlp(state.index_add(0, batch, h))  # type: ignore[no-any-return]


# -- layers by name --------------------------------------------------------------------------------


def _gated_gcn(config: Mapping[str, Any], edge_dim: int | None) -> nn.Module:
    hidden = config["hidden_channels"]
    conv: nn.Module = ResGatedGraphConv(hidden, hidden, edge_dim=edge_dim)
    return conv


# A new layer is one more entry here, and its name in `gnn_settings.Conv`: a class like `GCNLayer`,
# or a function that makes a convolution of PyG, which goes into a `ConvLayer`.
CONVS: dict[str, Callable[..., nn.Module]] = {
    "gcn": GCNLayer,
    "gin": GINLayer,
    "pna": lambda config, edge_dim: PNAConv(
        config["hidden_channels"],
        config["hidden_channels"],
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification", "attenuation"],
        deg=torch.tensor(config["degree"], device="cpu"),  # it is read, also on the meta device
        edge_dim=edge_dim,
    ),
    "gated_gcn": _gated_gcn,
    "gps": lambda config, edge_dim: GPSConv(
        config["hidden_channels"],
        _gated_gcn(config, edge_dim),
        heads=config["heads"],
        dropout=config["dropout"],
    ),
}


def make_layer(config: Mapping[str, Any], in_channels: int, index: int) -> nn.Module:
    """Layer ``index`` of a network with these settings."""
    hidden, dropout, conv = config["hidden_channels"], config["dropout"], CONVS[config["conv"]]
    last, gated = index == config["num_layers"] - 1, config["positional"] == "peg"
    if isinstance(conv, type):
        return conv(in_channels, hidden, dropout, last, gated)  # type: ignore[no-any-return]
    edges = config["edge_channels"]
    layer = conv(config, edges + gated or None)
    own_norm = isinstance(layer, GPSConv)  # it normalises inside
    norm = None if own_norm else nn.BatchNorm1d(hidden)
    return ConvLayer(layer, norm, dropout, last, edges, gated, takes_batch=own_norm)
