r"""One message-passing layer each, split behind its linear map.

GCN and GIN layers are a linear map, a linear neighbourhood operator and the rest:

.. math::
    \mathrm{layer}(h) = \mathrm{after}(M h W^\top + b)

with M the normalised adjacency (GCN) or adjacency plus identity (GIN). The operator and the map
commute, so whichever order is cheaper is taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch_geometric.data import Data
from torch_geometric.nn import GPSConv, PNAConv, ResGatedGraphConv

from gduq._torch import exporting
from gduq.graphs import num_graphs, row_batch
from gduq.graphs.sparse import csr, is_sparse, kept, linear, sparse_matmul
from gduq.nn.gnn_settings import Config

__all__ = ["LAYERS", "AnySize", "ConvLayer", "ForcedDropout", "GCNLayer", "GINLayer",
           "PropagationLayer", "Structure", "VirtualNode", "two_layers"]  # fmt: skip

Kind = Literal["gcn", "gin"]
_FUNCTIONAL = frozenset[object](
    (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
)
_NATIVE = (torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout)


@dataclass(frozen=True, eq=False)
class Structure:
    """Nodes, edges and graph membership, possibly of several copies of one graph.

    Rows of tensors go copy by copy: with ``copies`` D, row ``k * nodes + i`` is node i of copy k.
    Copies share one adjacency, so D versions of a representation can pass through a layer together.
    """

    graph: Data  # of one copy, as are the numbers of nodes and graphs
    copies: int = 1

    @cached_property
    def nodes(self) -> int:
        return self.graph.num_nodes or 0

    @cached_property
    def graphs(self) -> int:
        return num_graphs(self.graph)

    @cached_property
    def batch(self) -> Tensor:
        """The graph each row belongs to, ``[copies * nodes]``."""
        return self._stacked(row_batch(self.graph, "node", self.nodes), self.graphs)

    @cached_property
    def edge_index(self) -> Tensor:
        """Edges over all copies, ``[2, copies * E]``."""
        return self._stacked(self.graph.edge_index, self.nodes)

    def _stacked(self, numbers: Tensor, step: int) -> Tensor:
        """Numbers ``[..., n]`` of one copy as those of all, ``[..., copies * n]``."""
        if self.copies == 1:
            return numbers
        offsets = torch.arange(self.copies, device=numbers.device) * step
        return (numbers.unsqueeze(-2) + offsets.unsqueeze(1)).flatten(-2)

    # -- neighbourhood operators ---------------------------------------------------------------

    def mix(self, z: Tensor, kind: Kind) -> Tensor:
        """Apply the operator to every copy of ``z`` ``[copies * nodes, m]``."""
        if exporting():  # which knows no sparse matrices
            (source, target), weight = self._edges(kind, z.dtype)
            rows = z.view(self.copies, self.nodes, -1)
            messages = rows[:, source] * weight.unsqueeze(-1)
            return torch.zeros_like(rows).index_add(1, target, messages).flatten(0, 1)
        matrix = self._operator(kind, z.dtype if z.dtype == torch.float64 else torch.float32)
        parts = [sparse_matmul(matrix, part) for part in z.split(self.nodes)]
        return (parts[0] if self.copies == 1 else torch.cat(parts)).to(z.dtype)

    def gain(self, kind: Kind, dtype: torch.dtype) -> Tensor:
        """The operator's row sums ``[nodes, 1]``: what it does to a vector shared by all nodes."""
        ones = torch.ones(self.nodes, 1, dtype=dtype, device=self.graph.edge_index.device)
        return Structure(self.graph).mix(ones, kind)

    def _operator(self, kind: Kind, dtype: torch.dtype) -> Tensor:
        """The operator as a CSR matrix, kept while the edges live and nothing changes."""
        edges: Tensor = self.graph.edge_index
        weight: Tensor | None = self.graph.get("edge_weight") if kind == "gcn" else None

        def make() -> tuple[Tensor | None, Tensor]:
            (source, target), values = self._edges(kind, dtype)
            matrix = csr(target, source, values, (self.nodes, self.nodes))
            return None if weight is None else edges, matrix  # edges live with their number

        if weight is None:
            return kept(edges, (kind, dtype, self.nodes), make)[1]
        if edges.is_inference():
            return make()[1]
        return kept(weight, (dtype, self.nodes, id(edges), edges._version), make)[1]

    def _edges(self, kind: Kind, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Edges (with one self-loop per node behind them) and weights of one copy's operator.

        For GCN the same sums as PyG's ``gcn_norm``, with as many edges whatever they are: a loop
        among the edges weighs nothing, and gives its weight to the one behind them.
        """
        ends = torch.arange(self.nodes, device=self.graph.edge_index.device)
        source, target = self.graph.edge_index
        edges = torch.cat([self.graph.edge_index, torch.stack([ends, ends])], dim=1)
        if kind == "gin":
            return edges, torch.ones_like(edges[0], dtype=dtype)
        weight = self.graph.get("edge_weight")
        weight = torch.ones_like(source, dtype=dtype) if weight is None else weight.to(dtype)
        loops = source == target
        own = weight.new_ones(self.nodes + 1)
        own = own.index_put((torch.where(loops, source, self.nodes),), weight)[: self.nodes]
        weight = torch.cat([torch.where(loops, 0.0, weight), own])
        degree = weight.new_zeros(self.nodes).index_add(0, edges[1], weight)
        scale = torch.where(degree == 0, 0.0, degree.rsqrt())
        return edges, scale[edges[0]] * weight * scale[edges[1]]


# -- layers ----------------------------------------------------------------------------------------


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm that is one scale and offset in evaluation mode, which is several times faster,
    and in training where a batch is one row, which has no variance."""

    def scale_offset(self) -> tuple[Tensor, Tensor]:
        """Scale and offset in evaluation mode."""
        mean, var = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        scale = self.weight * (var + self.eps).rsqrt()
        return scale, self.bias - mean * scale

    def folded(self, linear: nn.Linear) -> tuple[Tensor, Tensor]:
        """Weight and bias of a linear map followed by this, in evaluation mode."""
        scale, offset = self.scale_offset()
        return linear.weight * scale.unsqueeze(1), linear.bias * scale + offset

    def forward(self, z: Tensor) -> Tensor:
        if self.training and z.size(0) > 1:
            return super().forward(z)
        scale, offset = self.scale_offset()
        return torch.addcmul(offset, z, scale)


def two_layers(channels: int, dropout: float) -> nn.Sequential:
    """Linear(H, 2H), BN, ReLU, Linear(2H, H), BN, ReLU, dropout."""
    wide = 2 * channels
    first = [nn.Linear(channels, wide), BatchNorm(wide), nn.ReLU()]
    last = [nn.Linear(wide, channels), BatchNorm(channels), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*first, *last)


class PropagationLayer(nn.Module, ABC):
    """Base of GCN and GIN: ``after(mix(h W^T) + b)``.

    ``linear`` becomes ``None`` when somebody else takes over the reading (`release`); the layer
    then serves through the operator of its ``kind`` and `after` only.
    """

    kind: Kind

    def __init__(self, channels: int, inner: int, dropout: float, last: bool) -> None:
        super().__init__()
        self.dropout, self.last = dropout, last
        self.linear: nn.Linear | None = nn.Linear(channels, inner)
        self.inner_norm = BatchNorm(inner)

    def read(self, h: Tensor, weight: Tensor, structure: Structure) -> Tensor:
        """``mix(h W^T)`` in the cheaper order; bias-free."""
        if not is_sparse(h) and h.size(1) < weight.size(0):
            return F.linear(structure.mix(h, self.kind), weight)
        return structure.mix(linear(h, weight), self.kind)

    def forward(self, h: Tensor, structure: Structure) -> Tensor:
        assert self.linear is not None
        return self.after(self.read(h, self.linear.weight, structure) + self.linear.bias)

    @abstractmethod
    def after(self, z: Tensor) -> Tensor:
        """All that follows the mixed map."""

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

    def __init__(self, channels: int, hidden: int, dropout: float, last: bool) -> None:
        super().__init__(channels, hidden, dropout, last)
        assert self.linear is not None
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def after(self, z: Tensor) -> Tensor:
        return self._finish(self.inner_norm(z))

    def read_by(self, head: nn.Linear, h: Tensor, structure: Structure) -> Tensor:
        """A linear head of this (last) layer, in evaluation mode: one map, of fewer channels."""
        assert self.linear is not None
        weight, bias = self.inner_norm.folded(self.linear)
        return self.read(h, head.weight @ weight, structure) + F.linear(
            bias, head.weight, head.bias
        )


class GINLayer(PropagationLayer):
    r"""Graph isomorphism layer (Xu et al., ICLR 2019) with :math:`\epsilon = 0`.

    .. math::
        h' = \mathrm{dropout}(\mathrm{relu}(\mathrm{BN}(W_2\,\mathrm{relu}(\mathrm{BN}(
        (A + I) h W_1^\top + b_1)) + b_2)))

    The inner width is twice the hidden one.
    """

    kind: Kind = "gin"

    def __init__(self, channels: int, hidden: int, dropout: float, last: bool) -> None:
        super().__init__(channels, 2 * hidden, dropout, last)
        self.outer = nn.Linear(2 * hidden, hidden)
        self.norm = BatchNorm(hidden)

    def after(self, z: Tensor) -> Tensor:
        h = F.relu(self.inner_norm(z), inplace=not self.training)
        if self.training:
            return self._finish(self.norm(self.outer(h)))
        return self._finish(F.linear(h, *self.norm.folded(self.outer)))

    def release(self, grow: bool, keep: bool) -> nn.Linear:
        first = super().release(grow, keep)
        if not grow:
            return first
        old, units = nn.ModuleList([first, self.inner_norm, self.outer]), 2 * first.out_features
        wide = nn.Linear(first.in_features, units)
        self.inner_norm, self.outer = BatchNorm(units), nn.Linear(units, self.outer.out_features)
        new = nn.ModuleList([wide, self.inner_norm, self.outer]).to(first.weight)
        if keep:  # old units as they were; new ones read but do not speak yet
            nn.init.zeros_(self.outer.weight)
            for name, value in old.state_dict().items():
                new.state_dict()[name][tuple(map(slice, value.shape))] = value
        return wide


# A new layer with an operator is one more entry here, one of PyG's a case of `ConvLayer`; and its
# name in `gnn_settings.Conv`.
LAYERS: dict[str, type[GCNLayer | GINLayer]] = {"gcn": GCNLayer, "gin": GINLayer}


class ConvLayer(nn.Module):
    """A convolution of PyG, then BatchNorm, ReLU (not in the last layer), dropout.

    GPS normalises inside, and takes the batch vector.
    """

    def __init__(self, config: Config, last: bool) -> None:
        super().__init__()
        hidden, self.dropout, self.last = config["hidden_channels"], config["dropout"], last
        self.conv: nn.Module = ResGatedGraphConv(hidden, hidden)
        self.norm: nn.Module | None = BatchNorm(hidden)
        if config["conv"] == "pna":
            self.conv = PNAConv(
                hidden,
                hidden,
                aggregators=["mean", "min", "max", "std"],
                scalers=["identity", "amplification", "attenuation"],
                deg=torch.tensor(config["degree"], device="cpu"),  # read, also on the meta device
            )
        elif config["conv"] == "gps":
            self.conv = GPSConv(hidden, self.conv, config["heads"], self.dropout)
            self.norm = None

    def forward(self, h: Tensor, structure: Structure) -> Tensor:
        if self.norm is None:
            return self.conv(h, structure.edge_index, batch=structure.batch)  # type: ignore[no-any-return]
        h = self.norm(self.conv(h, structure.edge_index))
        return F.dropout(h if self.last else F.relu(h), self.dropout, self.training)


class VirtualNode(nn.Module):
    """One extra state per graph, read by all its nodes and fed by their sum.

    The state starts from one learned vector; the MLP that updates it is the same for all layers.
    """

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.start = nn.Embedding(1, channels)
        self.mlp = two_layers(channels, dropout)

    def forward(self, h: Tensor, state: Tensor | None, structure: Structure) -> Tensor:
        """The next state ``[graphs, H]`` from a layer's output ``h`` ``[n, H]``."""
        if state is None:
            return self.start.weight.expand(structure.graphs * structure.copies, -1)
        return self.mlp(state.index_add(0, structure.batch, h))  # type: ignore[no-any-return]


# -- what changes how modules run or load ---------------------------------------------------------


class ForcedDropout(TorchFunctionMode):
    """Within this context every dropout call draws, whatever mode its module is in.

    It changes the calls, not the modules: functional dropout (as in ``GATConv``) and that of
    ``nn.MultiheadAttention`` draw too, and norms stay in evaluation mode. ``calls`` counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @classmethod
    def active(cls) -> bool:
        """Whether such a context is open: shortcuts that skip dropout must not be taken."""
        return any(isinstance(mode, cls) for mode in _get_current_function_mode_stack())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _FUNCTIONAL:
            p = kwargs.pop("p", args[1] if len(args) > 1 else 0.5)
            self.calls += p > 0
            return func(args[0], p=p, training=True, inplace=kwargs.get("inplace", False))
        if func in _NATIVE:
            x, p, _ = (*args, *(kwargs[k] for k in ("input", "p", "train") if k in kwargs))
            self.calls += p > 0
            return func(x, p, True)
        if func is F.multi_head_attention_forward:
            self.calls += args[10] > 0  # its dropout probability
            kwargs["training"] = True
        return func(*args, **kwargs)


class AnySize(nn.Module):
    """A module whose buffers take the size of what is loaded into them."""

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any
    ) -> None:
        for name, buffer in self._buffers.items():
            found = state_dict.get(prefix + name)
            if buffer is not None and found is not None and found.dim() == buffer.dim():
                setattr(self, name, torch.empty_like(found, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
