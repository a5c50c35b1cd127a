"""Cuts against slow references and published counts; domains and corruptions on tiny graphs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, InMemoryDataset

from gduq import shifts
from gduq.data.packed import Packed
from gduq.data.splits import SPLIT_NAMES
from gduq.data.view import View
from gduq.errors import InputError
from tests.data.real import real

NO_EDGES = torch.zeros(2, 0).long()


def dots(sizes, labels=None):
    """Graphs without edges."""
    labels = labels if labels is not None else [i % 2 for i in range(len(sizes))]
    return [
        Data(x=torch.full((n, 1), float(i)), edge_index=NO_EDGES, y=torch.tensor([y]))
        for i, (n, y) in enumerate(zip(sizes, labels, strict=True))
    ]


def assert_partition(cut, n):
    rows = torch.cat([torch.as_tensor(r) for r in cut.values()])
    assert torch.equal(rows.sort().values, torch.arange(n))


# -- covariate -------------------------------------------------------------------------------------


def slow_covariate(values, cuts, descending):
    """The walk of the definition, one row at a time."""
    n = len(values)
    order = sorted(range(n), key=lambda i: values[i], reverse=descending)
    bounds, bucket, parts = [int(cuts[0] * n), int(cuts[1] * n)], 0, [[], [], []]
    for i, row in enumerate(order):
        changed = i > 0 and values[row] != values[order[i - 1]]
        if bucket < 2 and i >= bounds[bucket] and changed:
            bucket += 1
        parts[bucket].append(row)
    return parts


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 8), min_size=12, max_size=60),
    st.sampled_from([(0.6, 0.8), (0.5, 0.75), (0.3, 0.35)]),
    st.booleans(),
)
def test_covariate_is_the_walk_and_never_parts_a_value(values, cuts, descending):
    pool, val, test = slow_covariate(values, cuts, descending)
    holdout = 0.1
    call = {"cuts": cuts, "descending": descending, "holdout": holdout}
    if not val or not test or len(pool) <= 2 * int(holdout * len(values)):
        with pytest.raises(InputError, match="no part empty"):
            shifts.covariate(torch.tensor(values), **call)
        return
    cut = shifts.covariate(torch.tensor(values), **call)
    assert_partition(cut, len(values))
    inside = torch.cat([cut["train"], cut["id_val"], cut["id_test"]])
    assert set(inside.tolist()) == set(pool)
    assert set(cut["ood_val"].tolist()) == set(val)
    assert set(cut["ood_test"].tolist()) == set(test)
    found = [{values[i] for i in rows} for rows in (pool, val, test)]
    assert not found[0] & found[1]
    assert not found[1] & found[2]
    assert len(cut["id_val"]) == len(cut["id_test"]) == int(holdout * len(values))


def test_covariate_holds_out_a_share_of_the_pool_or_of_all():
    values = torch.arange(100)
    of_all = shifts.covariate(values, holdout=0.2)
    of_pool = shifts.covariate(values, holdout=0.2, holdout_of="pool")
    assert len(of_all["id_val"]) == 20
    assert len(of_pool["id_val"]) == 12


def test_covariate_takes_text_and_floats():
    dates = [f"2024-{m:02d}-01" for m in range(1, 13)]
    cut = shifts.covariate(dates)
    assert cut["ood_test"].tolist() == [9, 10, 11]
    floats = shifts.covariate(torch.linspace(0, 1, 20).double().flip(0))
    assert floats["ood_test"].max() == 3


def test_published_cora_degree_counts():
    """Full Cora, whose structure is at hand. The published table has these numbers under *word*
    and others under *degree*: its two headings are exchanged, for 3454 nodes have one neighbour,
    3003 have two, and nothing else gives these five numbers."""
    path = real("CoraFull_structure_only/cora_full_graph_and_labels.npz")
    with np.load(path) as file:
        edges, labels = file["edge_index"].astype(np.int64), file["labels"].astype(np.int64)
    graph = Data(
        edge_index=torch.from_numpy(edges), y=torch.from_numpy(labels), num_nodes=len(labels)
    )
    splits = shifts.degree(graph, "covariate")
    assert [len(view) for _, view in splits] == [9378, 1979, 1979, 3003, 3454]
    assert splits.domains["ood_test"].unique().tolist() == [1]
    assert splits.domains["ood_val"].unique().tolist() == [2]
    plain = shifts.degree(graph, "no_shift")
    assert [len(view) for _, view in plain] == [11875, 3959, 3959]
    sizes = torch.tensor(
        [[len(v) for _, v in shifts.degree(graph, "concept", seed=s)] for s in range(40)]
    ).double()
    for published in ([7273, 1558, 1558, 3807, 5597], [7281, 1560, 1560, 3706, 5686]):
        gap = (torch.tensor(published) - sizes.mean(0)).abs()
        assert (gap < 3 * sizes.std(0)).all()


# -- concept ---------------------------------------------------------------------------------------


def slow_concept(values, labels, bias, pick, seed):
    """The five passes of the definition, one row at a time, with the same uniform numbers."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    domains = sorted(set(values))
    earlier = {d: sum(v < d for v in values) for d in domains}
    sign = {d: 1 if earlier[d] < n / 2 else -1 for d in domains}
    mean = sum(labels) / n
    left = sorted(range(n), key=lambda i: values[i])
    parts = {"train": [], "ood_test": [], "ood_val": []}
    for step, name in enumerate(("train", "ood_test", "train", "train", "ood_val")):
        if step == 4:
            parts[name] += left
            break
        draws = torch.rand(len(left), 2, generator=generator, dtype=torch.float64).tolist()
        drawn = dict(zip(left, draws, strict=True))
        flip = 1 if name == "train" else -1
        taken = []
        for domain in domains:
            rows = [i for i in left if values[i] == domain]
            kinds = {True: ([], []), False: ([], [])}  # taken, rejected
            for i in rows:
                u, v = drawn[i]
                aligned = flip * sign[domain] * (labels[i] - mean) > 0
                good = (v < bias[step] if aligned else v > bias[step]) and u < pick[step]
                kinds[aligned][0 if good else 1].append(i)
            present = all(k[0] or k[1] for k in kinds.values())
            got = {kind: bool(k[0]) for kind, k in kinds.items()}
            if present and any(got.values()):
                for kind, (_, rejected) in kinds.items():
                    if not got[kind]:
                        kinds[kind][0].append(rejected[-1])
            taken += [i for k in kinds.values() for i in k[0]]
        parts[name] += taken
        left = [i for i in left if i not in set(taken)]
    return parts


