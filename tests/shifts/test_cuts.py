"""Cuts against slow references and published counts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gduq import shifts
from gduq.errors import InputError
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
    values = torch.arange(200) % 17
    for cut in (
        lambda seed: shifts.covariate(values, seed=seed),
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
