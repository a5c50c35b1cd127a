"""Equation (1) against the concatenation, Gaussian draws against explicit ones, and where anchors
come from: a battery every source passes, then what is special to each."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from gduq.anchoring.anchors import AnchoredLinear, Anchors, GaussianAnchors, ShuffledAnchors
from gduq.errors import InputError
from tests.tensors import randn, seeded, thin

few = settings(deadline=None, max_examples=40)


def layer(weight: Tensor, bias: Tensor | None = None) -> AnchoredLinear:
    """A layer with these weights."""
    made = AnchoredLinear(weight.size(1) // 2, weight.size(0), bias is not None)
    made._parameters.update(weight=weight, bias=bias)
    return made


sizes = st.integers(1, 6)
seeds = st.integers(0, 2**20)


def anchors_of(kind: str, n: int, d: int, k: int, seed: int) -> Tensor:
    shape = {"one": (d,), "rows": (n, d), "bank": (k, 1, d), "bank of rows": (k, n, d)}[kind]
    return randn(*shape, seed=seed)


def by_pairs(h: Tensor, c: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The definition: build ``[h - c || c]`` and multiply."""
    shape = torch.broadcast_shapes(h.shape, c.shape)
    pair = torch.cat([(h - c).expand(shape), c.expand(shape)], dim=-1)
    z = pair @ weight.T
    return z if bias is None else z + bias


# -- equation (1) ------------------------------------------------------------------------------