@settings(deadline=None, max_examples=40)
@given(st.integers(40, 120), st.integers(1, 12), st.integers(2, 5), st.integers(0, 1000))
def test_concept_is_the_slow_definition(n, domains, classes, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, domains, n).tolist()
    labels = rng.integers(0, classes, n).tolist()
    bias, pick = (0.9, 0.8, 0.85, 0.7), (0.4, 0.6, 0.5, 1.0)
    slow = slow_concept(values, labels, bias, pick, seed)
    if min(map(len, slow.values())) == 0 or len(slow["train"]) < 14:
        return
    cut = shifts.concept(torch.tensor(values), labels, bias=bias, pick=pick, seed=seed)
    assert_partition(cut, n)
    pool = torch.cat([cut["train"], cut["id_val"], cut["id_test"]])
    assert sorted(pool.tolist()) == sorted(slow["train"])
    assert sorted(cut["ood_test"].tolist()) == sorted(slow["ood_test"])
    assert sorted(cut["ood_val"].tolist()) == sorted(slow["ood_val"])
    assert len(cut["id_val"]) == len(cut["id_test"]) == int(0.15 * len(pool))


def test_concept_sizes_in_closed_form_and_reversed_correlation():
    """Share a of aligned rows: a training pass takes b p of them and (1 - b) p of the others."""
    n = 20000
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 50, (n,), generator=generator)
    labels = torch.randint(0, 2, (n,), generator=generator)
    bias, pick = (0.95, 0.95, 0.9, 0.85), (0.3, 0.5, 0.6, 1.0)
    cut = shifts.concept(values, labels, bias=bias, pick=pick)
    aligned = ((values < 25) == (labels == 1)).double().mean().item()
    left = [aligned * n, (1 - aligned) * n]
    sizes = {"train": 0.0, "ood_test": 0.0}
    passes = ("train", "ood_test", "train", "train")
    for name, b, p in zip(passes, bias, pick, strict=True):
        shares = [b * p, (1 - b) * p] if name == "train" else [(1 - b) * p, b * p]
        taken = [a * s for a, s in zip(left, shares, strict=True)]
        sizes[name] += sum(taken)
        left = [a - t for a, t in zip(left, taken, strict=True)]
    pool = torch.cat([cut["train"], cut["id_val"], cut["id_test"]])
    assert len(pool) == pytest.approx(sizes["train"], abs=4 * n**0.5 / 2 + 60)
    assert len(cut["ood_test"]) == pytest.approx(sizes["ood_test"], abs=4 * n**0.5 / 2 + 60)

    def correlation(rows):
        return torch.corrcoef(torch.stack([-values[rows].double(), labels[rows].double()]))[0, 1]

    assert correlation(pool) > 0.5
    assert correlation(cut["ood_test"]) < -0.5
    assert correlation(cut["ood_val"]) < 0


