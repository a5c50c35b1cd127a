"""`AnchoredLinear`: equation (1) as a layer, its starts and its gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gduq import AnchoredLinear
from gduq.anchoring.anchors import FixedAnchors, GaussianAnchors, ShuffledAnchors
from gduq.errors import InputError

few = settings(deadline=None, max_examples=25)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=seeded(seed), dtype=torch.float64)


def plain_layer(d: int, m: int, bias: bool = True, seed: int = 0) -> nn.Linear:
    plain = nn.Linear(d, m, bias).double()
    with torch.no_grad():
        for i, p in enumerate(plain.parameters()):
            p.copy_(randn(*p.shape, seed=seed + i))
    return plain


@few
@given(
    n=st.integers(1, 5), d=st.integers(1, 5), m=st.integers(1, 5), k=st.integers(1, 4),
    scale=st.sampled_from([0.0, 1.0, 1e3]), bias=st.booleans(), sparse=st.booleans(),
)  # fmt: skip
def test_identity_start_is_the_plain_layer_for_every_anchor(
    n: int, d: int, m: int, k: int, scale: float, bias: bool, sparse: bool
) -> None:
    plain = plain_layer(d, m, bias)
    layer = AnchoredLinear.reading_for(plain, "identity")
    h, c = randn(n, d, seed=1), scale * randn(k, n, d, seed=2)
    found = layer(h.to_sparse_csr() if sparse else h, c)
    torch.testing.assert_close(found, plain(h).expand(k, n, m), rtol=1e-9, atol=1e-9)
    masked = layer.residual(h) + layer.shift(c, torch.ones(k, n, dtype=torch.bool))
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


@pytest.mark.parametrize(
    "source",
    [
        ShuffledAnchors(),
        FixedAnchors(randn(3, 4, seed=5)),
        GaussianAnchors(4).fit([randn(6, 4, seed=6)]),
    ],
    ids=lambda s: type(s).__name__,
)
def test_no_gradient_into_anchors(source: nn.Module) -> None:
    layer = AnchoredLinear(4, 3).double()
    h = randn(6, 4, seed=0).requires_grad_()
    c = source.draw(h, 6, seeded(1))
    assert not c.requires_grad
    direction = randn(6, 3, seed=2)
    (grad,) = torch.autograd.grad(layer(h, c), h, direction)
    # only through h W_h: were c's rows not detached, their share of c (W_c - W_h) would be here
    torch.testing.assert_close(grad, direction @ layer.weight[:, :4])


def test_wrong_choices_and_widths() -> None:
    with pytest.raises(InputError):
        AnchoredLinear.reading_for(nn.Linear(2, 2), "zeros")  # type: ignore[arg-type]
    for h, c in ((torch.ones(2, 5), torch.ones(4)), (torch.ones(2, 4), torch.ones(2, 1))):
        with pytest.raises(InputError):
            AnchoredLinear(4, 3)(h, c)
