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


DROPPING = {
    "Dropout": lambda: nn.Dropout(0.5),
    "Dropout1d": lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Dropout1d(0.5)),
    "AlphaDropout": lambda: nn.AlphaDropout(0.5),
    "FeatureAlphaDropout": lambda: nn.FeatureAlphaDropout(0.5),
    "attention": Attention,
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
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


EDGES = torch.randint(50, (2, 200), generator=torch.Generator().manual_seed(0))
FUNCTIONS = {
    "F, by position": lambda v: F.dropout(v, 0.5, False),
    "F, by name": lambda v: F.dropout(input=v, p=0.5, training=False),
    "F, default p": lambda v: F.dropout(v, training=False),
    "GAT's scores": lambda v: GATConv(8, 4, dropout=0.6).eval()(v, EDGES),
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
        nn.Dropout(0.0).eval()(value)
        assert dropout.calls == 1
        assert not torch.equal(out, FUNCTIONS[name](value))
    assert torch.equal(value, torch.ones(50, 8))


def test_forced_dropout_is_of_its_thread_and_ends_with_its_context() -> None:
    with pytest.raises(KeyError), ForcedDropout():
        raise KeyError
    assert not ForcedDropout.active()
    assert torch.equal(F.dropout(x, 0.5, training=False), x)
    with ForcedDropout(), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(ForcedDropout.active).result()
        assert torch.equal(pool.submit(F.dropout, x, 0.5, False).result(), x)
        assert ForcedDropout.active()