# -- tails, no shift -------------------------------------------------------------------------------


def test_tails_are_inclusive_at_both_ends():
    values = torch.arange(11).flip(0)  # median 5, 0.9 quantile 9
    cut = shifts.tails(values, holdout=0.2)
    pool = torch.cat([cut["train"], cut["id_val"], cut["id_test"]])
    assert sorted(values[pool].tolist()) == [0, 1, 2, 3, 4, 5]
    assert sorted(values[cut["ood_val"]].tolist()) == [6, 7, 8]
    assert sorted(values[cut["ood_test"]].tolist()) == [9, 10]
    assert_partition(cut, 11)


def test_tails_without_a_middle_have_no_ood_val():
    cut = shifts.tails(torch.tensor([1] * 18 + [9] * 2), holdout=0.2)
    assert set(cut) == {"train", "id_val", "id_test", "ood_test"}
    with pytest.raises(InputError, match="no part empty"):
        shifts.tails(torch.ones(20))


@settings(deadline=None, max_examples=20)
@given(st.integers(10, 200))
def test_no_shift_sizes(n):
    cut = shifts.no_shift(n)
    assert_partition(cut, n)
    sizes = [len(rows) for rows in cut.values()]
    assert sizes == [int(0.6 * n), int(0.8 * n) - int(0.6 * n), n - int(0.8 * n)]


def test_cuts_are_reproducible():
    values, labels = torch.arange(200) % 17, torch.arange(200) % 3
    for cut in (
        lambda seed: shifts.covariate(values, seed=seed),
        lambda seed: shifts.concept(values, labels, seed=seed),
        lambda seed: shifts.tails(values, seed=seed),
        lambda seed: shifts.no_shift(200, seed=seed),
    ):
        assert torch.equal(cut(1)["train"], cut(1)["train"])
        assert not torch.equal(cut(1)["train"], cut(2)["train"])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: shifts.covariate(torch.ones(20)), "no part empty"),
        (lambda: shifts.covariate([]), "at least one domain value"),
        (lambda: shifts.covariate(torch.ones(4, 2)), r"shape \[n\]"),
        (lambda: shifts.covariate(torch.tensor([1.0, float("nan")])), "finite domain values"),
        (lambda: shifts.covariate(torch.arange(9), cuts=(0.8, 0.6)), "0 < first < second < 1"),
        (lambda: shifts.covariate(torch.arange(20), holdout=0.5), "no part empty"),
        (lambda: shifts.tails(torch.arange(9), low=0.9, high=0.5), "0 < first < second < 1"),
        (lambda: shifts.no_shift(2), "no part empty"),
        (lambda: shifts.concept([1, 2, 3], [0, 1]), "one label for each of the 3 values"),
        (lambda: shifts.concept([1, 2], torch.tensor([0.5, 1.0])), "integer labels"),
        (lambda: shifts.concept([1, 2], torch.tensor([float("nan"), 1.0])), "integer labels"),
        (lambda: shifts.concept([1, 2], [0, 1]), "no part empty"),
    ],
)
def test_cuts_refuse(call, says):
    with pytest.raises(InputError, match=says):
        call()


# -- domains ---------------------------------------------------------------------------------------


class _Set(InMemoryDataset):
    def __init__(self, graphs, transform=None):
        super().__init__(transform=transform)
        self.data, self.slices = self.collate(graphs)


@pytest.mark.parametrize("form", [list, tuple, Packed.pack, _Set])
def test_size_of_a_list_and_of_a_dataset(form):
    splits = shifts.size(form(dots(range(1, 41))))
    assert splits.train.task == "graph"
    sizes = {name: [g.num_nodes for g in view.graphs] for name, view in splits}
    assert sum(map(len, sizes.values())) == 40
    assert max(sizes["train"] + sizes["id_val"] + sizes["id_test"]) == 20
    assert sorted(sizes["ood_test"]) == [37, 38, 39, 40]
    for name, view in splits:
        assert splits.domains[name].tolist() == sizes[name]
        assert len(view.target) == len(view)


def test_size_under_other_cuts():
    graphs = dots(range(1, 41))
    covariate = shifts.size(graphs, "covariate", descending=True)
    assert max(g.num_nodes for g in covariate.ood_test.graphs) == 8
    assert shifts.size(graphs, "no_shift").ood_test is None
    concept = shifts.size(dots([1 + i % 9 for i in range(90)]), "concept", seed=1)
    assert sum(len(view) for _, view in concept) == 90


def star(leaves):
    ends = torch.stack([torch.zeros(leaves).long(), torch.arange(1, leaves + 1)])
    return Data(x=torch.ones(leaves + 1, 1), edge_index=torch.cat([ends, ends.flip(0)], 1), y=0)


