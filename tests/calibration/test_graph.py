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
from tests.calibration.battery import make_case, nll, overconfident

# Node 5 is isolated, node 4 hears but is not heard, node 1 has a loop.
EDGES = torch.tensor([[0, 1, 1, 2, 1, 2, 3, 0], [1, 0, 2, 1, 1, 3, 2, 4]])


@pytest.fixture
def small():
    p = overconfident(rows=6, samples=2)
    graph = Data(edge_index=EDGES, num_nodes=6)
    return p, graph, torch.tensor([0])


def random_state(calibrator, classes, samples, seed=0):
    """The calibrator with every parameter drawn at random."""
    calibrator.neutral(classes, samples)
    generator = torch.Generator().manual_seed(seed)
    for name in [name for name in calibrator._state if not name.startswith("num_")]:
        value = calibrator._state[name]
        draw = torch.rand(value.shape, generator=generator, dtype=torch.float64)
        calibrator._state[name] = draw + 0.2 if name == "scale" else draw - 0.5
    return calibrator


def test_cagcn_is_its_equation(small):
    p, graph, _ = small
    cal = random_state(CaGCN(graph), 4, 2)
    state = cal.state()
    adjacency = torch.zeros(6, 6, dtype=torch.float64)
    adjacency[EDGES[1], EDGES[0]] = 1.0
    adjacency.fill_diagonal_(1.0)
    scale = adjacency.sum(dim=1).rsqrt()
    a = scale[:, None] * adjacency * scale
    z = p.logits * state["scale"]
    hidden = (a @ z @ state["convs.0.lin.weight"].T + state["convs.0.bias"]).relu()
    out = (a @ hidden @ state["convs.1.lin.weight"].T + state["convs.1.bias"]).squeeze(1)
    expected = z * F.softplus(out + math.log(math.e - 1))[:, None]
    torch.testing.assert_close(cal(p).logits, expected)


def test_gats_is_its_equation(small):
    p, graph, train = small
    cal = random_state(GATS(graph, train_rows=train), 4, 2)
    state = cal.state()
    z = p.logits * state["scale"]
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
        expected = p.logits[i] / (heat / state["scale"])
        torch.testing.assert_close(cal(p).logits[i], expected)


@pytest.mark.parametrize("kind", ["cagcn", "gats"])
def test_relabelling_nodes_changes_nothing(kind):
    case = make_case()
    order = torch.randperm(len(case.p), generator=torch.Generator().manual_seed(4))
    place = order.argsort()
    moved = Data(edge_index=place[case.graph.edge_index], num_nodes=len(case.p))
    if kind == "gats":
        a, b = GATS(case.graph, train_rows=case.train), GATS(moved, train_rows=case.train[order])
    else:
        a, b = CaGCN(case.graph), CaGCN(moved)
    a.fit(case.p, rows=case.val)
    b.fit(case.p[order], rows=case.val[order])
    torch.testing.assert_close(b(case.p[order]).probs, a(case.p).probs[order], rtol=1e-4, atol=1e-5)


def noisy_quarter(seed: int) -> tuple[ClassPrediction, Data]:
    """Two groups of nodes, each linked within: one is calibrated, one far too sure."""
    generator = torch.Generator().manual_seed(seed)
    p = overconfident(rows=800, samples=1, seed=seed)
    noisy = torch.arange(800) % 2 == 0
    random = torch.randint(4, (800,), generator=generator)
    wrong = noisy & (torch.rand(800, generator=generator) < 0.6)
    source = torch.randint(800, (3200,), generator=generator)
    sink = (source + 2 * torch.randint(400, (3200,), generator=generator)) % 800
    edges = torch.stack([torch.cat([source, sink]), torch.cat([sink, source])])
    jitter = torch.where(noisy, 3.0, 0.0)[:, None] * torch.randn(800, 4, generator=generator)
    samples = p.samples + jitter
    return ClassPrediction(samples, torch.where(wrong, random, p.target)), Data(
        edge_index=edges, num_nodes=800
    )


def test_distance_to_training_nodes_is_learnt():
    """Nodes far from training nodes are worse; GATS may tell them apart."""
    p, graph = noisy_quarter(0)
    val, test = torch.arange(800) < 400, torch.arange(800) >= 400
    train = torch.arange(800)[1:100:2]  # of the good group
    near = GATS(graph, train_rows=train).fit(p, rows=val)
    heat = near.temperature(p)
    assert heat[0::2].mean() > 1.2 * heat[1::2].mean()
    assert nll(near(p, rows=test)) < nll(TemperatureScaling().fit(p, rows=val)(p, rows=test))


def test_mistakes():
    case = make_case()
    bad = Data(edge_index=torch.tensor([[0], [9]]), num_nodes=3)
    for call in (
        lambda: CaGCN().fit(case.p, rows=case.val),
        lambda: GATS(train_rows=case.train).fit(case.p, rows=case.val),
        lambda: CaGCN(case.graph).fit(case.p[case.val]),
        lambda: GATS(case.graph).fit(case.p, rows=case.val),
        lambda: GATS(case.graph, train_rows=[999]).fit(case.p, rows=case.val),
        lambda: CaGCN("graph"),
        lambda: CaGCN(bad),
        lambda: CaGCN(Data(adj_t=torch.eye(3).to_sparse_csr(), num_nodes=3)),
    ):
        with pytest.raises(InputError):
            call()
