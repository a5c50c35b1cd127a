"""`GNN`: the backbones of the paper, as a chain that can be entered at any layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn.aggr import (
    AttentionalAggregation,
    MaxAggregation,
    MeanAggregation,
    SumAggregation,
)

from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import check_graph
from gduq.graphs.sparse import as_dtype, is_sparse, linear
from gduq.nn.forced_dropout import ForcedDropout
from gduq.nn.gnn_settings import (
    ChainPoint,
    Conv,
    HeadKind,
    Positional,
    Readout,
    Task,
    check_settings,
)
from gduq.nn.layers import CONVS, GCNLayer, PropagationLayer, Structure, VirtualNode, make_layer

__all__ = ["GNN", "as_chain"]


_READOUTS: dict[str, Callable[[int], nn.Module]] = {
    "mean": lambda _: MeanAggregation(),
    "sum": lambda _: SumAggregation(),
    "max": lambda _: MaxAggregation(),
    "attention": lambda channels: AttentionalAggregation(nn.Linear(channels, 1)),
}


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

    @property
    def is_deep(self) -> bool:
        """Whether it has several layers."""
        return not isinstance(self.rest, nn.Identity)

    def forward(self, h: Tensor) -> Tensor:
        assert self.first is not None
        return self.rest(self.first(h))  # type: ignore[no-any-return]


class GNN(nn.Module):
    """A graph neural network for node or graph classification.

    The layer order is that of the paper's models: convolution, BatchNorm, ReLU, dropout, without
    ReLU in the last layer; then the readout (graph tasks) and the head. GCN and GIN read the
    features directly; PNA, GatedGCN and GPS start with a linear encoder.

    Args:
        in_channels: Width of ``x``; 0 when the positional encoding is the only feature; the
            width of each embedding when ``categories`` is given.
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
            training; ``"peg"`` weighs edges by the distance of their ends' encodings.
        positional_channels: Width of ``graph.pe``.
        categories: Number of values of each integer column of ``x``; embeddings are summed.
        edge_channels: Width of ``edge_attr`` (PNA, GatedGCN, GPS).
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
        categories: Sequence[int] | None = None,
        edge_channels: int = 0,
        degree: Sequence[int] | Tensor | None = None,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = {
            k: v for k, v in locals().items() if k not in ("self", "__class__")
        }
        self.config["degree"] = None if degree is None else [int(d) for d in degree]
        self.config["categories"] = None if categories is None else [int(c) for c in categories]
        check_settings(self.config)
        self.task: Task = task
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.embeddings = nn.ModuleList(nn.Embedding(c, in_channels) for c in categories or ())
        self.width = in_channels + (positional_channels if positional == "laplacian" else 0)
        direct = isinstance(CONVS[conv], type)  # a layer of ours reads any width
        self.encoder = None if direct else nn.Linear(self.width, hidden_channels)
        self.layers = nn.ModuleList(
            make_layer(self.config, self.width if direct and i == 0 else hidden_channels, i)
            for i in range(num_layers)
        )
        self.virtual = VirtualNode(hidden_channels, dropout) if virtual_node else None
        self.pool = _READOUTS[readout](hidden_channels) if task == "graph" else None
        self.head = Head(hidden_channels, out_channels, head, dropout)

    @property
    def points(self) -> tuple[ChainPoint, ...]:
        """Where the chain can be entered: ``"input"``, layers 1 to L - 1, ``"readout"``."""
        return ("input", *range(1, len(self.layers)), "readout")

    def forward(self, graph: Data) -> Tensor:
        """Logits ``[n, C]`` of all nodes, or ``[G, C]`` of all graphs."""
        structure, h = self._start(graph)
        return self._run(self._encode(h), None, structure, 0)

    # -- the chain, in two parts ---------------------------------------------------------------

    def prefix(self, graph: Data, point: ChainPoint) -> tuple[Tensor, Tensor | None]:
        """The representation at a point, ``[n or G, d]``, and the virtual nodes' state there."""
        structure, h = self._start(graph)
        if point == "input":
            return h, None
        stop = len(self.layers) if point == "readout" else int(point)
        h, state = self._layers(self._encode(h), None, structure, 0, stop)
        return (self._pooled(h, structure), None) if point == "readout" else (h, state)

    def suffix(
        self,
        z: Tensor,
        state: Tensor | None,
        structure: Structure | None,
        point: ChainPoint,
        normed: bool = False,
    ) -> Tensor:
        """Logits from what the map at a point made of the representation there.

        ``z`` ``[copies * n, m]`` has passed the linear map (and neighbourhood operator) of the
        point's layer, or replaces the layer's input where the layer has none to give away.
        ``structure`` may be ``None`` at the readout, which needs no graph.
        """
        if point == "readout":
            return self.head.rest(z)  # type: ignore[no-any-return]
        assert structure is not None
        if self._reads_first(point):
            return self._run(z, None, structure, 0)
        index = 0 if point == "input" else int(point)
        layer = self.layers[index]
        h = layer.after(z, normed) if isinstance(layer, PropagationLayer) else layer(z, structure)
        if state is not None and structure.copies > 1:
            state = state.repeat(structure.copies, 1)
        h, state = self._with_state(h, state, structure, index)
        return self._run(h, state, structure, index + 1)

    def _reads_first(self, point: ChainPoint) -> bool:
        """Whether the encoder reads what is at a point."""
        return point == "input" and self.encoder is not None

    def propagation_layer(self, point: ChainPoint) -> PropagationLayer | None:
        """The layer whose operator acts on the map at a point, if there is one."""
        if point == "readout" or self._reads_first(point):
            return None
        layer = self.layers[0 if point == "input" else int(point)]
        return layer if isinstance(layer, PropagationLayer) else None

    def release(self, point: ChainPoint, keep: bool) -> nn.Linear | None:
        """Hand over the linear map at a point, or ``None`` where a layer has several.

        A GIN layer beyond the first doubles its inner width for a reader of doubled input, as in
        the paper's layerwise models; ``keep`` leaves its function unchanged.
        """
        if point == "readout":
            taken, self.head.first = self.head.first, None
            return taken
        if self._reads_first(point):
            taken, self.encoder = self.encoder, nn.Identity()  # type: ignore[assignment]
            return taken
        layer = self.propagation_layer(point)
        return None if layer is None else layer.release(grow=point != "input", keep=keep)

    def prefix_modules(self, point: ChainPoint) -> list[nn.Module]:
        """The modules that run before a point and not after it."""
        if point == "input":
            return [self.embeddings]
        stop = len(self.layers) if point == "readout" else int(point)
        parts: list[nn.Module | None] = [self.embeddings, self.encoder, *self.layers[:stop]]
        if point == "readout":
            parts += [self.virtual, self.pool]
        elif self.virtual is not None:  # its start is read before any layer but the first
            parts += [self.virtual.start] if stop == 1 else [self.virtual]
        return [part for part in parts if part is not None]

    def message_size(self, graph: Data, point: ChainPoint) -> int:
        """About how many numbers a layer behind a point holds for messages and attention."""
        if self.encoder is None or point == "readout" or exporting():
            return 0
        towers = 12 if self.config["conv"] == "pna" else 4
        size = towers * int(graph.num_edges) * self.hidden_channels
        if self.config["conv"] == "gps":
            sizes = torch.bincount(Structure.of(graph).batch)
            size += int(self.config["heads"]) * int(sizes.max()) ** 2 * sizes.numel()
        return size

    # -- its links -----------------------------------------------------------------------------

    def _start(self, graph: Data) -> tuple[Structure, Tensor]:
        check_graph(graph, len(self.embeddings) or self.in_channels or None)
        if graph.get("edge_index") is None:
            raise InputError("a graph with edge_index", "one with adj_t only")
        if self.config["edge_channels"]:
            _check_edge_features(graph, self.config["edge_channels"])
        if self.config["positional"] == "peg":
            _encoding(graph, self.config["positional_channels"])
        structure = Structure.of(graph)
        return structure, _input_features(self, graph, structure)

    def _encode(self, h: Tensor) -> Tensor:
        return h if self.encoder is None else linear(h, self.encoder.weight, self.encoder.bias)

    def _layers(
        self, h: Tensor, state: Tensor | None, structure: Structure, start: int, stop: int
    ) -> tuple[Tensor, Tensor | None]:
        """Layers ``start`` to ``stop - 1``; the output is what layer ``stop`` would read."""
        for i in range(start, stop):
            h, state = self._with_state(self.layers[i](h, structure), state, structure, i)
        return h, state

    def _with_state(
        self, h: Tensor, state: Tensor | None, structure: Structure, layer: int
    ) -> tuple[Tensor, Tensor | None]:
        """A layer's output with the virtual nodes' state, which wakes after the first layer and
        rests at the last."""
        if self.virtual is None or layer == len(self.layers) - 1:
            return h, state
        if layer == 0:
            state = self.virtual.initial(structure.graphs * structure.copies)
        else:
            assert state is not None
            state = self.virtual.update(h, state, structure.batch)
        return h + state[structure.batch], state

    def _run(self, h: Tensor, state: Tensor | None, structure: Structure, start: int) -> Tensor:
        """Layers from ``start``, readout and head; ``h`` is what layer ``start`` reads."""
        last = self.layers[-1]
        if not self._can_fold(start):
            h, _ = self._layers(h, state, structure, start, len(self.layers))
            return self.head(self._pooled(h, structure))  # type: ignore[no-any-return]
        h, _ = self._layers(h, state, structure, start, len(self.layers) - 1)
        weight, bias = last.folded_into(self.head.first)  # type: ignore[operator]
        return last.read(h, weight, structure).add_(bias)  # type: ignore[operator, no-any-return]

    def _can_fold(self, start: int) -> bool:
        """Whether the last layer and the head are one linear map, in evaluation mode."""
        return (
            not self.training
            and not ForcedDropout.active()
            and self.pool is None
            and isinstance(self.layers[-1], GCNLayer)
            and not self.head.is_deep
            and start < len(self.layers)
        )

    def _pooled(self, h: Tensor, structure: Structure) -> Tensor:
        if self.pool is None:
            return h
        graphs = structure.graphs * structure.copies
        return self.pool(h, structure.batch, dim_size=graphs)  # type: ignore[no-any-return]


