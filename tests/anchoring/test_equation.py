"""Equation (1) against the concatenation, and Gaussian draws against explicit ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gduq import AnchoredLinear, InputError
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
    found = layer(weight).residual(h) + layer(weight).shift(c, masked)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        layer(weight).shift(c, torch.zeros_like(masked)), layer(weight).shift(c)
    )


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