def test_degree_of_nodes_and_graphs():
    graphs = [star(n) for n in range(1, 21)]
    splits = shifts.degree(graphs, descending=False)
    assert min(splits.domains["ood_test"]) > max(splits.domains["train"])
    assert splits.domains["train"].dtype == torch.float64
    source = torch.arange(30).repeat_interleave(torch.arange(30))
    graph = Data(edge_index=torch.stack([source, torch.zeros_like(source)]), num_nodes=30)
    graph.y = torch.arange(30) % 2
    nodes = shifts.degree(graph)
    assert nodes.train.task == "node"
    assert nodes.domains["ood_test"].tolist() == [0, 1, 2, 3, 4, 5]
    assert nodes.ood_test.rows.nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert (torch.stack([v.rows for _, v in nodes]).sum(0) == 1).all()


def test_feature_by_sum_attribute_and_function():
    graphs = dots([2] * 20)
    for i, graph in enumerate(graphs):
        graph.price = -float(i)
    by_sum = shifts.feature(graphs)
    assert by_sum.domains["ood_test"].tolist() == [16.0, 17.0, 18.0, 19.0]
    by_name = shifts.feature(graphs, "price")
    assert sorted(by_name.domains["ood_test"].tolist()) == [-3.0, -2.0, -1.0, 0.0]
    assert by_name.name == "price"
    by_function = shifts.feature(graphs, lambda g: float(g.x.max()) ** 2, descending=True)
    assert sorted(by_function.domains["ood_test"].tolist()) == [0.0, 1.0, 4.0, 9.0]
    with pytest.raises(InputError, match="an attribute 'weight'"):
        shifts.feature(graphs, "weight")


def test_feature_of_sparse_nodes_is_the_word_count():
    words = torch.arange(20)
    dense = (torch.arange(20)[None] < words[:, None]).float()
    graph = Data(edge_index=NO_EDGES, y=words % 2)
    for x in (dense, dense.to_sparse_csr(), dense.to_sparse_coo()):
        graph.x = x
        splits = shifts.feature(graph)
        assert splits.domains["ood_test"].tolist() == [16.0, 17.0, 18.0, 19.0]


def test_group_leaves_groups_out():
    labels = ["a"] * 10 + ["b"] * 6 + ["c"] * 4
    graph = Data(x=torch.ones(20, 1), edge_index=NO_EDGES, y=torch.arange(20) % 2)
    splits = shifts.group(graph, labels, test=["b"])
    assert splits.ood_val.rows.nonzero().flatten().tolist() == [10, 11, 12]
    assert splits.ood_test.rows.nonzero().flatten().tolist() == [13, 14, 15]
    assert len(splits.id_val) == 2
    both = shifts.group(graph, labels, test=["b"], val=["c"])
    assert len(both.ood_test) == 6
    assert len(both.ood_val) == 4
    assert both.domains["ood_val"].tolist() == [2] * 4
    with pytest.raises(InputError, match=r"among a, b, c, got \['d'\]"):
        shifts.group(graph, labels, test=["d"])
    with pytest.raises(InputError, match="test groups among"):
        shifts.group(graph, labels, test=[])
    with pytest.raises(InputError, match="one group for each of the 20 rows"):
        shifts.group(graph, labels[1:], test=["b"])
    with pytest.raises(InputError, match="no part empty"):
        shifts.group(graph, labels, test=["a", "b", "c"])


def test_time_trains_on_the_past():
    stamps = [f"{2024 - i}-01-01" for i in range(20)]  # newest first
    splits = shifts.time(dots([1] * 20), stamps)
    newest = [int(g.x[0, 0]) for g in splits.ood_test.graphs]
    assert sorted(newest) == [0, 1, 2, 3]
    assert splits.name == "time"


def test_class_out():
    graphs = dots([1] * 30, labels=[i % 3 for i in range(30)])
    splits = shifts.class_out(graphs, [2])
    assert set(splits.train.target.tolist()) == {0, 1}
    assert set(splits.ood_val.target.tolist()) == set(splits.ood_test.target.tolist()) == {2}
    assert len(splits.ood_val) == len(splits.ood_test) == 5
    with pytest.raises(InputError, match="among 0, 1, 2"):
        shifts.class_out(graphs, [7])


