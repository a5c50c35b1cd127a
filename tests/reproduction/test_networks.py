"""GatedGCN with edge states and GPS, against sums by hand; encodings that are stable."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

import gduq
from gduq.nn.layers import Structure
from gduq_reproduction.networks import EdgeGNN, GatedGCN


def graph(seed=0):
    generator = torch.Generator().manual_seed(seed)
    edges = to_undirected(torch.randint(9, (2, 20), generator=generator), num_nodes=9)
    x, pos, pe = (torch.randn(9, d, generator=generator) for d in (3, 2, 4))
    return Data(x=x, pos=pos, pe=pe, edge_index=edges, y=torch.tensor([1]))


def test_a_layer_is_its_equation_node_by_node():
    data, layer = graph(), GatedGCN(5, 0.0, stable=True, residual=True).eval()
    h, structure = torch.randn(9, 5), Structure(data)
    found = layer(h, data.edge_index, structure)
    at, to, along, own, send = layer.maps
    ends = data.edge_index.t().tolist()
    for i in range(9):
        above, below = torch.zeros(5), torch.zeros(5)
        for e, j in ((e, source) for e, (source, target) in enumerate(ends) if target == i):
            start = layer.start((data.pos[i] - data.pos[j]).norm().view(1))
            edge = at(h[i]) + to(h[j]) + along(start)
            gate = edge.sigmoid() * layer.close((data.pe[i] - data.pe[j]).square().sum().view(1))
            above, below = above + gate * send(h[j]), below + gate
            state = start + layer.norms[1](edge[None])[0].relu()
            assert torch.allclose(vars(structure)["edge_states"][e], state, atol=1e-5)
        out = layer.norms[0]((own(h[i]) + above / (below + 1e-6))[None])[0].relu()
        assert torch.allclose(found[i], h[i] + out, atol=1e-5)


@pytest.mark.parametrize("conv", ["gated_gcn", "gps"])
def test_stable_encodings_may_turn_and_anchors_stand_at_the_readout(conv):
    net, data = EdgeGNN(3, 8, 4, 2, conv=conv, dropout=0.0, stable=True).eval(), graph()
    turn, _ = torch.linalg.qr(torch.randn(4, 4))
    turned, other = data.clone(), data.clone()
    turned.pe, other.pe = data.pe @ turn, 2 * data.pe
    assert torch.allclose(net(data), net(turned), atol=1e-5)
    assert not torch.allclose(net(data), net(other), atol=1e-5)
    model = gduq.anchor(net, at="readout", num_anchors=3).fit_anchors([graph(1)] * 3)
    assert torch.allclose(model.sample(data).mean(dim=0), net(data), atol=1e-5)
