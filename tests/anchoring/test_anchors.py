"""Where anchors come from: a battery every source passes, then what is special to each."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from gduq.anchoring.anchors import Anchors, GaussianAnchors, ShuffledAnchors
from gduq.errors import InputError

few = settings(deadline=None, max_examples=30)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=seeded(seed), dtype=torch.float64)


ROWS = randn(12, 3, seed=0)
SOURCES: dict[str, Callable[[], Anchors]] = {
    "shuffle": ShuffledAnchors,
    "gaussian": lambda: GaussianAnchors(3).fit([ROWS]),
    "gaussian of the batch": lambda: GaussianAnchors(3),
}
every_source = pytest.mark.parametrize("name", SOURCES)


# -- the battery -------------------------------------------------------------------------------


@every_source
@pytest.mark.parametrize("count", [1, 12, 29])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_detached_rows(name: str, count: int, dtype: torch.dtype) -> None:
    source = SOURCES[name]().to(dtype)
    rows = ROWS.to(dtype).requires_grad_()
    drawn = source.draw(rows, count, seeded(0))
    assert drawn.shape == (count, 3)
    assert drawn.dtype == dtype
    assert not drawn.requires_grad
    assert torch.isfinite(drawn).all()
    assert not any(b.requires_grad for b in source.buffers())
    assert list(source.parameters()) == []


@every_source
def test_the_generator_alone_decides(name: str) -> None:
    source, state = SOURCES[name](), torch.random.get_rng_state()
    one, two = (source.draw(ROWS, 12, seeded(3)) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, source.draw(ROWS, 12, seeded(4)))
    banks = [SOURCES[name]().bank(iter([ROWS]), 5, seeded(5)) for _ in range(2)]
    assert torch.equal(banks[0], banks[1])
    assert torch.equal(state, torch.random.get_rng_state())


@every_source
@few
@given(st.data())
def test_sparse_rows_are_dense_rows(name: str, data: st.DataObject) -> None:
    values = data.draw(
        st.lists(st.sampled_from([0.0, 0.0, 1.0, -2.5, 1e6]), min_size=12, max_size=12)
    )
    rows = torch.tensor(values, dtype=torch.float64).view(4, 3)
    found = []
    for layout in (rows, rows.to_sparse_csr()):
        source = GaussianAnchors(3) if "gaussian" in name else SOURCES[name]()
        found.append((source.draw(layout, 6, seeded(0)), source.bank([layout], 2, seeded(0))))
    assert found[1][0].layout == torch.strided
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


# -- Gaussian ----------------------------------------------------------------------------------


@st.composite
def chunked(draw: st.DrawFn) -> tuple[Tensor, list[Tensor]]:
    """A matrix, and the same rows in pieces of any size, empty ones too."""
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    offset = draw(st.sampled_from([0.0, 1.0, -1e4, 1e8]))
    rows = randn(n, d, seed=draw(st.integers(0, 1000))) + offset
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=5)))
    return rows, list(rows.tensor_split(cuts))


@few
@given(chunked(), st.booleans())
def test_streaming_in_any_chunks_is_one_batch(
    given_rows: tuple[Tensor, list[Tensor]], sparse: bool
) -> None:
    rows, chunks = given_rows
    parts = (c.to_sparse_csr() if sparse else c for c in chunks)
    source = GaussianAnchors(rows.size(1)).fit(parts)
    deviation = rows.std(dim=0, correction=0)
    size = rows.abs().max()
    torch.testing.assert_close(source.mean, rows.mean(dim=0), rtol=1e-12, atol=1e-12)
    varied = deviation > 0
    assert ((source.std - deviation).abs()[varied] <= 1e-7 * deviation[varied] + 1e-15 * size).all()
    assert (source.std[~varied] == 1e-3).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7e5, 1e-20])
@pytest.mark.parametrize("sparse", [False, True])
def test_constant_columns_move_by_the_floor(value: float, sparse: bool) -> None:
    rows = torch.full((1000, 2), value, dtype=torch.float64)
    rows[:, 1] = torch.arange(1000)
    chunks = [c.to_sparse_csr() if sparse else c for c in rows.split(7)]
    source = GaussianAnchors(2).fit(chunks)
    assert source.std[0] == 1e-3
    assert source.std[1] > 288
    drawn = source.draw(rows, 4000, seeded(0))[:, 0] - value
    assert 0.0009 < drawn.std() < 0.0011


def test_draws_have_the_fitted_moments() -> None:
    rows = randn(500, 3, seed=0) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, -3.0, 9.0])
    source = GaussianAnchors(3).fit(rows.split(100))
    for drawn in (
        source.draw(rows, 20_000, seeded(0)),
        source.bank(rows.split(9), 20_000, seeded(1)),
    ):
        for column in range(3):
            z = (drawn[:, column] - rows[:, column].mean()) / rows[:, column].std(correction=0)
            assert stats.kstest(z.numpy(), "norm").pvalue > 1e-4
        correlation = torch.corrcoef(drawn.T) - torch.eye(3)
        assert correlation.abs().max() < 0.04


def test_a_fit_stays_and_a_failed_one_changes_nothing() -> None:
    source = GaussianAnchors(3).fit([ROWS / 3])
    before = copy.deepcopy(source.state_dict())
    torch.testing.assert_close(source.mean, ROWS.mean(dim=0) / 3, rtol=1e-14, atol=1e-14)
    bank = source.bank([50 + ROWS], 4, seeded(0))  # of its own rows
    assert (bank > 40).all()
    assert source.draw(50 + ROWS, 9, seeded(1)).abs().max() < 40
    nan, infinite = torch.full((2, 3), float("nan")), torch.full((2, 3), float("inf"))
    for stream in ([], [ROWS[:0]], [ROWS, ROWS[:, :2]], [ROWS[0]], [nan], [infinite]):
        with pytest.raises(InputError):
            source.fit(stream)
    assert all(torch.equal(v, before[k]) for k, v in source.state_dict().items())
    source.fit([100 * ROWS])  # asked for again, it starts anew
    torch.testing.assert_close(source.mean, 100 * ROWS.mean(dim=0))


MISTAKES: list[Callable[[], object]] = [
    *(lambda n=n: ShuffledAnchors().bank([torch.ones(n, 2)], 4, seeded(0)) for n in (0, 2, 3)),
    lambda: ShuffledAnchors().bank([], 4, seeded(0)),
    lambda: ShuffledAnchors().draw(torch.ones(0, 3), 2),
    lambda: GaussianAnchors(3).draw(torch.ones(0, 3), 2),
]


@pytest.mark.parametrize("make", MISTAKES)
def test_what_gives_no_anchors(make: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        make()


# -- shuffled rows -----------------------------------------------------------------------------


@few
@given(n=st.integers(1, 8), count=st.integers(1, 30), seed=st.integers(0, 1000))
def test_shuffled_draws_are_permutations_in_turn(n: int, count: int, seed: int) -> None:
    rows = torch.arange(float(n)).unsqueeze(1)
    drawn = ShuffledAnchors().draw(rows, count, seeded(seed)).flatten().tolist()
    for turn in range(count // n):
        assert sorted(drawn[turn * n : (turn + 1) * n]) == list(range(n))
    rest = drawn[count // n * n :]
    assert len(set(rest)) == len(rest)


@few
@given(st.data())
def test_a_shuffled_bank_does_not_depend_on_the_chunks(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 30))
    k = data.draw(st.integers(1, n))
    rows = torch.arange(float(n)).unsqueeze(1)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    chunks = rows.tensor_split(cuts)
    bank = ShuffledAnchors().bank(iter(chunks), k, seeded(2)).flatten().tolist()
    assert len(set(bank)) == k  # without replacement
    assert set(bank) <= set(range(n))
    assert bank == ShuffledAnchors().bank([rows], k, seeded(2)).flatten().tolist()


def test_a_shuffled_bank_is_a_uniform_choice() -> None:
    rows = torch.arange(10.0).unsqueeze(1)
    chunks = rows.split([1, 4, 0, 3, 2])
    counts, first = torch.zeros(10), torch.zeros(10)
    for seed in range(1500):
        bank = ShuffledAnchors().bank(chunks, 3, seeded(seed)).flatten().long()
        counts[bank] += 1
        first[bank[0]] += 1
    assert stats.chisquare(first.numpy()).pvalue > 1e-4
    assert ((counts / 1500 - 0.3).abs() < 0.06).all()