@few
@given(
    n=sizes, d=sizes, m=sizes, k=sizes, seed=seeds, bias=st.booleans(), sparse=st.booleans(),
    kind=st.sampled_from(["one", "rows", "bank", "bank of rows"]),
)  # fmt: skip
def test_equation_one_is_the_concatenation(
    n: int, d: int, m: int, k: int, seed: int, bias: bool, sparse: bool, kind: str
) -> None:
    h, c = thin(n, d, seed=seed), anchors_of(kind, n, d, k, seed + 2)
    weight = randn(m, 2 * d, seed=seed + 3).requires_grad_()
    b = randn(m, seed=seed + 4).requires_grad_() if bias else None
    wanted = by_pairs(h, c, weight, b)
    found = layer(weight, b)(h.to_sparse_csr() if sparse else h, c)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)

    direction = randn(*wanted.shape, seed=seed + 5)
    inputs = [weight] if b is None else [weight, b]
    for one, two in zip(
        torch.autograd.grad(found, inputs, direction),
        torch.autograd.grad(wanted, inputs, direction),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


@few
@given(n=sizes, d=sizes, m=sizes, k=sizes, seed=seeds)
def test_masked_shift_is_the_pair_with_a_zeroed_half(
    n: int, d: int, m: int, k: int, seed: int
) -> None:
    h, c = randn(n, d, seed=seed), randn(k, n, d, seed=seed + 1)
    weight = randn(m, 2 * d, seed=seed + 2)
    masked = torch.rand(k, n, generator=seeded(seed)) < 0.5
    half = c * ~masked.unsqueeze(-1)
    wanted = torch.cat([h - c, half], dim=-1) @ weight.T
    read = layer(weight)
    torch.testing.assert_close(read(h, c, masked), wanted)
    torch.testing.assert_close(read.shift(c, torch.zeros_like(masked)), read.shift(c))


# -- how it starts ------------------------------------------------------------------------------


@few
@given(
    n=sizes, d=sizes, m=sizes, k=sizes,
    scale=st.sampled_from([0.0, 1.0, 1e3]), bias=st.booleans(), sparse=st.booleans(),
)  # fmt: skip
def test_identity_start_is_the_plain_layer_for_every_anchor(
    n: int, d: int, m: int, k: int, scale: float, bias: bool, sparse: bool
) -> None:
    plain = nn.Linear(d, m, bias).double()
    plain.load_state_dict({name: randn(*p.shape, seed=3) for name, p in plain.named_parameters()})
    read = AnchoredLinear.reading_for(plain, "identity")
    h, c = randn(n, d, seed=1), scale * randn(k, n, d, seed=2)
    found = read(h.to_sparse_csr() if sparse else h, c)
    torch.testing.assert_close(found, plain(h).expand(k, n, m), rtol=1e-9, atol=1e-9)
    masked = read.residual(h) + read.shift(c, torch.ones(k, n, dtype=torch.bool))
    torch.testing.assert_close(masked, (h - c) @ plain.weight.T)


def test_random_start_keeps_the_scale_and_comes_from_its_generator() -> None:
    plain = nn.Linear(300, 200)
    state = torch.random.get_rng_state()
    one, two = (AnchoredLinear.reading_for(plain, "random", seeded(3)) for _ in range(2))
    other = AnchoredLinear.reading_for(plain, "random", seeded(4))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(one.weight, two.weight)
    assert not torch.equal(one.weight, other.weight)
    h, c = torch.randn(500, 300, generator=seeded(0)), torch.randn(500, 300, generator=seeded(1))
    pair = torch.cat([h - c, c], dim=1)
    # E|pair|^2 = 3d, so the output is sqrt(3/2) of the plain layer's for unit inputs
    ratio = (pair @ one.weight.T).std() / (h @ plain.weight.T).std()
    assert 1.1 < ratio < 1.4
    assert one.weight.abs().max() <= plain.weight.std() * 1.5**0.5 + 1e-6


def test_wrong_choices_and_widths() -> None:
    with pytest.raises(InputError):
        AnchoredLinear.reading_for(nn.Linear(2, 2), "zeros")  # type: ignore[arg-type]
    for h, c in ((torch.ones(2, 5), torch.ones(4)), (torch.ones(2, 4), torch.ones(2, 1))):
        with pytest.raises(InputError):
            AnchoredLinear(4, 3)(h, c)


# -- the draw in m dimensions ------------------------------------------------------------------


def short(
    weight: Tensor, mean: Tensor, std: Tensor, rows: int, seed: int, masked: Tensor | None = None
) -> Tensor:
    """Shifts that were drawn in m dimensions."""
    torch.manual_seed(seed)
    return layer(weight).gaussian_shift(mean, std, rows, masked)


def theory(mean: Tensor, std: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    return delta @ mean, delta @ torch.diag(std.square()) @ delta.T


def assert_distributed(z: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Mean and covariance within about six of their standard errors."""
    deviation = covariance.diagonal().sqrt()
    error = 6 / z.size(0) ** 0.5
    assert ((z.mean(dim=0) - mean).abs() <= error * deviation + 1e-9).all()
    bound = error * 1.5 * torch.outer(deviation, deviation)
    assert ((torch.cov(z.T) - covariance).abs() <= bound + 1e-9).all()


@pytest.mark.parametrize("rank", [1, 3, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_shift_has_the_moments_of_explicit_anchors(rank: int, dtype: torch.dtype) -> None:
    m, d, rows = 5, 12, 40_000
    delta = randn(m, d, seed=0) if rank == d else randn(m, rank, seed=0) @ randn(rank, d, seed=1)
    w_h = randn(m, d, seed=2)
    weight = torch.cat([w_h, w_h + delta], dim=1).to(dtype)
    mean, std = randn(d, seed=3).to(dtype), randn(d, seed=4).abs().to(dtype)
    z = short(weight, mean, std, rows, 5)
    assert z.shape == (rows, m)
    assert z.dtype == dtype
    wanted = theory(mean.double(), std.double(), (weight[:, d:] - weight[:, :d]).double())
    assert_distributed(z.double(), *wanted)
    c = mean + std * randn(rows, d, seed=6, dtype=dtype)
    assert_distributed(layer(weight).shift(c).double(), *wanted)  # the explicit route agrees


def test_gaussian_shift_masks_rows() -> None:
    m, d, rows = 3, 7, 40_000
    weight, mean, std = randn(m, 2 * d, seed=0), randn(d, seed=1), randn(d, seed=2).abs()
    masked = torch.arange(rows) % 3 == 0
    z = short(weight, mean, std, rows, 3, masked)
    w_h, w_c = weight.chunk(2, dim=1)
    assert_distributed(z[masked], *theory(mean, std, -w_h))
    assert_distributed(z[~masked], *theory(mean, std, w_c - w_h))


def expected_gradient(route: str, seed: int) -> Tensor:
    """Gradient of a mean over many draws of a loss that is not quadratic."""
    m, d, rows = 3, 8, 60_000
    delta = randn(m, 2, seed=0) @ randn(2, d, seed=1)  # rank 2 of 3
    w_h = randn(m, d, seed=2)
    weight = torch.cat([w_h, w_h + delta / 3], dim=1).requires_grad_()
    mean, std = randn(d, seed=3), randn(d, seed=4).abs()
    if route == "explicit":
        shift = layer(weight).shift(mean + std * randn(rows, d, seed=seed))
    else:
        shift = short(weight, mean, std, rows, seed)
    loss = (shift.tanh() + 0.3 * shift.square() * shift[:, :1].cos()).mean()
    return torch.autograd.grad(loss, weight)[0]


def test_gaussian_shift_has_the_mean_gradient_of_explicit_anchors() -> None:
    wanted, found = expected_gradient("explicit", 8), expected_gradient("short", 9)
    assert (found - wanted).norm() < 0.05 * wanted.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [0, 1, 2, 40, 200])
def test_gaussian_shift_of_singular_covariances(rank: int, dtype: torch.dtype) -> None:
    """As after a step of training from the identity start: the halves differ in a low rank."""
    m, d, rows = 200, 400, 300
    delta = (randn(m, rank, seed=0) @ randn(rank, d, seed=1)).to(dtype)  # rank 0: zeros
    delta[7] = 0.0
    w_h = randn(m, d, seed=2, dtype=dtype)
    weight = torch.cat([w_h, w_h + delta], dim=1).requires_grad_()
    difference = (weight[:, d:] - weight[:, :d]).detach()
    zero, one = torch.zeros(d, dtype=dtype), torch.ones(d, dtype=dtype)
    z = short(weight, zero, one, rows, 3)
    z.square().mean().backward()
    assert torch.isfinite(z).all()
    assert torch.isfinite(weight.grad).all()
    assert weight.grad.abs().max() < 10
    deviation = difference.norm(dim=1)
    assert ((z.std(dim=0) - deviation).abs() <= 0.25 * deviation + 1e-8).all()


def test_gaussian_shift_in_half_precision_and_under_autocast() -> None:
    weight = randn(3, 12, seed=0, dtype=torch.float32)
    mean, std = torch.zeros(6), torch.ones(6)
    plain = short(weight, mean, std, 5, 1)
    half = short(weight.bfloat16(), mean, std, 5, 1)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), plain, rtol=0.05, atol=0.1)
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        auto = short(weight, mean, std, 5, 1)
        auto.square().mean().backward()
    assert torch.equal(auto, plain)
    assert torch.isfinite(weight.grad).all()


# -- where anchors come from ---------------------------------------------------------------------

ROWS = randn(12, 3, seed=0)
SOURCES: dict[str, Callable[[], Anchors]] = {
    "shuffle": ShuffledAnchors,
    "gaussian": lambda: GaussianAnchors(3).fit([ROWS]),
    "gaussian of the batch": lambda: GaussianAnchors(3),
}
every_source = pytest.mark.parametrize("name", SOURCES)


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
