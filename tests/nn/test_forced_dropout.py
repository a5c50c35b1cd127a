"""Forced dropout against that of training."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv

from gduq.nn.forced_dropout import ForcedDropout

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


def test_forced_dropout_catches_attention_scores_of_gat() -> None:
    net = GATConv(8, 4, dropout=0.6).eval()
    edges = torch.randint(50, (2, 200), generator=torch.Generator().manual_seed(0))
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


def test_forced_dropout_leaves_no_hook_behind() -> None:
    with ForcedDropout():
        torch.nn.Dropout(0.5)(torch.ones(3))
    assert not torch.nn.modules.module._has_any_global_hook()


def test_forced_dropout_is_of_its_thread() -> None:
    with ForcedDropout(), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(ForcedDropout.active).result()
        assert torch.equal(pool.submit(F.dropout, x, 0.5, False).result(), x)
        assert ForcedDropout.active()
