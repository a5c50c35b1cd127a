"""Numbers of graphs that layers of PyG find by looking into ``batch``, as symbols."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gduq.nn.call import ONE_PASS

__all__ = ["knowing_graphs"]

# modules of PyG where int(batch.max()) + 1 is how many graphs there are
_LOOKING = ["utils._scatter", "utils.num_nodes", "nn.aggr.base", "nn.aggr.fused"]
_LOOKING += [f"nn.norm.{name}_norm" for name in ("graph", "instance", "layer")]


class _Known(TorchFunctionMode):
    """Notes on the largest number in ``batch`` that it is the last graph's."""

    def __init__(self, batch: Tensor, graphs: int) -> None:
        super().__init__()
        self.batch, self.graphs = batch, graphs

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        whole = func in (torch.max, Tensor.max) and len(args) == 1 and not kwargs
        if whole and args[0] is self.batch:
            found._gduq_number = self.graphs - 1
        return found


class _Whole(type):
    """What ``int`` is in those modules meanwhile: symbols count as whole numbers."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (builtins.int, torch.SymInt))

    def __call__(cls, value: Any = 0) -> Any:
        known = getattr(value, "_gduq_number", None)
        if known is not None:
            return known
        return value if isinstance(value, torch.SymInt) else builtins.int(value)


class _Int(metaclass=_Whole):
    pass


@contextmanager
def knowing_graphs(batch: Tensor, graphs: int) -> Iterator[None]:
    """Within this context PyG's layers take the number of graphs from here.

    They ask for the largest number in ``batch`` as a Python number, which a program that is to
    hold for any number of graphs does not have.
    """
    found = [sys.modules.get(f"torch_geometric.{name}") for name in _LOOKING]
    modules = [module for module in found if module is not None]
    with ONE_PASS, _Known(batch, graphs):
        for module in modules:
            module.__dict__["int"] = _Int
        try:
            yield
        finally:
            for module in modules:
                del module.__dict__["int"]
