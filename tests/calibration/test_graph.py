"""CaGCN and GATS: their equations with dense matrices and loops, relabelling, missing graphs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data

from gduq.calibration import GATS, CaGCN, TemperatureScaling
from gduq.errors import InputError
from gduq.prediction import ClassPrediction
from tests.calibration.kinds import nll, overconfident

# Node 5 is isolated, node 4 hears but is not heard, node 1 has a loop.
EDGES = torch.tensor([[0, 1, 1, 2, 1, 2, 3, 0], [1, 0, 2, 1, 1, 3, 2, 4]])
P, GRAPH, TRAIN = overconfident(rows=6, samples=2), Data(edge_index=EDGES, num_nodes=6), [0]


def drawn(calibrator):
    """The calibrator with every parameter drawn at random."""
    generator = torch.Generator().manual_seed(0)
    state = calibrator.neutral(4, 2).state()
    for name in [name for name in state if not name.startswith("num_")]:
        draw = torch.rand(state[name].shape, generator=generator, dtype=torch.float64)
        state[name] = draw + 0.2 if name == "scale" else draw - 0.5
    return type(calibrator).restore(state).on(GRAPH, TRAIN)


def test_cagcn_is_its_equation():
    cal = drawn(CaGCN())
    state = cal.state()
    adjacency = torch.zeros(6, 6, dtype=torch.float64)
    adjacency[EDGES[1], EDGES[0]] = 1.0
    adjacency.fill_diagonal_(1.0)
    scale = adjacency.sum(dim=1).rsqrt()
    a = scale[:, None] * adjacency * scale
    z = P.logits * state["scale"]
    hidden = (a @ z @ state["convs.0.lin.weight"].T + state["convs.0.bias"]).relu()
    out = (a @ hidden @ state["convs.1.lin.weight"].T + state["convs.1.bias"]).squeeze(1)
    expected = z * F.softplus(out + math.log(math.e - 1))[:, None]
    torch.testing.assert_close(cal(P).logits, expected)


def test_gats_is_its_equation():
    cal = drawn(GATS())
    state = cal.state()
    z = P.logits * state["scale"]
    confidence = z.softmax(dim=1).amax(dim=1)
    unit = (z - z.amin(1, keepdim=True)) / (z.amax(1, keepdim=True) - z.amin(1, keepdim=True))
    near = {0: 0, 1: 1, 4: 1}  # training node, and one step away either way
    gamma = [float(state["closeness"][near[i]].exp()) if i in near else 1.0 for i in range(6)]
    pairs = {(int(j), int(i)) for j, i in EDGES.T if i != j}
    for i in range(6):
        heard = [j for j, k in pairs if k == i]
        relative = confidence[i] - confidence[heard].mean() if heard else torch.tensor(0.0)
        around = [*heard, i]
        score = torch.stack([unit[i] @ unit[j] / (gamma[i] * gamma[j]) for j in around])
        alpha = F.leaky_relu(score, 0.2).softmax(dim=0)
        heads = []
        for h in range(8):
            tau = [gamma[j] * unit[j].sort().values @ state["heads"][:, h] for j in around]
            heads.append(F.softplus(alpha @ torch.stack(tau) + state["confidence"] * relative))
        heat = torch.stack(heads).mean() + state["offset"] + 1 - math.log(2)
        expected = P.logits[i] / (heat / state["scale"])
        torch.testing.assert_close(cal(P).logits[i], expected)


@pytest.mark.parametrize("kind", [CaGCN, GATS])
def test_relabelling_nodes_changes_nothing(kind):
    p, node = overconfident(), torch.arange(240)
    edges = torch.randint(240, (2, 400), generator=torch.Generator().manual_seed(1))
    order = torch.randperm(240, generator=torch.Generator().manual_seed(4))
    moved = Data(edge_index=order.argsort()[edges], num_nodes=240)
    train, val = node < 40, (node >= 40) & (node < 180)
    a = kind().on(Data(edge_index=edges, num_nodes=240), train).fit(p, rows=val)
    b = kind().on(moved, train[order]).fit(p[order], rows=val[order])
    torch.testing.assert_close(b(p[order]).probs, a(p).probs[order], rtol=1e-4, atol=1e-5)


def test_distance_to_training_nodes_is_learnt():
    """Two groups of nodes, each linked within: one is calibrated and has the training nodes, one is
    far too sure. GATS may tell them apart."""
    generator = torch.Generator().manual_seed(0)
    p, noisy = overconfident(rows=800, samples=1), torch.arange(800) % 2 == 0
    random = torch.randint(4, (800,), generator=generator)
    wrong = noisy & (torch.rand(800, generator=generator) < 0.6)
    source = torch.randint(800, (3200,), generator=generator)
    sink = (source + 2 * torch.randint(400, (3200,), generator=generator)) % 800
    edges = torch.stack([torch.cat([source, sink]), torch.cat([sink, source])])
    jitter = torch.where(noisy, 3.0, 0.0)[:, None] * torch.randn(800, 4, generator=generator)
    p = ClassPrediction(p.samples + jitter, torch.where(wrong, random, p.target))
    val, test = torch.arange(800) < 400, torch.arange(800) >= 400
    graph, train = Data(edge_index=edges, num_nodes=800), torch.arange(800)[1:100:2]
    near = GATS(graph, train_rows=train).fit(p, rows=val)
    heat = near.temperature(p)
    assert heat[0::2].mean() > 1.2 * heat[1::2].mean()
    assert nll(near(p, rows=test)) < nll(TemperatureScaling().fit(p, rows=val)(p, rows=test))


def test_mistakes():
    bad = Data(edge_index=torch.tensor([[0], [9]]), num_nodes=3)
    for call in (
        lambda: CaGCN().fit(P),
        lambda: GATS(train_rows=TRAIN).fit(P),
        lambda: CaGCN(GRAPH).fit(P[:4]),
        lambda: GATS(GRAPH).fit(P),
        lambda: GATS(GRAPH, train_rows=[999]).fit(P),
        lambda: CaGCN("graph"),
        lambda: CaGCN(bad),
        lambda: CaGCN(Data(adj_t=torch.eye(3).to_sparse_csr(), num_nodes=3)),
    ):
        with pytest.raises(InputError):
            call()
