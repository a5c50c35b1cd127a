"""The answers of a head for all anchors at once, against one anchor and one row at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gduq.anchoring.head_point import AnchoredHead, Tail, _map_of_relu, head_outputs
from gduq.anchoring.linear import AnchoredLinear
from gduq.nn.forced_dropout import ForcedDropout
from gduq.nn.noise import NoiseHead

RESTS = {
    "relu": nn.Sequential(nn.ReLU(), nn.Dropout(), nn.Linear(6, 3)),
    "no bias": nn.Sequential(nn.ReLU(), nn.Linear(6, 3, bias=False)),
    "elu": nn.Sequential(nn.ELU(), nn.Linear(6, 3)),
    "three layers": nn.Sequential(nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "scaled": nn.Sequential(nn.ReLU(), nn.Linear(6, 3), nn.Tanh()),
}


def parts(rest: str, bias: bool = True) -> tuple[AnchoredLinear, Tail]:
    torch.manual_seed(0)
    linear = AnchoredLinear(4, 6, bias).double()
    if rest != "branch":
        return linear, Tail(RESTS[rest].double(), 6, None).double().eval()
    linear = AnchoredLinear(4, 32, bias).double()
    tail = Tail(nn.Identity(), 32, nn.Linear(4, 3).double()).double().eval()
    assert tail.out is not None
    nn.init.normal_(tail.out.weight)
    nn.init.normal_(tail.out.bias)
    return linear, tail


def one_by_one(linear: AnchoredLinear, tail: Tail, bank: Tensor, h: Tensor) -> Tensor:
    head = AnchoredHead(linear, tail)
    return torch.cat([torch.cat([head(row[None], c.view(1, 1, -1)) for row in h], 1) for c in bank])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rest", [*RESTS, "branch"])
@pytest.mark.parametrize("block", [1, 90, 2**18])
def test_all_anchors_at_once_are_one_by_one(
    rest: str, bias: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gduq.anchoring.head_point._BLOCK", block)
    linear, tail = parts(rest, bias)
    bank, h = torch.randn(5, 4).double(), torch.randn(11, 4).double()
    expected = one_by_one(linear, tail, bank, h)
    found = head_outputs(linear, tail, bank, h)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert found.is_contiguous()
    quick = rest in ("relu", "no bias", "branch")
    assert (_map_of_relu(tail) is not None) == quick  # each way is taken where it should be


def test_gradients_pass() -> None:
    linear, tail = parts("relu")
    bank, h = torch.randn(5, 4).double(), torch.randn(11, 4).double()
    learned = [*linear.parameters(), *tail.parameters()]
    found = torch.autograd.grad(head_outputs(linear, tail, bank, h).square().sum(), learned)
    expected = torch.autograd.grad(one_by_one(linear, tail, bank, h).square().sum(), learned)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_noise_of_values_and_forced_dropout_are_not_skipped() -> None:
    linear, tail = parts("relu")
    bank, h = torch.randn(5, 4).double(), torch.randn(11, 4).double()
    plain = head_outputs(linear, tail, bank, h)
    with ForcedDropout() as forced:
        assert not torch.equal(head_outputs(linear, tail, bank, h), plain)
    assert forced.calls == 1
    tail.noise = NoiseHead(tail.channels, 3)
    found = head_outputs(linear, tail.double().eval(), bank, h)
    assert found.shape == (5, 11, 6)
    torch.testing.assert_close(found[..., :3], plain, rtol=1e-10, atol=1e-12)


def test_no_rows_give_no_answers() -> None:
    linear, tail = parts("relu")
    found = head_outputs(linear, tail, torch.randn(5, 4).double(), torch.empty(0, 4).double())
    assert found.shape == (5, 0, 3)
