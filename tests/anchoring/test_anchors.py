"""Where anchors come from: a battery every source passes, then what is special to each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gduq.anchoring.anchors import Anchors, FixedAnchors, GaussianAnchors, ShuffledAnchors
from gduq.errors import InputError, NotFittedError

few = settings(deadline=None, max_examples=30)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=seeded(seed), dtype=torch.float64)


ROWS = randn(12, 3, seed=0)
SOURCES: dict[str, Callable[[], Anchors]] = {
    "shuffle": ShuffledAnchors,
    "gaussian": lambda: GaussianAnchors(3).fit([ROWS]),
    "moving gaussian": lambda: _observed(GaussianAnchors(3, momentum=0.1)),
    "fixed": lambda: FixedAnchors(randn(8, 3, seed=1)),
}
every_source = pytest.mark.parametrize("name", SOURCES)


def _observed(source: GaussianAnchors) -> GaussianAnchors:
    source.observe(ROWS)
    return source


# -- the battery -------------------------------------------------------------------------------


@every_source
@pytest.mark.parametrize("count", [1, 12, 29])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_detached_rows(name: str, count: int, dtype: torch.dtype) -> None:
    source = SOURCES[name]().to(dtype)
    rows = ROWS.to(dtype).requires_grad_()
    source.observe(rows)
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
        source.observe(layout)
        found.append((source.draw(layout, 6, seeded(0)), source.bank([layout], 2, seeded(0))))
    assert found[1][0].layout == torch.strided
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


class ElsewhereGenerator(torch.Generator):
    """A generator that says it lives on another device, as a CUDA one does."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("meta")


class OnlyThere(TorchFunctionMode):
    """Refuses to draw with a generator on any device but its own, as torch does."""

    drawn = 0

    def __torch_function__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = dict(kwargs or {})
        generator = kwargs.get("generator")
        if isinstance(generator, ElsewhereGenerator):
            assert torch.device(kwargs.get("device", "cpu")) == generator.device, func
            kwargs["device"] = torch.device("cpu")
            self.drawn += 1
        elif kwargs.get("device") == torch.device("meta"):
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


@every_source
def test_draws_happen_where_the_generator_lives(name: str) -> None:
    with OnlyThere() as there:
        for generator in (ElsewhereGenerator(), ElsewhereGenerator()):
            generator.manual_seed(1)
            drawn = SOURCES[name]().draw(ROWS, 5, generator)
            bank = SOURCES[name]().bank([ROWS], 4, generator)
    assert drawn.device == bank.device == ROWS.device
    assert there.drawn == (2 if name == "fixed" else 4)  # its bank is no draw
    plain = seeded(1)
    assert torch.equal(drawn, SOURCES[name]().draw(ROWS, 5, plain))
    assert torch.equal(bank, SOURCES[name]().bank([ROWS], 4, plain))


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
    assert int(source.count) == rows.size(0)
    deviation = rows.std(dim=0, correction=0)
    size = rows.abs().max()
    torch.testing.assert_close(source.mean, rows.mean(dim=0), rtol=1e-12, atol=1e-12)
    varied = deviation > 0
    assert ((source.std - deviation).abs()[varied] <= 1e-7 * deviation[varied] + 1e-15 * size).all()
    assert (source.std[~varied] == 1e-3).all()

    observed = GaussianAnchors(rows.size(1))
    for chunk in chunks:
        observed.observe(chunk)
    torch.testing.assert_close(observed.mean, source.mean, rtol=1e-12, atol=1e-12)


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


def test_small_variances_are_not_constants() -> None:
    """Rare words in normalised bags of words: their deviation is theirs, however small."""
    rows = torch.zeros(5000, 1, dtype=torch.float64)
    rows[::1000] = 0.02
    source = GaussianAnchors(1).fit([rows])
    torch.testing.assert_close(source.std, rows.std(dim=0, correction=0))
    assert source.std < 1e-3


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


def test_momentum_follows_like_batch_norm() -> None:
    source, norm = GaussianAnchors(3, momentum=0.1), torch.nn.BatchNorm1d(3, momentum=0.1).double()
    batches = [randn(6, 3, seed=s) * (1 + s) + s for s in range(5)]
    source.observe(batches[0])  # the first batch is taken whole
    torch.testing.assert_close(source.mean, batches[0].mean(dim=0))
    norm.running_mean.copy_(batches[0].mean(dim=0))
    for batch in batches[1:]:
        source.observe(batch)
        norm(batch)
    torch.testing.assert_close(source.mean, norm.running_mean)
    wanted = batches[0].var(dim=0, correction=0)
    for batch in batches[1:]:
        wanted = 0.9 * wanted + 0.1 * batch.var(dim=0, correction=0)
    torch.testing.assert_close(source.std, wanted.sqrt())


def test_a_fitted_gaussian_stays() -> None:
    source = GaussianAnchors(3, momentum=0.1).fit([ROWS])
    before = copy.deepcopy(source.state_dict())
    source.observe(100 * ROWS)
    source.bank([100 * ROWS], 4, seeded(0))
    assert all(torch.equal(v, before[k]) for k, v in source.state_dict().items())
    assert source.momentum == 0.1
    source.fit([100 * ROWS])  # asked for again, it starts anew
    torch.testing.assert_close(source.mean, 100 * ROWS.mean(dim=0))


