"""The networks of rotated digits: GatedGCN with edge states and GPS around it, as GraphGPS has them
(Rampášek et al., NeurIPS 2022), which the paper names."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GPSConv
from torch_geometric.utils import scatter

from gduq.nn import GNN
from gduq.nn.layers import Structure

__all__ = ["EdgeGNN", "GatedGCN"]


class GatedGCN(nn.Module):
    r"""Gates that edges hold (Bresson & Laurent, 2018), and states of edges that they come from.

    .. math::
        \hat e_{ij} = A h_i + B h_j + C e_{ij}, \qquad g_{ij} = \sigma(\hat e_{ij})\, r_{ij},
        \qquad \hat h_i = U h_i + \frac{\sum_j g_{ij} \odot V h_j}{\sum_j g_{ij} + \epsilon}

    Nodes and edges go through BatchNorm, ReLU and dropout, and are added to what they were.
    ``stable`` encodings (PEG; Wang et al., ICLR 2022) enter by :math:`r_{ij} \in (0, 1)`, a small
    network of :math:`\|p_i - p_j\|^2`, which rotations and signs of eigenvectors leave as it is.
    The states begin with the distance of positions.
    """

    def __init__(self, hidden: int, dropout: float, stable: bool, residual: bool) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(2))
        self.start = nn.Linear(1, hidden)
        parts = [nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid()]
        self.close = nn.Sequential(*parts) if stable else None
        self.dropout, self.residual = dropout, residual

    def forward(self, h: Tensor, edge_index: Tensor, structure: Structure) -> Tensor:
        here, there = edge_index.flip(0)  # j is here's neighbour
        graph, known = structure.graph, vars(structure)  # which lives for one pass
        if "edge_states" not in known:
            known["edge_states"] = self.start(_distance(graph.pos, here, there).sqrt())
        at, to, along, own, send = self.maps
        edge = at(h)[here] + to(h)[there] + along(known["edge_states"])
        gate = edge.sigmoid()
        gate = gate if self.close is None else gate * self.close(_distance(graph.pe, here, there))
        gathered, total = (scatter(x, here, 0, h.size(0)) for x in (gate * send(h)[there], gate))
        found = self._finished(own(h) + gathered / (total + 1e-6), 0)
        known["edge_states"] = known["edge_states"] + self._finished(edge, 1)
        return h + found if self.residual else found

    def _finished(self, x: Tensor, norm: int) -> Tensor:
        return F.dropout(self.norms[norm](x).relu(), self.dropout, self.training)


def _distance(places: Tensor, here: Tensor, there: Tensor) -> Tensor:
    """Squared, of the ends of edges ``[e, 1]``."""
    return (places[here] - places[there]).square().sum(dim=1, keepdim=True).float()


class EdgeLayer(nn.Module):
    """A `GatedGCN`, or GPS with one: attention beside it, and two layers behind both."""

    def __init__(self, net: GNN, stable: bool) -> None:
        super().__init__()
        hidden, dropout, heads = (net.config[k] for k in ("hidden_channels", "dropout", "heads"))
        self.gps = net.config["conv"] == "gps"  # which adds what went in, too
        conv = GatedGCN(hidden, dropout, stable, residual=not self.gps)
        self.conv = GPSConv(hidden, conv, heads, dropout) if self.gps else conv

    def forward(self, h: Tensor, structure: Structure) -> Tensor:
        assert structure.copies == 1  # the readout is behind all layers
        options = {"structure": structure} | ({"batch": structure.batch} if self.gps else {})
        return self.conv(h, structure.edge_index, **options)  # type: ignore[no-any-return]


class EdgeGNN(GNN):
    """A `gduq.nn.GNN` of such layers, of ``pos`` and, if ``stable``, encodings ``pe``."""

    def __init__(self, *sizes: Any, stable: bool = False, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.layers = nn.ModuleList(EdgeLayer(self, stable) for _ in self.layers)
