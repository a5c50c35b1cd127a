"""CBAS against GOOD's counts and colours."""

import networkx as nx
import pytest
import torch

from gduq.data.generated import load_cbas
from gduq.errors import InputError

SIZES = {
    "covariate": (420, 70, 70, 70, 70),
    "concept": (140, 140, 140, 140, 140),
    "no_shift": (420, 140, 140),
}


@pytest.mark.parametrize("shift", list(SIZES))
def test_split_sizes_disjoint_and_complete(shift):
    splits = load_cbas(shift)
    assert tuple(len(view) for _, view in splits) == SIZES[shift]
    masks = torch.stack([view.rows for _, view in splits])
    assert (masks.sum(0) == 1).all()
    assert all(view.task == "node" for _, view in splits)


def test_the_graph():
    graph = load_cbas("covariate").train.graphs[0]
    assert torch.bincount(graph.y).tolist() == [300, 160, 160, 80]
    assert 3900 <= graph.num_edges <= 4000
    whole = nx.Graph(graph.edge_index.t().tolist())
    assert nx.is_connected(whole.subgraph(range(300)))
    ties = []
    for house in range(300, 700, 5):
        inside = whole.subgraph(range(house, house + 5))
        assert nx.is_isomorphic(inside, nx.house_graph())
        roof = house + 4
        assert graph.y[house : house + 5].tolist() == [1, 1, 2, 2, 3]
        assert inside.degree[roof] == 2
        assert set(inside[roof]) == {house, house + 1}  # the middle
        outside = [(u, v) for u in inside for v in whole[u] if v < 300]
        assert [u for u, _ in outside] == [house]
        ties += [v for _, v in outside]
    assert len(set(ties)) == 80
    degrees = torch.tensor([whole.degree[i] for i in range(300)])
    assert degrees.max() > 5 * degrees.double().median()  # preferential attachment


def test_covariate_colours():
    splits = load_cbas("covariate")
    x = splits.train.graphs[0].x
    assert x[splits.ood_val.rows].unique(dim=0).tolist() == [[1, 0, 1, 1]]
    assert torch.allclose(x[splits.ood_test.rows], torch.tensor([0.0, 0.0, 0.0, 0.1]))
    pool = splits.train.rows | splits.id_val.rows | splits.id_test.rows
    assert (
        torch.bincount(torch.unique(x[pool], dim=0, return_inverse=True)[1]).tolist() == [112] * 5
    )
    train = x[splits.train.rows]
    assert torch.allclose(train.mean(0), torch.tensor([0.4, 0.6, 0.4, 0.5]), atol=0.05)
    stds = train.std(0)
    assert stds.mean().item() == pytest.approx(0.403, abs=0.01)
    assert stds.std().item() == pytest.approx(0.174, abs=0.01)


def test_concept_colours_follow_the_class_less_and_less():
    agree = {name: [] for name in ("pool", "ood_val", "ood_test")}
    for seed in range(20):
        splits = load_cbas("concept", seed)
        y = splits.train.graphs[0].y
        for name, view in splits:
            kept = agree["pool" if name in ("train", "id_val", "id_test") else name]
            kept.append((splits.domains[name] == y[view.rows]).double())
    expected = {"pool": 0.85, "ood_val": 0.3, "ood_test": 0.0}
    for name, rho in expected.items():
        found, p = torch.cat(agree[name]), rho + (1 - rho) / 4
        assert abs(found.mean() - p) < 4 * (p * (1 - p) / len(found)) ** 0.5
    assert splits.train.graphs[0].x.mean().item() == pytest.approx(0.4, abs=0.03)


def test_no_shift_has_one_colour():
    splits = load_cbas("no_shift")
    assert (splits.train.graphs[0].x == 1).all()
    assert splits.ood_test is None


def test_seeds_and_wrong_shift():
    one, two, other = (load_cbas("covariate", s) for s in (1, 1, 2))
    assert torch.equal(one.train.graphs[0].edge_index, two.train.graphs[0].edge_index)
    assert torch.equal(one.train.rows, two.train.rows)
    assert not torch.equal(one.train.rows, other.train.rows)
    with pytest.raises(InputError):
        load_cbas("none")
