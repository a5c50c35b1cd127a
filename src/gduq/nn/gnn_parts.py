"""What a `GNN` is made of: its layers by name, readout, head, and what it reads of a graph."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GPSConv, PNAConv, ResGatedGraphConv
from torch_geometric.nn.aggr import (
    AttentionalAggregation,
    MaxAggregation,
    MeanAggregation,
    SumAggregation,
)

from gduq.errors import InputError
from gduq.export_mode import exporting
from gduq.graph.sparse import as_dtype, is_sparse
from gduq.nn.gnn_settings import HeadKind, Readout
from gduq.nn.layers import ConvLayer, GCNLayer, GINLayer
from gduq.nn.neighbourhoods import Structure

if TYPE_CHECKING:
    from gduq.nn.gnn import GNN

__all__ = [
    "Head",
    "check_edge_features",
    "encoding",
    "input_features",
    "make_layer",
    "make_pool",
    "message_size",
]


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


def input_features(net: GNN, graph: Data, structure: Structure) -> Tensor:
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
        pe = encoding(graph, net.config["positional_channels"]).to(dtype)
        if net.training:  # the sign of an eigenvector means nothing
            signs = torch.randint(0, 2, (structure.graphs, pe.size(1)), device=pe.device) * 2 - 1
            pe = pe * signs[structure.batch]
        parts.append(pe)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def encoding(graph: Any, channels: int) -> Tensor:
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


def message_size(net: GNN, graph: Data) -> int:
    """About how many numbers a layer holds for its messages and attention in one pass."""
    if net.encoder is None or exporting():
        return 0
    towers = 12 if net.config["conv"] == "pna" else 4
    size = towers * int(graph.num_edges) * int(net.hidden_channels)
    if net.config["conv"] == "gps":
        sizes = torch.bincount(Structure.of(graph).batch)
        size += int(net.config["heads"]) * int(sizes.max()) ** 2 * sizes.numel()
    return size


def make_layer(config: dict[str, Any], in_channels: int, index: int) -> nn.Module:
    """Layer ``index`` of a network with these settings."""
    hidden, dropout, conv = config["hidden_channels"], config["dropout"], config["conv"]
    last, gated = index == config["num_layers"] - 1, config["positional"] == "peg"
    if conv in ("gcn", "gin"):
        kind = GCNLayer if conv == "gcn" else GINLayer
        return kind(in_channels, hidden, dropout, last, gated)
    edge_dim = config["edge_channels"] + gated or None
    if conv == "pna":
        layer: nn.Module = PNAConv(
            hidden,
            hidden,
            aggregators=["mean", "min", "max", "std"],
            scalers=["identity", "amplification", "attenuation"],
            deg=torch.tensor(config["degree"]),
            edge_dim=edge_dim,
        )
    else:
        layer = ResGatedGraphConv(hidden, hidden, edge_dim=edge_dim)
    norm: nn.BatchNorm1d | None = nn.BatchNorm1d(hidden)
    if conv == "gps":
        layer = GPSConv(hidden, layer, heads=config["heads"], dropout=dropout)
        norm = None  # GPS normalises inside
    return ConvLayer(
        layer, norm, dropout, last, config["edge_channels"], gated, takes_batch=conv == "gps"
    )


def make_pool(readout: Readout, channels: int) -> nn.Module:
    """The readout of a graph task."""
    if readout == "attention":
        return AttentionalAggregation(nn.Linear(channels, 1))  # type: ignore[no-any-return]
    kinds = {"mean": MeanAggregation, "sum": SumAggregation, "max": MaxAggregation}
    return kinds[readout]()  # type: ignore[no-any-return]


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


def check_edge_features(graph: Data, channels: int) -> None:
    """Raise where ``edge_attr`` has another width than the network was built for."""
    attr = graph.get("edge_attr")
    shape = None if attr is None else list(attr.shape if attr.dim() > 1 else [attr.numel(), 1])
    if shape != [graph.edge_index.size(1), channels]:
        raise InputError(
            f"edge_attr of shape [{graph.edge_index.size(1)}, {channels}]", shape or "none"
        )
