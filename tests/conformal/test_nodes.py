"""NAPS: thresholds from the nodes around, against a search by hand; coverage where it changes."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gduq.conformal import APS, NAPS, conformal_quantile
from gduq.conformal import nodes as module
from gduq.conformal.nodes import weighted_quantile
from gduq.errors import InputError, NotFittedError
from gduq.prediction import Prediction
from tests.conformal.test_conformal import draw


def sparse_graph(nodes: int, seed: int, links: int = 60) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(edge_index=torch.randint(nodes, (2, links), generator=generator), num_nodes=nodes)


def two_towns(seed: int, size: int = 400) -> tuple[Data, Prediction]:
    """Two communities: in the second one labels follow the logits less, so it is harder."""
    generator = torch.Generator().manual_seed(seed)
    town = torch.arange(2 * size) // size
    inside = torch.randint(size, (2, 12 * size), generator=generator)
    edges = torch.cat([inside, inside + size], dim=1)
    logits = 2 * torch.randn(2 * size, 5, generator=generator, dtype=torch.float64)
    truth = logits * torch.where(town == 0, 1.0, 0.2).unsqueeze(1)
    target = torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)
    return Data(edge_index=edges, num_nodes=2 * size), Prediction(logits, target)


def test_both_towns_are_covered():
    found = {"aps": [], "naps": []}
    for seed in range(12):
        data, p = two_towns(seed)
        known = torch.rand(800, generator=torch.Generator().manual_seed(seed)) < 0.5
        ask = torch.nonzero(~known).flatten()
        options = {"nonempty": False, "shift_level": 0, "seed": seed}
        plain = APS(0.1, **options).fit(p[known])(p[ask])
        near = NAPS(data, 0.1, **options).fit(p, rows=known)(p, rows=ask)
        for name, sets in (("aps", plain), ("naps", near)):
            found[name].append([sets.covered[ask // 400 == t].double().mean() for t in (0, 1)])
    easy, hard = np.mean(found["aps"], axis=0)
    assert easy > 0.95
    assert hard < 0.86
    assert np.mean(found["naps"], axis=0) == pytest.approx([0.9, 0.9], abs=0.02)


@pytest.mark.parametrize("decay", ["uniform", "hyperbolic", "geometric"])
@pytest.mark.parametrize("hops", [1, 3])
def test_thresholds_equal_a_search_by_hand(decay, hops, monkeypatch):
    data, p = sparse_graph(50, 0), draw(50, 0)
    known = torch.arange(50) % 3 != 0
    method = NAPS(data, 0.4, hops=hops, decay=decay, shift_level=0).fit(p, rows=known)
    true = method.scored(p).true.tolist()
    graph = networkx.Graph(data.edge_index.t().tolist())
    graph.add_nodes_from(range(50))
    weight = {"uniform": lambda d: 1, "hyperbolic": lambda d: 1 / d, "geometric": lambda d: 2**-d}
    expected = []
    for node in range(50):
        steps = networkx.single_source_shortest_path_length(graph, node, cutoff=hops)
        pairs = sorted((true[j], weight[decay](d)) for j, d in steps.items() if d and known[j])
        total, upto, level = sum(w for _, w in pairs) + 1, 0.0, np.inf
        for score, w in pairs:
            upto += w
            if upto >= 0.6 * total - 1e-9:
                level = score
                break
        expected.append(level)
    assert method.thresholds(torch.arange(50)).tolist() == pytest.approx(expected)
    assert 0 < np.isinf(expected).sum() < 50
    monkeypatch.setattr(module, "_BLOCK", 100)  # two nodes at a time
    assert method.thresholds(torch.arange(50)).tolist() == pytest.approx(expected)


def test_equal_weights_give_the_plain_quantile():
    scores = torch.rand(37, generator=torch.Generator().manual_seed(0)).sort().values
    for alpha in (0.01, 0.1, 0.25, 0.5):
        expected = conformal_quantile(scores, alpha)
        assert weighted_quantile(scores, torch.ones(1, 37), alpha).item() == expected
    assert weighted_quantile(scores, torch.zeros(1, 37), 0.5).isinf().all()


def test_a_node_alone_gets_all_classes():
    data, p = sparse_graph(50, 0), draw(50, 0)
    data.edge_index = data.edge_index[:, (data.edge_index != 7).all(0)]
    sets = NAPS(data, 0.3, shift_level=0).fit(p, rows=torch.arange(25))(p, rows=[7])
    assert sets.mask.all()
    assert len(sets) == 1


def test_bad_input():
    data, p = sparse_graph(50, 0), draw(50, 0)
    for call, message in [
        (lambda: NAPS(data, hops=0), "hops >= 1"),
        (lambda: NAPS(data, decay="none"), "a decay from uniform, hyperbolic, geometric"),
        (lambda: NAPS(3), r"a graph \(PyG Data\) for NAPS, got int"),
        (lambda: NAPS().fit(p), "a graph for NAPS"),
        (lambda: NAPS(data).fit(p[:40]), "each of the 50 nodes .* NAPS is for node tasks"),
        (lambda: NAPS(data).fit(Prediction(p.samples)), "with targets"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
    with pytest.raises(NotFittedError, match="a fitted NAPS"):
        NAPS(data)(p)
    with pytest.raises(NotFittedError, match="a fitted NAPS"):
        NAPS(data).thresholds(torch.arange(3))