def test_scaffold_never_parts_a_scaffold():
    pytest.importorskip("rdkit")
    smiles = ["c1ccccc1C", "c1ccccc1CC", "c1ccccc1O", "c1ccccc1N", "c1ccccc1F", "c1ccccc1Cl"]
    smiles += ["C1CCCCC1C", "C1CCCCC1CC", "c1ccncc1C", "c1ccncc1O"]
    graphs = dots([1] * 10)
    for graph, text in zip(graphs, smiles, strict=True):
        graph.smiles = text
    splits = shifts.scaffold(graphs, cuts=(0.5, 0.7))
    groups = [set(splits.domains[n].tolist()) for n in ("train", "ood_val", "ood_test")]
    assert groups == [{0}, {1}, {2}]
    again = shifts.scaffold(dots([1] * 10), cuts=(0.5, 0.7), smiles=smiles)
    assert again.domains["ood_val"].tolist() == splits.domains["ood_val"].tolist()
    with pytest.raises(InputError, match="'C1CC' in row 0"):
        shifts.scaffold(dots([1]), smiles=["C1CC"])
    with pytest.raises(InputError, match="an attribute 'smiles'"):
        shifts.scaffold(dots([1] * 3))


def test_by_any_value():
    graphs = [dots([2])[0] for _ in range(10)]
    for graph in graphs:
        graph.y = torch.tensor([0, 1])
    nodes = shifts.by(graphs, torch.arange(20), task="node")
    assert nodes.train.task == "node"
    assert len(nodes.ood_test) == 4
    with pytest.raises(InputError, match="one domain value for each of the 10 rows"):
        shifts.by(graphs, torch.arange(20))
    with pytest.raises(InputError, match="covariate, concept, tails, no_shift"):
        shifts.by(graphs, torch.arange(10), "other")
    with pytest.raises(InputError, match="a list of graphs"):
        shifts.by(7, torch.arange(10))
    with pytest.raises(InputError, match="at least one graph"):
        shifts.by([], [])


def test_graphs_of_different_attributes_can_be_cut():
    graphs = dots(range(1, 41))
    graphs[3].extra = torch.ones(1)
    splits = shifts.size(graphs)
    assert {name for name, _ in splits} == set(SPLIT_NAMES)


# -- corruptions -----------------------------------------------------------------------------------

CORRUPTIONS = [shifts.feature_noise, shifts.feature_mask, shifts.edge_drop, shifts.edge_rewire]


def ring(nodes, seed):
    ends = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    generator = torch.Generator().manual_seed(seed)
    edges = torch.cat([ends, ends.flip(0)], 1)
    return Data(
        x=torch.randn(nodes, 4, generator=generator),
        edge_index=edges,
        edge_attr=torch.arange(edges.size(1)).float(),
        y=torch.tensor([seed % 2]),
    )


def views():
    graphs = [ring(5 + i % 7, i) for i in range(30)]
    odd = [g.clone() for g in graphs]
    for graph in odd:
        graph.extra = {"a": 1}  # cannot be packed
    node = ring(60, 3)
    node.y = torch.arange(60) % 3
    return {
        "list": View(graphs),
        "packed": View(Packed.pack(graphs)[torch.arange(29, -1, -1)]),
        "odd": View(odd),
        "node": View(node, torch.arange(10, 30)),
    }


@pytest.mark.parametrize("kind", ["list", "packed", "odd", "node"])
@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_corruptions_keep_rows_and_are_reproducible(kind, corrupt):
    view = views()[kind]
    assert corrupt(view, 0) is view
    before = [(g.x.clone(), g.edge_index.clone()) for g in view.graphs]
    one, two, other = corrupt(view, 3, seed=1), corrupt(view, 3, seed=1), corrupt(view, 3, seed=2)
    assert len(one) == len(view)
    assert torch.equal(one.target, view.target)
    differs = False
    for a, b, c in zip(one.graphs, two.graphs, other.graphs, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.edge_index, b.edge_index)
        differs |= not torch.equal(a.x, c.x) or a.edge_index.tolist() != c.edge_index.tolist()
        assert a.edge_index.size(1) == a.edge_attr.size(0)
        assert a.edge_index.numel() == 0 or int(a.edge_index.max()) < a.num_nodes
    assert differs
    for graph, (x, edges) in zip(view.graphs, before, strict=True):  # the view is left alone
        assert torch.equal(graph.x, x)
        assert torch.equal(graph.edge_index, edges)
    list(one.batches(8))


def test_noise_grows_with_severity_and_feature():
    view = views()["node"]
    x = view.graphs[0].x
    view.graphs[0].x = torch.cat([x, 100 * x[:, :1], torch.ones(60, 1)], 1)
    last = 0.0
    for severity in range(1, 6):
        moved = shifts.feature_noise(view, severity).graphs[0].x - view.graphs[0].x
        std = view.graphs[0].x.std(0, correction=0)
        std[-1] = 1.0  # a constant column: its size
        share = (moved / std).std()
        assert share == pytest.approx(shifts.LEVELS[severity], rel=0.15)
        assert share > last
        last = share


