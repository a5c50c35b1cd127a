"""Motif against networkx, GOOD's counts and a slow reference of its noise."""

from collections import Counter
from functools import cache, partial

import networkx as nx
import numpy as np
import pytest
import torch
from networkx.algorithms.isomorphism import is_isomorphic

from gduq.data import add_laplacian
from gduq.data import generated as motif_graphs
from gduq.data.generated import BASES, MOTIFS, MotifRecipe, build_motif, draw_recipe, load_motif
from gduq.errors import InputError
from gduq.graphs import Packed

SIZES = {
    "covariate": (18000, 3000, 3000, 3000, 3000),
    "concept": (12600, 2700, 2700, 6000, 6000),
    "no_shift": (18000, 6000, 6000),
}


def build(base, width, motif, seed=0, count=1):
    values = [torch.full((count,), v) for v in (base, width, motif, base)]
    return build_motif(MotifRecipe(*values), torch.Generator().manual_seed(seed))


def networkx_base(base: str, width: int) -> nx.Graph:
    if base == "wheel":
        return nx.wheel_graph(width)
    if base == "tree":
        return nx.balanced_tree(2, max(int(np.log2(width)) - 1, 1))
    if base == "ladder":
        return nx.ladder_graph(width)
    return nx.star_graph(width) if base == "star" else nx.path_graph(width)


def networkx_motif(motif: str) -> nx.Graph:
    if motif == "house":
        return nx.house_graph()
    return nx.cycle_graph(5) if motif == "cycle" else nx.complete_bipartite_graph(2, 3)


def as_networkx(graph) -> nx.Graph:
    out = nx.Graph(graph.edge_index.t().tolist())
    out.add_nodes_from(range(graph.num_nodes))
    return out


@cache
def whole(domain, shift, seed=0):
    generator = torch.Generator().manual_seed(seed)
    recipe, cut = draw_recipe(domain, shift, generator)
    return build_motif(recipe, generator), recipe, cut


@pytest.mark.parametrize("base", range(5))
def test_bases_are_those_of_networkx(base, monkeypatch):
    """Without noise, and with the motif taken off."""
    monkeypatch.setattr(motif_graphs, "_NOISE_EDGES", 0.0)
    widths = torch.arange(1, 76)
    same = torch.full_like(widths, base)
    packed = build_motif(
        MotifRecipe(same, widths, same % 3, same), torch.Generator().manual_seed(0)
    )
    for width, graph in zip(widths.tolist(), packed, strict=True):
        expected = networkx_base(BASES[base], width)
        assert graph.num_nodes == len(expected) + 5, (BASES[base], width)
        whole = as_networkx(graph)
        assert whole.number_of_edges() == expected.number_of_edges() + (6 if base % 3 == 1 else 7)
        if width < 20:
            assert is_isomorphic(whole.subgraph(range(len(expected))), expected)


@pytest.mark.parametrize("motif", range(3))
def test_the_motif_is_the_last_five_nodes_tied_by_its_first(motif):
    packed = build(2, 40, motif, count=50)
    ties = set()
    for graph in packed:
        whole = as_networkx(graph)
        n = graph.num_nodes
        inside = whole.subgraph(range(n - 5, n))
        assert is_isomorphic(inside, networkx_motif(MOTIFS[motif]))
        tied = [u for u in whole[n - 5] if u < n - 5]
        assert tied
        ties.update(tied)
    assert len(ties) > 20  # any base node


def test_edges_go_both_ways_once_without_loops():
    packed, _, _ = whole("size", "covariate")
    for graph in packed[:300]:
        pairs = Counter(map(tuple, graph.edge_index.t().tolist()))
        assert max(pairs.values()) == 1
        assert all(u != v and (v, u) in pairs for u, v in pairs)


def slow_noise(base, width, rng):
    """The number of noise edges of one graph with a house, drawn one attempt at a time."""
    graph = networkx_base(BASES[base], width)
    n = len(graph)
    role = set(graph)
    if BASES[base] == "star":
        role = {0}
    if BASES[base] == "path":
        role = set(range(1, width - 1))
    house = [(1, 2), (2, 3), (3, 4), (4, 1), (0, 1), (0, 4)]
    graph.add_edges_from((n + a, n + b) for a, b in house)
    graph.add_edge(int(rng.integers(n)), n)
    before = graph.number_of_edges()
    for _ in range(int(0.05 * before)):
        while True:
            u, v = rng.integers(n + 5, size=2).tolist()
            if u != v and not graph.has_edge(u, v):
                break
        if u in role or v in role:
            graph.add_edge(u, v)
    return graph.number_of_edges() - before


