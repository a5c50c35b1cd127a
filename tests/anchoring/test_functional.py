"""Equation (1), sparse products and forced dropout, against plain references."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import GATConv

from gduq import functional
from gduq.errors import InputError
from gduq.functional import (
    ForcedDropout,
    anchor_shift,
    anchored_linear,
    as_dtype,
    csr,
    gaussian_shift,
    is_sparse,
    keep_rows,
    linear,
    normal,
    sparse_matmul,
    take_rows,
)

few = settings(deadline=None, max_examples=40)
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**20)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(size, generator=seeded(seed), dtype=dtype)


def thin(*size: int, seed: int) -> Tensor:
    """Mostly zeros, with whole rows of them."""
    values = randn(*size, seed=seed)
    return values * (torch.rand(size, generator=seeded(seed + 1)) < 0.4)


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
    found = anchored_linear(h.to_sparse_csr() if sparse else h, c, weight, b)
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
@given(n=sizes, d=sizes, m=sizes, seed=seeds)
def test_equation_one_in_the_dense_inputs(n: int, d: int, m: int, seed: int) -> None:
    h, c = randn(n, d, seed=seed).requires_grad_(), randn(n, d, seed=seed + 1).requires_grad_()
    weight = randn(m, 2 * d, seed=seed + 2)
    direction = randn(n, m, seed=seed + 3)
    found = torch.autograd.grad(anchored_linear(h, c, weight), [h, c], direction)
    wanted = torch.autograd.grad(by_pairs(h, c, weight, None), [h, c], direction)
    torch.testing.assert_close(found, wanted)


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
    found = linear(h, weight[:, :d]) + anchor_shift(c, weight, masked)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        anchor_shift(c, weight, torch.zeros_like(masked)), anchor_shift(c, weight)
    )


def test_equal_halves_do_not_see_the_anchor() -> None:
    h, half = randn(4, 3, seed=0), randn(2, 3, seed=1)
    weight = torch.cat([half, half], dim=1)
    for scale in (0.0, 1.0, 1e6):
        c = scale * randn(5, 1, 3, seed=2)
        torch.testing.assert_close(
            anchored_linear(h, c, weight), (h @ half.T).expand(5, 4, 2), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("kind", ["one", "rows", "bank", "bank of rows"])
def test_zero_anchor_reads_h_alone(kind: str) -> None:
    h, weight = randn(3, 2, seed=0), randn(4, 4, seed=1)
    c = torch.zeros_like(anchors_of(kind, 3, 2, 5, 0))
    z = anchored_linear(h, c, weight)
    torch.testing.assert_close(z, (h @ weight[:, :2].T).expand_as(z))


# -- the draw in m dimensions ------------------------------------------------------------------


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
    z = gaussian_shift(mean, std, weight, rows, generator=seeded(5))
    assert z.shape == (rows, m)
    assert z.dtype == dtype
    wanted = theory(mean.double(), std.double(), (weight[:, d:] - weight[:, :d]).double())
    assert_distributed(z.double(), *wanted)
    c = mean + std * randn(rows, d, seed=6, dtype=dtype)
    assert_distributed(anchor_shift(c, weight).double(), *wanted)  # the explicit route agrees


def test_gaussian_shift_masks_rows() -> None:
    m, d, rows = 3, 7, 40_000
    weight, mean, std = randn(m, 2 * d, seed=0), randn(d, seed=1), randn(d, seed=2).abs()
    masked = torch.arange(rows) % 3 == 0
    z = gaussian_shift(mean, std, weight, rows, masked, seeded(3))
    w_h, w_c = weight.chunk(2, dim=1)
    assert_distributed(z[masked], *theory(mean, std, -w_h))
    assert_distributed(z[~masked], *theory(mean, std, w_c - w_h))


def test_gaussian_shift_rows_are_independent() -> None:
    z = gaussian_shift(
        torch.zeros(6).double(), torch.ones(6).double(), randn(2, 12, seed=0), 20_000,
        generator=seeded(1),
    )  # fmt: skip
    neighbours = torch.corrcoef(torch.stack([z[:-1, 0], z[1:, 0]]))[0, 1]
    assert neighbours.abs() < 0.05


def expected_gradient(route: str, seed: int) -> Tensor:
    """Gradient of a mean over many draws of a loss that is not quadratic."""
    m, d, rows = 3, 8, 60_000
    delta = randn(m, 2, seed=0) @ randn(2, d, seed=1)  # rank 2 of 3
    w_h = randn(m, d, seed=2)
    weight = torch.cat([w_h, w_h + delta / 3], dim=1).requires_grad_()
    mean, std = randn(d, seed=3), randn(d, seed=4).abs()
    if route == "explicit":
        shift = anchor_shift(mean + std * randn(rows, d, seed=seed), weight)
    else:
        shift = gaussian_shift(mean, std, weight, rows, generator=seeded(seed))
    loss = (shift.tanh() + 0.3 * shift.square() * shift[:, :1].cos()).mean()
    return torch.autograd.grad(loss, weight)[0]


def test_gaussian_shift_has_the_mean_gradient_of_explicit_anchors() -> None:
    wanted, found = expected_gradient("explicit", 8), expected_gradient("short", 9)
    assert (found - wanted).norm() < 0.05 * wanted.norm()


def gradient_noise(route: str, rows: int = 30) -> float:
    m, d = 6, 10
    weight = torch.cat([randn(m, d, seed=1), randn(m, d, seed=2)], dim=1)
    zero, one, found = torch.zeros(d).double(), torch.ones(d).double(), []
    for seed in range(200):
        w = weight.clone().requires_grad_()
        if route == "explicit":
            shift = anchor_shift(randn(rows, d, seed=seed), w)
        else:
            shift = gaussian_shift(zero, one, w, rows, generator=seeded(seed))
        found.append(torch.autograd.grad(shift.tanh().square().mean(), w)[0])
    return float(torch.stack(found).var(dim=0).sum())


def test_gaussian_shift_has_no_noisier_gradients_than_explicit_anchors() -> None:
    assert gradient_noise("short") < 1.05 * gradient_noise("explicit")


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
    z = gaussian_shift(
        torch.zeros(d, dtype=dtype), torch.ones(d, dtype=dtype), weight, rows, generator=seeded(3)
    )
    z.square().mean().backward()
    assert torch.isfinite(z).all()
    assert torch.isfinite(weight.grad).all()
    assert weight.grad.abs().max() < 10
    deviation = difference.norm(dim=1)
    assert ((z.std(dim=0) - deviation).abs() <= 0.25 * deviation + 1e-8).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_shift_without_deviation_is_the_mean_shift(dtype: torch.dtype) -> None:
    weight = randn(4, 12, seed=0, dtype=dtype).requires_grad_()
    mean = randn(6, seed=1, dtype=dtype)
    z = gaussian_shift(mean, torch.zeros(6, dtype=dtype), weight, 9, generator=seeded(0))
    wanted = anchor_shift(mean, weight).expand(9, 4)
    torch.testing.assert_close(z, wanted)
    direction = randn(9, 4, seed=2, dtype=dtype)
    found = torch.autograd.grad(z, weight, direction)[0]
    torch.testing.assert_close(found, torch.autograd.grad(wanted, weight, direction)[0])


def test_gaussian_shift_of_equal_halves_is_nothing() -> None:
    half = randn(4, 6, seed=0)
    z = gaussian_shift(
        randn(6, seed=1), torch.ones(6).double(), torch.cat([half, half], dim=1), 8,
        generator=seeded(0),
    )  # fmt: skip
    assert z.abs().max() < 1e-50


def test_gaussian_shift_comes_from_its_generator_alone() -> None:
    args = (randn(6, seed=0), torch.ones(6).double(), randn(3, 12, seed=1), 5)
    before = torch.random.get_rng_state()
    one, two = (gaussian_shift(*args, generator=seeded(4)) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, gaussian_shift(*args, generator=seeded(5)))
    assert torch.equal(before, torch.random.get_rng_state())


def test_gaussian_shift_in_half_precision_and_under_autocast() -> None:
    weight = randn(3, 12, seed=0, dtype=torch.float32)
    mean, std = torch.zeros(6), torch.ones(6)
    plain = gaussian_shift(mean, std, weight, 5, generator=seeded(1))
    half = gaussian_shift(mean, std, weight.bfloat16(), 5, generator=seeded(1))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), plain, rtol=0.05, atol=0.1)
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        auto = gaussian_shift(mean, std, weight, 5, generator=seeded(1))
        auto.square().mean().backward()
    assert torch.equal(auto, plain)
    assert torch.isfinite(weight.grad).all()


def test_gaussian_shift_refuses_second_derivatives() -> None:
    """Its backward pass is an estimate: deriving it again would be silently wrong."""
    weight = randn(2, 8, seed=0).requires_grad_()
    z = gaussian_shift(torch.zeros(4).double(), torch.ones(4).double(), weight, 3)
    (grad,) = torch.autograd.grad(z.square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_normal_is_drawn_from_its_generator() -> None:
    one = normal((3, 2), torch.float64, torch.device("cpu"), seeded(1))
    assert torch.equal(one, randn(3, 2, seed=1))
    assert one.dtype == torch.float64


# -- sparse matrices ---------------------------------------------------------------------------


@st.composite
def entries(draw: st.DrawFn) -> tuple[list[int], list[int], list[float], tuple[int, int]]:
    """Entries of a matrix: any order, repeated ones, rows and columns without any."""
    size = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    triple = st.tuples(
        st.integers(0, size[0] - 1),
        st.integers(0, size[1] - 1),
        st.integers(-8, 8).map(lambda v: v / 4),
    )
    found = draw(st.lists(triple, max_size=20))
    return [t[0] for t in found], [t[1] for t in found], [t[2] for t in found], size


def both(given_entries: tuple) -> tuple[Tensor, Tensor]:
    rows, cols, values, size = given_entries
    index = torch.tensor([rows, cols], dtype=torch.int64).view(2, -1)
    numbers = torch.tensor(values, dtype=torch.float64)
    dense = torch.zeros(size, dtype=torch.float64)
    dense.index_put_((index[0], index[1]), numbers, accumulate=True)
    return csr(index[0], index[1], numbers, size), dense


@few
@given(entries(), st.integers(1, 4), seeds)
def test_sparse_matmul_is_the_dense_product(given_entries: tuple, m: int, seed: int) -> None:
    sparse, dense = both(given_entries)
    assert is_sparse(sparse)
    assert not is_sparse(dense)
    assert sparse.shape == dense.shape
    b = randn(dense.size(1), m, seed=seed).requires_grad_()
    direction = randn(dense.size(0), m, seed=seed + 1)
    torch.testing.assert_close(sparse_matmul(sparse, b), dense @ b)
    for _ in range(2):  # the second time with the kept transpose
        (grad,) = torch.autograd.grad(sparse_matmul(sparse, b), b, direction)
        torch.testing.assert_close(grad, dense.T @ direction)
    weight = randn(m, dense.size(1), seed=seed)
    bias = randn(m, seed=seed)
    torch.testing.assert_close(linear(sparse, weight, bias), linear(dense, weight, bias))


@few
@given(entries(), st.data())
def test_rows_of_sparse_matrices_are_those_of_dense_ones(
    given_entries: tuple, data: st.DataObject
) -> None:
    sparse, dense = both(given_entries)
    n = dense.size(0)
    index = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), max_size=9)), dtype=torch.int64)
    found = take_rows(sparse, index)
    assert found.layout == torch.strided
    torch.testing.assert_close(found, dense[index])
    assert torch.equal(take_rows(dense, index), dense[index])

    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    kept = keep_rows(sparse, mask)
    assert is_sparse(kept)
    assert kept.shape == dense[mask].shape
    assert torch.equal(keep_rows(dense, mask), dense[mask])
    b = randn(dense.size(1), 3, seed=0).requires_grad_()
    torch.testing.assert_close(sparse_matmul(kept, b), dense[mask] @ b)
    direction = randn(int(mask.sum()), 3, seed=1)
    (grad,) = torch.autograd.grad(sparse_matmul(kept, b), b, direction)
    torch.testing.assert_close(grad, dense[mask].T @ direction)


def test_sparse_matmul_passes_gradcheck() -> None:
    sparse = thin(5, 4, seed=3).to_sparse_csr()
    b = randn(4, 2, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda b: sparse_matmul(sparse, b), b)
    assert torch.autograd.gradgradcheck(lambda b: sparse_matmul(sparse, b).square(), b)


def test_sparse_matrix_may_change_between_products() -> None:
    sparse = thin(5, 4, seed=3).to_sparse_csr()
    b = randn(4, 2, seed=4).requires_grad_()
    sparse_matmul(sparse, b).sum().backward()
    b.grad = None
    with torch.no_grad():
        sparse.values().mul_(3.0)
    sparse_matmul(sparse, b).sum().backward()
    torch.testing.assert_close(b.grad, sparse.to_dense().T @ torch.ones(5, 2).double())


def test_sparse_product_takes_the_wider_dtype() -> None:
    sparse = thin(5, 4, seed=3).float().to_sparse_csr()
    b = randn(4, 2, seed=4).requires_grad_()
    for _ in range(2):
        b.grad = None
        z = sparse_matmul(sparse, b)
        z.sum().backward()
        assert (z.dtype, b.grad.dtype) == (torch.float64, torch.float64)
        torch.testing.assert_close(z, sparse.to_dense().double() @ b, rtol=1e-13, atol=1e-13)
    narrow = sparse_matmul(sparse.double(), b.float().detach())
    assert narrow.dtype == torch.float64


def test_a_sparse_matrix_in_another_dtype_is_made_once() -> None:
    sparse = thin(5, 4, seed=3).float().to_sparse_csr()
    assert as_dtype(sparse, torch.float32) is sparse
    wide = as_dtype(sparse, torch.float64)
    assert wide is as_dtype(sparse, torch.float64)
    assert torch.equal(wide.to_dense(), sparse.to_dense().double())
    sparse.values().mul_(2.0)
    assert torch.equal(as_dtype(sparse, torch.float64).to_dense(), sparse.to_dense().double())


def test_sparse_product_under_autocast() -> None:
    sparse = thin(5, 4, seed=3).float().to_sparse_csr()
    b = randn(4, 2, seed=4).float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = sparse_matmul(sparse, b)
        z.sum().backward()
    torch.testing.assert_close(z, sparse.to_dense() @ b)
    torch.testing.assert_close(b.grad, sparse.to_dense().T @ torch.ones(5, 2))


def test_sparse_product_in_inference_mode() -> None:
    with torch.inference_mode():
        sparse = thin(5, 4, seed=3).to_sparse_csr()
        b = randn(4, 2, seed=4)
        torch.testing.assert_close(sparse_matmul(sparse, b), sparse.to_dense() @ b)
        torch.testing.assert_close(
            sparse_matmul(sparse, b.float()), sparse.to_dense() @ b.float().double()
        )


@pytest.mark.parametrize("matrix", [thin(4, 4, seed=3), torch.eye(4)], ids=["any", "diagonal"])
def test_kept_copies_die_with_their_matrix(matrix: Tensor) -> None:
    gc.collect()
    before = len(functional._derived)
    sparse = matrix.float().to_sparse_csr()
    b = randn(4, 2, seed=4)
    sparse_matmul(sparse, b.float().requires_grad_()).sum().backward()
    assert len(functional._derived) == before + 1
    sparse_matmul(sparse, b.requires_grad_()).sum().backward()  # in another dtype
    assert len(functional._derived) == before + 2
    del sparse
    gc.collect()
    assert len(functional._derived) == before


def test_sparse_matmul_refuses_what_it_cannot_derive() -> None:
    sparse = thin(5, 4, seed=3).to_sparse_csr().requires_grad_()
    with pytest.raises(InputError, match="Detach it"):
        sparse_matmul(sparse, randn(4, 2, seed=4))


# -- forced dropout ----------------------------------------------------------------------------

x = torch.ones(50, 8)


class Attention(nn.Module):
    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=p, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[None], x[None], x[None], need_weights=False)[0]


class DotProduct(nn.Module):
    """Attention as many write it: the probability is told in training mode only."""

    def __init__(self, p: float = 0.5, named: bool = True) -> None:
        super().__init__()
        self.rate, self.named, self.read = p, named, nn.Linear(8, 24)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        q, k, v = self.read(self.norm(scale * x))[None].chunk(3, dim=-1)
        p = self.rate if self.training else 0.0
        if self.named:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=p)[0]
        return F.scaled_dot_product_attention(q, k, v, None, p)[0]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], packed: bool = False, p: float = 0.5) -> None:
        super().__init__()
        self.inner, self.packed = kind(8, 8, num_layers=2, dropout=p, batch_first=True), packed

    def forward(self, x: Tensor) -> Tensor:
        if self.packed:
            sequence = nn.utils.rnn.pack_sequence([x, x[:9]])
            return self.inner(sequence)[0].data
        return self.inner(x[None])[0]


DROPPING = {
    "Dropout": lambda: nn.Dropout(0.5),
    "Dropout1d": lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Dropout1d(0.5)),
    "AlphaDropout": lambda: nn.AlphaDropout(0.5),
    "FeatureAlphaDropout": lambda: nn.FeatureAlphaDropout(0.5),
    "attention": Attention,
    "dot product": DotProduct,
    "dot products": lambda: nn.Sequential(DotProduct(named=False), nn.Dropout(0.5), DotProduct()),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "GRU": lambda: Recurrent(nn.GRU),
    "RNN": lambda: Recurrent(nn.RNN),
    "packed LSTM": lambda: Recurrent(nn.LSTM, packed=True),
    "packed GRU": lambda: Recurrent(nn.GRU, packed=True),
}


@pytest.mark.parametrize("name", DROPPING)
def test_forced_dropout_drops_in_evaluation_mode(name: str) -> None:
    module = DROPPING[name]().eval()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        plain, again = module(x), module(x)
        assert torch.equal(plain, again)
        with ForcedDropout() as dropout:
            one, two = module(x), module(x)
        assert not torch.equal(one, two)
        assert dropout.calls >= 2
        assert torch.equal(module(x), plain)  # and not afterwards


@pytest.mark.parametrize("name", DROPPING)
def test_forced_dropout_is_that_of_training(name: str) -> None:
    module = DROPPING[name]()
    with torch.no_grad(), torch.random.fork_rng():
        module.train()
        for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm1d)):
            norm.eval()  # what forced dropout must leave alone
        torch.manual_seed(1)
        wanted = module(x)
        torch.manual_seed(1)
        with ForcedDropout():
            found = module.eval()(x)
    torch.testing.assert_close(found, wanted)


FUNCTIONS = {
    "F, by position": lambda v: F.dropout(v, 0.5, False),
    "F, by name": lambda v: F.dropout(input=v, p=0.5, training=False),
    "F, default p": lambda v: F.dropout(v, training=False),
    "native": lambda v: torch.dropout(v, 0.5, False),
    "native, by name": lambda v: torch.dropout(input=v, p=0.5, train=False),
    "native alpha": lambda v: torch.alpha_dropout(v, p=0.5, train=False),
    "2d": lambda v: F.dropout2d(v.view(5, 10, 2, 4), 0.5, training=False),
    "3d": lambda v: F.dropout3d(v.view(5, 10, 2, 2, 2), 0.5, training=False),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forced_dropout_catches_functions(name: str) -> None:
    value = torch.ones(50, 8)
    with torch.random.fork_rng(), ForcedDropout() as dropout:
        torch.manual_seed(0)
        out = FUNCTIONS[name](value)
    assert dropout.calls == 1
    assert not torch.equal(out.flatten(), value.flatten())
    assert torch.equal(value, torch.ones(50, 8))


def test_forced_dropout_in_place() -> None:
    value = torch.ones(50, 8)
    with torch.random.fork_rng(), ForcedDropout():
        torch.manual_seed(0)
        F.dropout(value, 0.5, training=False, inplace=True)
    assert set(value.unique().tolist()) == {0.0, 2.0}


def test_forced_dropout_catches_attention_scores_of_gat() -> None:
    net = GATConv(8, 4, dropout=0.6).eval()
    edges = torch.randint(50, (2, 200), generator=seeded(0))
    with torch.no_grad(), torch.random.fork_rng(), ForcedDropout() as dropout:
        torch.manual_seed(0)
        assert not torch.equal(net(x, edges), net(x, edges))
    assert dropout.calls == 2


def test_attention_that_hides_its_dropout_is_found_once() -> None:
    """Whatever the arguments; afterwards all modules are as they were."""
    net = nn.Sequential(DotProduct(), DotProduct(0.0), nn.BatchNorm1d(8)).eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    runs: list[int] = []
    net[0].read.register_forward_pre_hook(lambda *_: runs.append(0))
    net[1].read.register_forward_pre_hook(lambda *_: runs.append(1))
    with torch.no_grad(), torch.random.fork_rng(), ForcedDropout() as dropout:
        torch.manual_seed(0)
        outputs = [net(x) for _ in range(3)]
        assert not any(module.training for module in net.modules())
        assert dropout.calls == 3
    assert not torch.equal(outputs[0], outputs[1])
    assert runs.count(0) == runs.count(1) == 4  # each once more, in the first pass
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    with torch.no_grad():
        assert torch.equal(net(x), net(x))


def test_attention_keeps_its_keyword_arguments_and_shape_of_output() -> None:
    net = DotProduct().eval()
    with torch.no_grad(), torch.random.fork_rng():
        with ForcedDropout():
            torch.manual_seed(0)
            found = net(x, scale=3.0)
        torch.manual_seed(0)
        net.train()
        net.norm.eval()
        torch.testing.assert_close(found, net(x, scale=3.0))


def test_attention_that_always_drops_is_counted() -> None:
    q = torch.ones(1, 4, 8)
    with torch.random.fork_rng(), ForcedDropout() as dropout:
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        F.scaled_dot_product_attention(q, q, q)
    assert dropout.calls == 1


def test_attention_in_nested_contexts_threads_and_failed_passes() -> None:
    class Fails(DotProduct):
        fails = False

        def forward(self, x: Tensor) -> Tensor:
            if self.fails:
                raise KeyError
            return super().forward(x)

    net, failing = DotProduct().eval(), nn.Sequential(nn.Linear(8, 8), Fails()).eval()
    plain = net(x).detach()
    with torch.no_grad(), torch.random.fork_rng(), ForcedDropout() as outer:
        torch.manual_seed(0)
        failing(x)
        failing[1].fails = True
        with pytest.raises(KeyError):
            failing(x)
        with ForcedDropout() as inner:
            assert not torch.equal(net(x), net(x))
        assert (inner.calls, outer.calls) == (2, 3)
        assert not torch.equal(net(x), net(x))
        with ThreadPoolExecutor(1) as pool:
            torch.testing.assert_close(pool.submit(net, x).result().detach(), plain)
    torch.testing.assert_close(net(x), plain)
    assert not any(module.training for module in failing.modules())
    hooks = nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks
    assert [len(h) for h in hooks] == [0, 0]


@pytest.mark.parametrize(
    "module",
    [
        nn.Dropout(0.0),
        Attention(0.0),
        DotProduct(0.0),
        Recurrent(nn.LSTM, p=0.0),
        nn.LSTM(8, 8),
        nn.Linear(8, 8),
    ],
    ids=lambda m: type(m).__name__,
)
def test_forced_dropout_counts_only_what_drops(module: nn.Module) -> None:
    with torch.no_grad(), ForcedDropout() as dropout:
        module.eval()(x)
    assert dropout.calls == 0


def test_forced_dropout_ends_with_its_context() -> None:
    assert not ForcedDropout.active()
    with ForcedDropout():
        with ForcedDropout():
            assert ForcedDropout.active()
        assert ForcedDropout.active()
    with pytest.raises(KeyError), ForcedDropout():
        raise KeyError
    assert not ForcedDropout.active()
    assert torch.equal(F.dropout(x, 0.5, training=False), x)


def test_forced_dropout_is_of_its_thread() -> None:
    with ForcedDropout(), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(ForcedDropout.active).result()
        assert torch.equal(pool.submit(F.dropout, x, 0.5, False).result(), x)
        assert ForcedDropout.active()


def test_every_public_name_exists() -> None:
    assert functional.__all__ == sorted(functional.__all__)
    assert all(hasattr(functional, name) for name in functional.__all__)


def test_forced_dropout_leaves_no_hook_behind() -> None:
    with ForcedDropout():
        torch.nn.Dropout(0.5)(torch.ones(3))
    assert not torch.nn.modules.module._has_any_global_hook()