def test_mask_share_and_sparse_features():
    x = torch.ones(100, 50)
    x[:, 25:] = 0
    for features in (x, x.to_sparse_csr()):
        graph = Data(x=features, edge_index=NO_EDGES, y=torch.arange(100) % 2)
        masked = shifts.feature_mask(View(graph, torch.arange(50)), 4).graphs[0].x
        dense = masked.to_dense()
        assert masked.layout == features.layout
        assert not dense[:, 25:].any()
        assert 1 - dense[:, :25].mean() == pytest.approx(shifts.LEVELS[4], abs=0.04)
        noisy = shifts.feature_noise(View(graph, torch.arange(50)), 2).graphs[0].x.to_dense()
        if features.layout == torch.sparse_csr:
            assert not noisy[:, 25:].any()
            assert (noisy[:, :25] - 1).std() == pytest.approx(shifts.LEVELS[2], rel=0.1)


@pytest.mark.parametrize("severity", range(1, 6))
def test_edges_go_in_both_directions(severity):
    view = views()["packed"]
    total = sum(g.num_edges for g in view.graphs)
    dropped = shifts.edge_drop(view, severity)
    left = sum(g.num_edges for g in dropped.graphs)
    assert left == total - 2 * round(shifts.LEVELS[severity] * total / 2)
    for graph, old in zip(dropped.graphs, view.graphs, strict=True):
        pairs = set(map(tuple, graph.edge_index.t().tolist()))
        assert all((v, u) in pairs for u, v in pairs)
        numbers = dict(zip(map(tuple, old.edge_index.t().tolist()), old.edge_attr, strict=True))
        assert [numbers[p] for p in map(tuple, graph.edge_index.t().tolist())] == list(
            graph.edge_attr
        )
    rewired = shifts.edge_rewire(view, severity)
    moved = 0
    for graph, old in zip(rewired.graphs, view.graphs, strict=True):
        pairs = sorted(map(tuple, graph.edge_index.t().tolist()))
        assert pairs == sorted((v, u) for u, v in pairs)
        assert graph.num_edges == old.num_edges
        assert torch.equal(graph.edge_attr, old.edge_attr)
        moved += int((graph.edge_index != old.edge_index).any(0).sum())
    expected = shifts.LEVELS[severity] * total
    assert 0.5 * expected <= moved <= expected + 2  # some draw their old end


def test_corruptions_refuse():
    view = views()["list"]
    for wrong in (6, -1, 2.5, True, "3"):
        with pytest.raises(InputError, match="severity as a whole number"):
            shifts.edge_drop(view, wrong)
    bare = View([Data(edge_index=NO_EDGES, num_nodes=2), Data(edge_index=NO_EDGES, num_nodes=1)])
    with pytest.raises(InputError, match="features x"):
        shifts.feature_mask(bare, 2)
    empty = shifts.edge_drop(bare, 5)
    assert [g.num_edges for g in empty.graphs] == [0, 0]
    assert [g.num_nodes for g in shifts.edge_rewire(bare, 5).graphs] == [2, 1]


# -- found by a reviewer ---------------------------------------------------------------------------


def lines(n=12, odd=False):
    """Paths of 3 to n + 2 nodes, both directions; ``odd``: of different attributes."""
    out = []
    for i in range(3, n + 3):
        path = torch.stack([torch.arange(i - 1), torch.arange(1, i)])
        edges = torch.cat([path, path.flip(0)], 1)
        x = torch.arange(2.0 * i).view(i, 2) * i
        weight = edges[0] + 100.0 * edges[1] + 10000.0 * i
        out.append(Data(x=x, edge_index=edges, y=torch.tensor([i % 2]), weight=weight))
    if odd:
        out[0].note = "only here"
    return out


def test_regression_targets_need_no_classes():
    graphs = dots(range(1, 21))
    for graph in graphs:
        graph.y = torch.tensor([0.5])
    assert len(shifts.size(graphs).ood_test) == 2
    assert len(shifts.by(graphs, range(20)).ood_test) == 4
    with pytest.raises(InputError, match="integer labels"):
        shifts.by(graphs, range(20), "concept")
    with pytest.raises(InputError, match=r"integer labels .*got values .* Cut values with shifts"):
        shifts.class_out(graphs, [0])
    for graph in graphs:
        graph.y = torch.tensor([0, 1])
    with pytest.raises(InputError, match="one label for each of the 20 rows"):
        shifts.by(graphs, range(20), "concept")


def values(y):
    graphs = dots([2] * len(y))
    for graph, value in zip(graphs, y, strict=True):
        graph.y = torch.as_tensor(value, dtype=torch.float32).reshape(1, -1)
    return graphs