@pytest.mark.parametrize("fitted", [False, True])
def test_a_bank_is_fitted_to_its_rows_and_leaves_the_source(fitted: bool) -> None:
    """Training may go on after it, from where it was."""
    source = GaussianAnchors(3, momentum=0.5)
    source.fit([50 + ROWS]) if fitted else source.observe(50 + ROWS)
    before = copy.deepcopy(source.state_dict())
    bank = source.bank(ROWS.split(5), 2000, seeded(0))
    assert (bank.mean(dim=0) - ROWS.mean(dim=0)).abs().max() < 0.2
    assert (bank.std(dim=0) - ROWS.std(dim=0, correction=0)).abs().max() < 0.1
    assert all(torch.equal(v, before[k]) for k, v in source.state_dict().items())


def test_a_failed_fit_changes_nothing() -> None:
    def broken() -> Iterator[Tensor]:
        yield 7 + ROWS
        raise InputError("a sound graph", "another")

    streams: list[Callable[[], object]] = [
        broken,
        list,
        lambda: [ROWS[:0]],
        lambda: [ROWS, ROWS[:, :2]],
        lambda: [torch.full((2, 3), float("nan"))],
        lambda: [torch.full((2, 3), float("inf"))],
    ]
    for momentum in (None, 0.1):
        source = GaussianAnchors(3, momentum).fit([ROWS])
        before = copy.deepcopy(source.state_dict())
        for stream in streams:
            with pytest.raises(InputError):
                source.fit(stream())  # type: ignore[arg-type]
            assert all(torch.equal(v, before[k]) for k, v in source.state_dict().items())
            assert source.momentum == momentum


def test_an_unfitted_gaussian_says_so() -> None:
    with pytest.raises(NotFittedError, match="fit_source"):
        GaussianAnchors(3).draw(ROWS, 2)
    with pytest.raises(InputError, match="training rows"):
        GaussianAnchors(3).bank([], 2, seeded(0))


@pytest.mark.parametrize("rows", [torch.ones(4, 1), torch.ones(4, 5), torch.ones(3)])
def test_rows_of_another_width_are_refused(rows: Tensor) -> None:
    with pytest.raises(InputError, match="rows of width 3"):
        GaussianAnchors(3).observe(rows)


def test_statistics_survive_a_change_of_precision() -> None:
    source = GaussianAnchors(3).fit([ROWS]).float()
    torch.testing.assert_close(source.mean, ROWS.mean(dim=0).float())
    assert source.draw(ROWS.float(), 2, seeded(0)).dtype == torch.float32
    source.fit([ROWS + 1])
    torch.testing.assert_close(source.mean, ROWS.mean(dim=0).float() + 1)
    constant = GaussianAnchors(1).float().fit([torch.full((9, 1), 0.1)] * 3)
    assert constant.std == torch.tensor([1e-3])


def test_statistics_are_in_double_precision_whatever_the_default() -> None:
    """A float64 model draws from float64 statistics."""
    source = GaussianAnchors(3).fit([ROWS / 3])
    torch.testing.assert_close(source.mean, ROWS.mean(dim=0) / 3, rtol=1e-14, atol=1e-14)
    deviation = (ROWS / 3).std(dim=0, correction=0)
    torch.testing.assert_close(source.std, deviation, rtol=1e-13, atol=1e-13)


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


@pytest.mark.parametrize("sizes", [[], [0], [2], [1, 1, 0, 1]])
def test_too_few_rows_for_a_bank(sizes: list[int]) -> None:
    with pytest.raises(InputError, match=rf"at least 4 training rows.*got {sum(sizes)}\."):
        ShuffledAnchors().bank([torch.ones(n, 2) for n in sizes], 4, seeded(0))


def test_no_rows_to_shuffle() -> None:
    with pytest.raises(InputError, match="training rows to take anchors from"):
        ShuffledAnchors().draw(torch.ones(0, 3), 2)


# -- fixed anchors -----------------------------------------------------------------------------


def test_fixed_anchors_are_the_bank() -> None:
    values = randn(6, 3, seed=0)
    source = FixedAnchors(values)
    values.zero_()  # the source has a copy of its own
    bank = source.bank([], 6, seeded(0))
    assert torch.equal(bank, randn(6, 3, seed=0))
    assert torch.equal(source.bank([], 2, seeded(1)), bank[:2])
    drawn = source.draw(ROWS, 400, seeded(0))
    which = (drawn.unsqueeze(1) == bank).all(dim=-1)
    assert (which.sum(dim=1) == 1).all()  # every draw is one of them
    assert stats.chisquare(which.sum(dim=0).numpy()).pvalue > 1e-4


@pytest.mark.parametrize(
    "values",
    [
        torch.ones(3),
        torch.ones(0, 3),
        torch.ones(2, 3, 1),
        torch.ones(2, 3, dtype=torch.int64),
        torch.tensor([[1.0, float("nan")]]),
        torch.tensor([[1.0, float("inf")]]),
    ],
)
def test_bad_fixed_anchors(values: Tensor) -> None:
    with pytest.raises(InputError):
        FixedAnchors(values)


def test_more_anchors_than_fixed() -> None:
    with pytest.raises(InputError, match="at least 7 fixed anchors, got 6"):
        FixedAnchors(randn(6, 3, seed=0)).bank([], 7, seeded(0))