@pytest.mark.parametrize(("base", "width"), [(1, 70), (2, 40), (3, 70), (4, 60)])
def test_noise_edges_against_a_slow_reference(base, width):
    rng = np.random.default_rng(0)
    slow = np.array([slow_noise(base, width, rng) for _ in range(400)])
    packed = build(base, width, 0, count=4000)
    plain = len(networkx_base(BASES[base], width).edges) + 7
    fast = packed.ptrs["edge_index"].diff().numpy() / 2 - plain
    assert fast.min() >= 0
    assert fast.max() <= int(0.05 * plain)
    error = np.sqrt(slow.var() / slow.size + fast.var() / fast.size)
    assert abs(fast.mean() - slow.mean()) <= 4 * error + 1e-9


@pytest.mark.parametrize("domain", ["basis", "size"])
@pytest.mark.parametrize("shift", list(SIZES))
def test_split_sizes(domain, shift):
    _, recipe, cut = whole(domain, shift)
    assert tuple(len(rows) for rows in cut.values()) == SIZES[shift]
    everything = torch.cat(list(cut.values()))
    assert torch.equal(everything.sort().values, torch.arange(30000))
    assert recipe.base.numel() == 30000
    if shift == "no_shift":
        assert torch.bincount(recipe.motif).tolist() == [10000] * 3


@pytest.mark.parametrize(
    ("domain", "of_split"),
    [
        ("basis", {"train": {0, 1, 2}, "ood_val": {3}, "ood_test": {4}}),
        ("size", {"train": {*range(1, 21)}, "ood_val": {*range(25, 36)},
                  "ood_test": {*range(65, 76)}}),
    ],
)  # fmt: skip
def test_covariate(domain, of_split):
    _, recipe, cut = whole(domain, "covariate")
    values, free = (recipe.base, recipe.width) if domain == "basis" else (recipe.width, recipe.base)
    for name, rows in cut.items():
        assert set(values[rows].tolist()) == of_split["train" if "id_" in name else name]
    assert set(free.tolist()) == set(range(5, 16) if domain == "basis" else range(5))
    nominal = {name: set(recipe.domain[rows].tolist()) for name, rows in cut.items()}
    assert nominal["ood_test"] == ({4} if domain == "basis" else {70})


@pytest.mark.parametrize("domain", ["basis", "size"])
def test_concept_agreement(domain):
    """Share of graphs whose base or size has the motif's index: rho + (1 - rho) / 3."""
    _, recipe, cut = whole(domain, "concept")
    index = (
        recipe.base
        if domain == "basis"
        else torch.searchsorted(torch.tensor([10, 40, 70]), recipe.domain)
    )
    agree = (index == recipe.motif).double()
    pool = torch.cat([cut["train"], cut["id_val"], cut["id_test"]])
    expected = {"pool": 0.97, "ood_val": 0.3, "ood_test": 0.0}  # the pool: mean of .99 .97 .95
    for name, rho in expected.items():
        rows = pool if name == "pool" else cut[name]
        p = rho + (1 - rho) / 3
        assert abs(agree[rows].mean() - p) < 4 * (p * (1 - p) / len(rows)) ** 0.5
    assert set(recipe.base.tolist()) == (set(range(3)) if domain == "basis" else set(range(5)))


def test_label_noise():
    packed, recipe, _ = whole("basis", "covariate")
    wrong = (packed.column("y") != recipe.motif).double().mean()
    p = 0.1 * 2 / 3
    assert abs(wrong - p) < 3 * (p * (1 - p) / 30000) ** 0.5


def test_loading_is_reproducible():
    one, other = (load_motif("basis", "covariate", seed=seed) for seed in (3, 4))
    fresh, _, cut = whole("basis", "covariate", seed=3)
    assert torch.equal(one.train.graphs.tensors["edge_index"], fresh.tensors["edge_index"])
    assert torch.equal(one.train.graphs.visible, cut["train"])
    assert not torch.equal(one.train.graphs.visible, other.train.graphs.visible)
    assert one.class_names == MOTIFS
    assert one.domains["ood_test"].unique().tolist() == [4]
    assert one.train.target.shape == (18000,)
    graph = one.train.graphs[7]
    assert torch.equal(graph.x, torch.ones(graph.num_nodes, 1))
    with pytest.raises(InputError):
        load_motif("colour", "covariate")


def test_with_encodings_instead_of_the_constant(monkeypatch):
    monkeypatch.setattr(motif_graphs, "draw_recipe", partial(draw_recipe, total=300))
    splits = load_motif("basis", "no_shift", pe=4)
    graph = splits.train.graphs[0]
    assert "x" not in graph
    assert torch.equal(graph.pe, add_laplacian(Packed.pack([graph]))[0].pe)
    plain = load_motif("basis", "no_shift")
    assert torch.equal(graph.edge_index, plain.train.graphs[0].edge_index)