def test_target_trains_on_low_values_and_tests_on_high_ones():
    y = torch.randperm(100, generator=torch.Generator().manual_seed(0)) / 7
    splits = shifts.target(values(y), quantile=(0.6, 0.8))
    parts = {name: view.target for name, view in splits}
    assert parts["train"].max() < parts["ood_val"].min()
    assert parts["id_test"].max() < parts["ood_val"].min()
    assert parts["ood_val"].max() < parts["ood_test"].min()
    assert len(splits.ood_test) == 20
    assert splits.name == "target"
    assert torch.equal(splits.domains["ood_test"], parts["ood_test"])
    assert sum(len(view) for _, view in splits) == 100


def test_target_of_several_columns_leaves_out_rows_without_it():
    y = torch.stack([torch.zeros(60), torch.arange(60.0)], dim=1)
    y[:10, 1] = torch.nan
    splits = shifts.target(values(y), column=1)
    assert sum(len(view) for _, view in splits) == 50
    assert "10 rows without it are left out" in splits.description
    assert splits.ood_test.target[:, 1].tolist() == [55, 56, 57, 58, 59]
    assert splits.train.target.shape[1] == 2
    with pytest.raises(InputError, match="a column from 0 to 1"):
        shifts.target(values(y), column=2)
    with pytest.raises(InputError, match="Move the quantiles apart"):
        shifts.target(values(y), column=0)  # a constant has no high values


def test_target_of_nodes():
    graph = dots([50])[0]
    graph.y = torch.arange(50) / 3
    splits = shifts.target(graph)
    assert splits.train.task == "node"
    assert splits.train.target.max() < splits.ood_test.target.min()


def test_cuts_of_several_targets_with_gaps():
    y = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)).round()
    y[::4, 1] = torch.nan
    graphs = values(y)
    for splits in (
        shifts.by(graphs, range(40)),
        shifts.by(graphs, range(40), "no_shift"),
        shifts.group(graphs, [i % 4 for i in range(40)], test=[3]),
    ):
        assert splits.train.target.shape == (len(splits.train), 3)
        gaps = sum(int(view.target.isnan().sum()) for _, view in splits)
        assert gaps == 10
    for call in (
        lambda: shifts.class_out(graphs, [1]),
        lambda: shifts.by(graphs, range(40), "concept"),
    ):
        with pytest.raises(InputError, match=r"one class per row, got 3 targets .* shifts.target"):
            call()


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
@pytest.mark.parametrize("packed", [False, True])
def test_corruptions_keep_values_and_gaps(corrupt, packed):
    graphs = [ring(5 + i % 7, i) for i in range(30)]
    for i, graph in enumerate(graphs):
        graph.y = torch.tensor([[i / 7, torch.nan if i % 3 else -1.5]])
    view = View(Packed.pack(graphs) if packed else graphs)
    changed = corrupt(view, 4)
    assert changed.target.dtype == torch.float32
    assert torch.equal(changed.target.nan_to_num(9), view.target.nan_to_num(9))


def test_groups_of_val_and_test_must_differ():
    with pytest.raises(InputError, match="without a common group, got b in both"):
        shifts.group(dots([1] * 20), ["a"] * 10 + ["b"] * 5 + ["c"] * 5, ["b"], val=["b", "c"])


@pytest.mark.parametrize("odd", [False, True])
def test_dropped_edges_leave_labels_alone(odd):
    """One edge a graph: as many labels as edges."""
    one = torch.tensor([[0], [1]])
    graphs = [
        Data(x=torch.ones(2, 1), edge_index=one, y=torch.tensor([i]), edge_w=torch.tensor([i]))
        for i in range(10)
    ]
    if odd:
        graphs[0].note = "only here"
    dropped = shifts.edge_drop(View(graphs), 5)
    assert torch.equal(dropped.target, torch.arange(10))
    left = [i for i, graph in enumerate(dropped.graphs) if graph.edge_index.size(1)]
    assert len(left) == 5
    assert torch.cat([graph.edge_w for graph in dropped.graphs]).tolist() == left


@pytest.mark.parametrize("odd", [False, True])
def test_edge_attributes_are_told_from_nodes_by_graph(odd):
    """As many nodes as edges in all, but not in each graph."""
    graphs = [
        Data(
            x=torch.ones(n, 1), edge_index=torch.tensor([pairs, pairs]), weight=torch.tensor(pairs)
        )
        for n, pairs in ((4, [0, 1]), (4, [0, 1, 2, 3, 0, 1]))
    ]
    graphs[1].edge_index[1] = torch.tensor([1, 2, 3, 0, 2, 3])
    if odd:
        graphs[0].note = "only here"
    for graph in shifts.edge_drop(View(graphs), 5).graphs:
        assert torch.equal(graph.weight, graph.edge_index[0])


