"""`GNN`: the backbones of the paper, as a chain that can be entered at any layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch_geometric.data import Data
from torch_geometric.nn.aggr import AttentionalAggregation
from torch_geometric.nn.resolver import aggregation_resolver

from gduq.errors import InputError
from gduq.graphs import check_graph
from gduq.graphs.sparse import as_dtype, is_sparse, linear
from gduq.nn.bond_gnn import BondGNN
from gduq.nn.gnn_settings import (
    ChainPoint,
    Config,
    Conv,
    HeadKind,
    Positional,
    Readout,
    Task,
    check_settings,
)
from gduq.nn.layers import (
    LAYERS,
    ConvLayer,
    ForcedDropout,
    GCNLayer,
    PropagationLayer,
    Structure,
    VirtualNode,
)

__all__ = ["GNN", "as_chain", "class_name", "network_from", "network_spec"]


class Head(nn.Module):
    """The classifier: a linear map, or two with ReLU and dropout between.

    ``first`` is ``None`` while somebody else reads for it.
    """

    def __init__(self, channels: int, classes: int, kind: HeadKind, dropout: float) -> None:
        super().__init__()
        hidden = channels if kind == "mlp" else classes
        self.first: nn.Linear | None = nn.Linear(channels, hidden)
        deep = kind == "mlp" and [nn.ReLU(), nn.Dropout(dropout), nn.Linear(channels, classes)]
        self.rest = nn.Sequential(*deep) if deep else nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        assert self.first is not None
        return self.rest(self.first(h))  # type: ignore[no-any-return]


class GNN(nn.Module):
    """A graph neural network for node or graph classification.

    The layer order is that of the paper's models: convolution, BatchNorm, ReLU, dropout, without
    ReLU in the last layer; then the readout (graph tasks) and the head. GCN and GIN read the
    features directly; PNA, GatedGCN and GPS start with a linear encoder.

    Args:
        in_channels: Width of ``x``; 0 when the positional encoding is the only feature.
        hidden_channels: H.
        out_channels: Classes, or 1 for a binary task with one logit.
        num_layers: L.
        conv: ``"gcn"``, ``"gin"``, ``"pna"``, ``"gated_gcn"`` or ``"gps"`` (GatedGCN + attention).
        task: ``"node"`` or ``"graph"``.
        virtual_node: Adds a virtual node from the second layer on (graph tasks).
        dropout: Probability, after every layer.
        head: ``"linear"`` or ``"mlp"`` (two layers).
        readout: ``"mean"``, ``"sum"``, ``"max"`` or ``"attention"``.
        positional: ``"laplacian"`` joins ``graph.pe`` to the features, with random signs in
            training.
        positional_channels: Width of ``graph.pe``.
        degree: Histogram of node degrees in the training data, needed by PNA
            (``PNAConv.get_degree_histogram``).
        heads: Attention heads of GPS.

    Example:
        >>> net = GNN(4, 300, 3, num_layers=3, conv="gin")
        >>> sum(p.numel() for p in net.parameters())
        911403
        >>> net.points
        ('input', 1, 2, 'readout')
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        conv: Conv = "gin",
        task: Task = "graph",
        virtual_node: bool = False,
        dropout: float = 0.5,
        head: HeadKind = "linear",
        readout: Readout = "mean",
        positional: Positional | None = None,
        positional_channels: int = 4,
        degree: Sequence[int] | Tensor | None = None,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.config: Config = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        self.config["degree"] = None if degree is None else [int(d) for d in degree]
        check_settings(self.config)
        self.task: Task = task
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.width = in_channels + (positional_channels if positional == "laplacian" else 0)
        own = LAYERS.get(conv)  # which reads any width
        self.encoder = nn.Linear(self.width, hidden_channels) if own is None else None
        widths = [self.width, *[hidden_channels] * (num_layers - 1)]
        self.layers = nn.ModuleList(
            ConvLayer(self.config, i == num_layers - 1)
            if own is None
            else own(width, hidden_channels, dropout, i == num_layers - 1)
            for i, width in enumerate(widths)
        )
        self.virtual = VirtualNode(hidden_channels, dropout) if virtual_node else None
        self.pool: nn.Module | None = None
        if task == "graph" and readout == "attention":
            self.pool = AttentionalAggregation(nn.Linear(hidden_channels, 1))
        elif task == "graph":
            self.pool = aggregation_resolver(readout)
        self.head = Head(hidden_channels, out_channels, head, dropout)

    @property
    def points(self) -> tuple[ChainPoint, ...]:
        """Where the chain can be entered: ``"input"``, layers 1 to L - 1, ``"readout"``."""
        return ("input", *range(1, len(self.layers)), "readout")

    def forward(self, graph: Data) -> Tensor:
        """Logits ``[n, C]`` of all nodes, or ``[G, C]`` of all graphs."""
        return self.head(self.prefix(graph, "readout")[0])  # type: ignore[no-any-return]

    # -- the chain, in two parts ---------------------------------------------------------------

    def prefix(self, graph: Data, point: ChainPoint) -> tuple[Tensor, Tensor | None]:
        """The representation at a point, ``[n or G, d]``, and the virtual nodes' state there."""
        structure = Structure(graph)
        h = self._features(structure)
        if point == "input":
            return h, None
        h = h if self.encoder is None else linear(h, self.encoder.weight, self.encoder.bias)
        h, state = self._layers(h, None, structure, 0, self._number(point))
        return (self._pooled(h, structure), None) if point == "readout" else (h, state)

    def suffix(
        self, z: Tensor, state: Tensor | None, structure: Structure, point: ChainPoint
    ) -> Tensor:
        """Logits from what the map at a point made of the representation there.

        ``z`` ``[copies * n, m]`` has passed the linear map (and neighbourhood operator) of the
        point's layer, or replaces the layer's input where the layer has none to give away.
        """
        if point == "readout":
            return self.head.rest(z)  # type: ignore[no-any-return]
        if state is not None and structure.copies > 1:
            state = state.repeat(structure.copies, 1)
        mixed, start = self.propagation_layer(point) is not None, self._number(point)
        last, stop = self.layers[-1], len(self.layers)
        in_one = isinstance(last, GCNLayer) and isinstance(self.head.rest, nn.Identity)
        evaluating = not (last.training or self.pool or ForcedDropout.active())
        if in_one and evaluating and stop - start > mixed:  # one map of few channels
            h, _ = self._layers(z, state, structure, start, stop - 1, mixed)
            return cast(GCNLayer, last).read_by(cast(nn.Linear, self.head.first), h, structure)
        h, _ = self._layers(z, state, structure, start, stop, mixed)
        return self.head(self._pooled(h, structure))  # type: ignore[no-any-return]

    def _number(self, point: ChainPoint) -> int:
        """How many layers are before a point."""
        if isinstance(point, int):
            return point
        return 0 if point == "input" else len(self.layers)

    def propagation_layer(self, point: ChainPoint) -> PropagationLayer | None:
        """The layer whose operator acts on the map at a point, if there is one."""
        if point == "readout" or (point == "input" and self.encoder is not None):
            return None
        layer = self.layers[self._number(point)]
        return layer if isinstance(layer, PropagationLayer) else None

    def release(self, point: ChainPoint, keep: bool) -> nn.Linear | None:
        """Hand over the linear map at a point, or ``None`` where a layer has several.

        A GIN layer beyond the first doubles its inner width for a reader of doubled input, as in
        the paper's layerwise models; ``keep`` leaves its function unchanged.
        """
        if point == "readout":
            taken, self.head.first = self.head.first, None
            return taken
        if point == "input" and self.encoder is not None:
            taken, self.encoder = self.encoder, nn.Identity()  # type: ignore[assignment]
            return taken
        layer = self.propagation_layer(point)
        return None if layer is None else layer.release(grow=point != "input", keep=keep)

    def prefix_modules(self, point: ChainPoint) -> list[nn.Module]:
        """The modules that run before a point and not after it."""
        stop = self._number(point)
        parts = [self.encoder, *self.layers[:stop]] if stop else []
        if point == "readout":
            parts += [self.virtual, self.pool]
        elif stop and self.virtual is not None:  # any layer but the first reads its start
            parts += [self.virtual.start] if stop == 1 else [self.virtual]
        return [part for part in parts if part is not None]

    def layer_size(self, graph: Data, point: ChainPoint, h: Tensor) -> int:
        """About how many numbers a layer behind a point, where ``h`` is, holds."""
        if point == "readout":
            return h.numel()
        if self.encoder is None:  # GCN or GIN
            return 2 * h.size(0) * self.hidden_channels
        if self.config["conv"] == "gps":  # attention between all nodes of a graph
            return 2**62
        return max(h.numel(), 12 * int(graph.num_edges) * self.hidden_channels)

    # -- its links -----------------------------------------------------------------------------

    def _features(self, structure: Structure) -> Tensor:
        """What the first layer or encoder reads ``[n, d]``; sparse CSR ``x`` stays so."""
        graph, dtype = structure.graph, next(self.parameters()).dtype
        check_graph(graph, self.in_channels or None)
        if graph.get("edge_index") is None:
            raise InputError("a graph with edge_index", "one with adj_t only")
        x: Tensor | None = graph.get("x") if self.in_channels else None
        if x is None and self.in_channels:
            raise InputError(f"graphs with features x of width {self.in_channels}", "none")
        if x is not None:
            x = as_dtype(x, dtype) if is_sparse(x) else x.to(dtype)
        if x is not None and self.config["positional"] is None:
            return x
        pe = _encoding(graph, self.config["positional_channels"]).to(dtype)
        if self.training:  # the sign of an eigenvector means nothing
            signs = torch.randint(0, 2, (structure.graphs, pe.size(1)), device=pe.device) * 2 - 1
            pe = pe * signs[structure.batch]
        if x is None:
            return pe
        return torch.cat([x.to_dense() if is_sparse(x) else x, pe], dim=-1)

    def _layers(
        self,
        h: Tensor,
        state: Tensor | None,
        structure: Structure,
        start: int,
        stop: int,
        mixed: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Layers ``start`` to ``stop - 1``; the output is what layer ``stop`` would read.

        The map and operator of the first may have been applied (``mixed``). The virtual nodes'
        state wakes after the first layer of the network and rests at the last.
        """
        for i in range(start, stop):
            layer = cast(PropagationLayer, self.layers[i])
            h = layer.after(h) if mixed and i == start else layer(h, structure)
            if self.virtual is not None and i < len(self.layers) - 1:
                state = self.virtual(h, state, structure)
                h = h + state[structure.batch]
        return h, state

    def _pooled(self, h: Tensor, structure: Structure) -> Tensor:
        if self.pool is None:
            return h
        graphs = structure.graphs * structure.copies
        return self.pool(h, structure.batch, dim_size=graphs)  # type: ignore[no-any-return]


def _encoding(graph: Data, channels: int) -> Tensor:
    """The encoding stored on a graph as ``pe``, ``[n, channels]``."""
    pe = graph.get("pe")
    fits = pe is not None and tuple(pe.shape) == (graph.num_nodes, channels)
    if not fits or not (torch.compiler.is_compiling() or bool(pe.isfinite().all())):
        raise InputError(
            f"graphs with a finite encoding pe of shape [{graph.num_nodes}, {channels}]",
            "none" if pe is None else "NaN or infinite values" if fits else list(pe.shape),
            f"Apply torch_geometric.transforms.AddLaplacianEigenvectorPE({channels}, 'pe').",
        )
    return pe  # type: ignore[no-any-return]


def as_chain(net: nn.Module) -> GNN | None:
    """The network as the chain of layers that it is, if it is one of gduq's own.

    A subclass with a pass of its own is like any other network.
    """
    return net if isinstance(net, GNN) and type(net).forward is GNN.forward else None


# -- networks as JSON: gduq's own by their arguments, any other by the name of its class -----------

_OWN: dict[str, type[GNN | BondGNN]] = {"GNN": GNN, "BondGNN": BondGNN}


def network_spec(net: nn.Module) -> Config:
    """How a network is made again; exact types only, as a subclass may do anything."""
    if isinstance(net, (GNN, BondGNN)) and type(net) in _OWN.values():
        plain = {k: v.item() if hasattr(v, "item") else v for k, v in net.config.items()}
        return {"kind": type(net).__name__, "config": plain}
    return {"kind": "other", "class": class_name(net)}


def class_name(net: nn.Module) -> str:
    """The full name of a network's class; every traced network has a class of its own."""
    kind = GraphModule if isinstance(net, GraphModule) else type(net)
    return f"{kind.__module__}.{kind.__qualname__}"


def network_from(spec: Config) -> nn.Module:
    """A fresh network of gduq's own."""
    if spec["kind"] not in _OWN:
        raise InputError("a kind of network this gduq knows", repr(spec["kind"]), "Upgrade gduq.")
    return _OWN[spec["kind"]](**spec["config"])
