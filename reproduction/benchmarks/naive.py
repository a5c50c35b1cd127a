"""Anchoring the plain way: build [h - c || c], loop over anchors, PyG's own layers.

Slow and obvious on purpose. The fast path must give the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GCNConv, GINConv, global_mean_pool

import gduq
from gduq.nn.layers import GCNLayer, GINLayer, PropagationLayer


class NaiveGNN(nn.Module):
    """A GCN or GIN of PyG's layers; layer ``at`` (or the head) reads pairs of doubled width."""

    def __init__(self, model: gduq.nn.GNN | gduq.Anchored) -> None:
        super().__init__()
        net = model.point.net if isinstance(model, gduq.Anchored) else model
        self.pooled, self.at = net.task == "graph", None
        if isinstance(model, gduq.Anchored):
            self.at = {"input": 0, "readout": len(net.layers)}.get(model.recipe.at, model.recipe.at)
        self.dropout = net.config["dropout"]
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for i, layer in enumerate(net.layers):
            reader = model.linear if i == self.at else layer.linear
            conv, norm = _conv(layer, reader)
            self.convs.append(conv)
            self.norms.append(norm)
        self.head = _linear(model.linear if self.at == len(net.layers) else net.head.first)

    def forward(self, graph: Data, anchor: Tensor | None = None) -> Tensor:
        h = graph.x.to_dense() if graph.x.layout != torch.strided else graph.x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            h = norm(conv(_pair(h, anchor) if i == self.at else h, graph.edge_index))
            h = h if i == len(self.convs) - 1 else h.relu()
            h = nn.functional.dropout(h, self.dropout, self.training)
        if self.pooled:
            h = global_mean_pool(h, graph.batch)
        return self.head(_pair(h, anchor) if self.at == len(self.convs) else h)

    def sample(self, graph: Data, bank: Tensor) -> Tensor:
        return torch.stack([self(graph, anchor) for anchor in bank])


def _pair(h: Tensor, anchor: Tensor) -> Tensor:
    return torch.cat([h - anchor, anchor.expand_as(h)], dim=-1)


def _linear(like: nn.Module) -> nn.Linear:
    layer = nn.Linear(like.weight.size(1), like.weight.size(0)).to(like.weight.dtype)
    layer.load_state_dict({"weight": like.weight.detach(), "bias": like.bias.detach()})
    return layer


def _conv(layer: PropagationLayer, reader: nn.Module) -> tuple[nn.Module, nn.Module]:
    if isinstance(layer, GCNLayer):
        conv = GCNConv(reader.weight.size(1), reader.weight.size(0)).to(reader.weight.dtype)
        conv.load_state_dict({"lin.weight": reader.weight.detach(), "bias": reader.bias.detach()})
        return conv, _norm(layer.inner_norm)
    assert isinstance(layer, GINLayer)
    conv = GINConv(nn.Identity())  # which draws the weights of its parts anew
    parts = [_linear(reader), _norm(layer.inner_norm), nn.ReLU(), _linear(layer.outer)]
    conv.nn = nn.Sequential(*parts)
    return conv, _norm(layer.norm)


def _norm(like: nn.BatchNorm1d) -> nn.Module:
    norm = BatchNorm(like.num_features).to(like.weight.dtype)
    norm.module.load_state_dict(like.state_dict())
    return norm
