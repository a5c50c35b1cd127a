"""Forced dropout against that of training."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GATConv

from gduq.nn.layers import ForcedDropout

x = torch.ones(50, 8)


EDGES = torch.randint(50, (2, 200), generator=torch.Generator().manual_seed(0))
FUNCTIONS = {
    "F, by position": lambda v: F.dropout(v, 0.5, False),
    "F, by name": lambda v: F.dropout(input=v, p=0.5, training=False),
    "F, default p": lambda v: F.dropout(v, training=False),
    "GAT's scores": lambda v: GATConv(8, 4, dropout=0.6).eval()(v, EDGES),
    "native": lambda v: torch.dropout(v, 0.5, False),
    "native, by name": lambda v: torch.dropout(input=v, p=0.5, train=False),
    "native alpha": lambda v: torch.alpha_dropout(v, p=0.5, train=False),
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
