"""Cuts against slow references and published counts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gduq import shifts
from gduq.errors import InputError
from tests.data.real import real
from tests.shifts.cases import assert_partition, dots


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
        with pytest.raises(InputError):
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
    splits = shifts.by(graph, "degree", descending=True)
    assert [len(view) for _, view in splits] == [9378, 1979, 1979, 3003, 3454]
    assert splits.domains["ood_test"].unique().tolist() == [1]
    assert splits.domains["ood_val"].unique().tolist() == [2]
    plain = shifts.by(graph, "degree", "no_shift")
    assert [len(view) for _, view in plain] == [11875, 3959, 3959]
    sizes = torch.tensor(
        [[len(v) for _, v in shifts.by(graph, "degree", "concept", seed=s)] for s in range(40)]
    ).double()
    for published in ([7273, 1558, 1558, 3807, 5597], [7281, 1560, 1560, 3706, 5686]):
        gap = (torch.tensor(published) - sizes.mean(0)).abs()
        assert (gap < 3 * sizes.std(0)).all()


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
    "call",
    [
        lambda: shifts.covariate(torch.ones(20)),
        lambda: shifts.covariate([]),
        lambda: shifts.covariate(torch.ones(4, 2)),
        lambda: shifts.covariate(torch.tensor([1.0, float("nan")])),
        lambda: shifts.covariate(torch.arange(9), cuts=(0.8, 0.6)),
        lambda: shifts.covariate(torch.arange(20), holdout=0.5),
        lambda: shifts.tails(torch.arange(9), low=0.9, high=0.5),
        lambda: shifts.tails(torch.ones(20)),
        lambda: shifts.no_shift(2),
        lambda: shifts.concept([1, 2, 3], [0, 1]),
        lambda: shifts.concept([1, 2], torch.tensor([0.5, 1.0])),
        lambda: shifts.concept([1, 2], torch.tensor([float("nan"), 1.0])),
        lambda: shifts.concept([1, 2], [0, 1]),
    ],
)
def test_cuts_refuse(call):
    with pytest.raises(InputError):
        call()


def test_values_of_many_kinds():
    days = np.arange(20) + np.datetime64("2024-05-20")
    for values in (days, days.tolist(), days.astype(str), np.arange(20, dtype=np.uint16)):
        splits = shifts.by(dots(range(1, 21)), values)
        assert [g.num_nodes for g in splits.ood_test.graphs] == [17, 18, 19, 20]
    graphs = dots([1] * 20)
    for i, graph in enumerate(graphs):
        graph.city = f"{i:02d}"
    assert shifts.by(graphs, "city").domains["ood_test"].tolist() == [16, 17, 18, 19]


@pytest.mark.parametrize(
    "values",
    [[None] * 20, [1, None] * 10, [[1], [1, 2]] * 10, np.ones(20, complex), np.ones((20, 2)), 3]
    + [np.array(["NaT"] * 20, dtype="datetime64[s]"), [float("nan")] * 20],
)
def test_values_that_are_none(values):
    with pytest.raises(InputError):
        shifts.by(dots([1] * 20), values)