# -- what it reads of a graph ---------------------------------------------------------------------


def _input_features(net: GNN, graph: Data, structure: Structure) -> Tensor:
    """What the first layer or encoder of a network reads ``[n, d]``; sparse CSR ``x`` stays so."""
    dtype = next(net.parameters()).dtype
    parts = []
    if len(net.embeddings):
        parts.append(_embed(graph.x, net.embeddings))
    elif net.in_channels:
        x = graph.get("x")
        if x is None:
            raise InputError(f"graphs with features x of width {net.in_channels}", "none")
        if is_sparse(x) and net.width == net.in_channels:
            return as_dtype(x, dtype)
        parts.append((x.to_dense() if is_sparse(x) else x).to(dtype))
    if net.config["positional"] == "laplacian":
        pe = _encoding(graph, net.config["positional_channels"]).to(dtype)
        if net.training:  # the sign of an eigenvector means nothing
            signs = torch.randint(0, 2, (structure.graphs, pe.size(1)), device=pe.device) * 2 - 1
            pe = pe * signs[structure.batch]
        parts.append(pe)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _encoding(graph: Data, channels: int) -> Tensor:
    """The encoding stored on a graph as ``pe``, ``[n, channels]``."""
    pe = graph.get("pe")
    if pe is None or tuple(pe.shape) != (graph.num_nodes, channels):
        raise InputError(
            f"graphs with an encoding pe of shape [{graph.num_nodes}, {channels}]",
            "none" if pe is None else list(pe.shape),
            f"Apply torch_geometric.transforms.AddLaplacianEigenvectorPE({channels}, 'pe').",
        )
    if not torch.compiler.is_compiling() and not bool(torch.isfinite(pe).all()):
        raise InputError("finite encodings pe", "NaN or infinite values")
    return pe  # type: ignore[no-any-return]