@pytest.mark.parametrize(
    "corrupt",
    [shifts.feature_noise, shifts.feature_mask, shifts.edge_drop, shifts.edge_rewire],
)
def test_graphs_that_cannot_be_packed_are_corrupted_alike(corrupt):
    packed, odd = corrupt(View(lines()), 4, seed=3), corrupt(View(lines(odd=True)), 4, seed=3)
    assert isinstance(packed.graphs, Packed)
    assert isinstance(odd.graphs, list)
    for one, two in zip(packed.graphs, odd.graphs, strict=True):
        assert all(torch.equal(one[key], two[key]) for key in ("x", "edge_index", "y", "weight"))
    changed = "edge_index" if "edge" in corrupt.__name__ else "x"
    old, new = (torch.cat([g[changed].flatten() for g in of]) for of in (lines(), odd.graphs))
    assert not torch.equal(old, new)


def test_rewiring_keeps_self_loops_and_symmetry():
    path = torch.stack([torch.arange(19), torch.arange(1, 20)])
    loops = torch.arange(20).repeat(2, 1)
    graph = Data(x=torch.ones(20, 1), edge_index=torch.cat([path, loops, path.flip(0)], 1))
    new = shifts.edge_rewire(View(graph), 5).graphs[0].edge_index
    assert torch.equal(new[:, 19:39], loops)
    assert torch.equal(new[:, :19], new[:, 39:].flip(0))
    assert not torch.equal(new[:, :19], path)


def test_time_stamps_keep_double_precision():
    start = 1.7e9
    stamps = [start + i for i in range(20)]
    splits = shifts.time(dots([1] * 20), stamps)
    assert splits.domains["ood_test"].tolist() == stamps[16:]
    graphs = dots([1] * 20)
    for graph, stamp in zip(graphs, stamps, strict=True):
        graph.stamp = stamp
    for cut in (shifts.feature(graphs, "stamp"), shifts.feature(graphs, lambda g: g.stamp)):
        assert cut.domains["ood_test"].tolist() == stamps[16:]
    tails = shifts.tails(stamps)
    assert tails["ood_test"].tolist() == [18, 19]
    groups = shifts.group(dots([1] * 20), stamps, test=stamps[:4])
    assert sorted(groups.domains["ood_test"].tolist()) == stamps[2:4]


def test_values_of_many_kinds():
    days = np.arange(20) + np.datetime64("2024-05-20")
    for values in (days, days.tolist(), days.astype(str), np.arange(20, dtype=np.uint16)):
        splits = shifts.by(dots(range(1, 21)), values)
        assert [g.num_nodes for g in splits.ood_test.graphs] == [17, 18, 19, 20]
    graphs = dots([1] * 20)
    for i, graph in enumerate(graphs):
        graph.city = f"{i:02d}"
    assert shifts.feature(graphs, "city").domains["ood_test"].tolist() == [16, 17, 18, 19]


@pytest.mark.parametrize(
    "values",
    [[None] * 20, [1, None] * 10, [[1], [1, 2]] * 10, np.ones(20, complex), np.ones((20, 2)), 3]
    + [np.array(["NaT"] * 20, dtype="datetime64[s]"), [float("nan")] * 20],
)
def test_values_that_are_none(values):
    with pytest.raises(InputError):
        shifts.by(dots([1] * 20), values)


def test_classes_and_groups_alone_or_in_tensors():
    graphs = dots([1] * 40, [i % 4 for i in range(40)])
    wanted = shifts.class_out(graphs, [2])
    for classes in (2, np.int64(2), torch.tensor(2), torch.tensor([2]), np.array([2])):
        found = shifts.class_out(graphs, classes)
        assert torch.equal(found.ood_test.target, wanted.ood_test.target)
    names = np.array(["ab", "cd"] * 20)
    found = shifts.group(graphs, names, test="ab", seed=np.int64(3))
    assert set(found.ood_test.target.tolist()) == {0, 2}
    with pytest.raises(InputError, match="number or text each"):
        shifts.group(graphs, [["a"]] * 40, test="a")


def test_severity_and_seed_are_whole_numbers():
    view = View(lines())
    with pytest.raises(InputError, match=r"severity.*got 3\.0"):
        shifts.edge_drop(view, 3.0)
    with pytest.raises(InputError, match="seed"):
        shifts.edge_drop(view, 3, seed="0")
    with pytest.raises(InputError, match="seed"):
        shifts.size(lines(), seed=0.5)
    one, two = (shifts.edge_drop(view, np.int64(3), seed=seed) for seed in (3, np.int64(3)))
    assert torch.equal(one.graphs.tensors["edge_index"], two.graphs.tensors["edge_index"])