def _embed(x: Tensor, embeddings: nn.ModuleList) -> Tensor:
    if x.is_floating_point():
        raise InputError("integer categories in x", x.dtype, "Convert with .long().")
    pairs: list[tuple[Tensor, Any]] = list(zip(x.unbind(dim=1), embeddings, strict=True))
    for column, embedding in pairs if not exporting() else ():
        low, high, count = int(column.min()), int(column.max()), embedding.num_embeddings
        if low < 0 or high >= count:
            raise InputError(f"categories from 0 to {count - 1}", f"{low} to {high}")
    total: Tensor = reduce(add, [embedding(column) for column, embedding in pairs])
    return total


def _check_edge_features(graph: Data, channels: int) -> None:
    """Raise where ``edge_attr`` has another width than the network was built for."""
    attr = graph.get("edge_attr")
    shape = None if attr is None else list(attr.shape if attr.dim() > 1 else [attr.numel(), 1])
    if shape != [graph.edge_index.size(1), channels]:
        raise InputError(
            f"edge_attr of shape [{graph.edge_index.size(1)}, {channels}]", shape or "none"
        )


_CHAIN = ("forward", "prefix", "suffix", "release")  # what makes a GNN a chain


def as_chain(net: nn.Module) -> GNN | None:
    """The network as the chain of layers that it is, if it is one of gduq's own.

    A subclass with a pass of its own is like any other network.
    """
    if not isinstance(net, GNN):
        return None
    own = (name for name in _CHAIN if getattr(type(net), name) is not getattr(GNN, name))
    return net if next(own, None) is None else None
