"""The pass of one step, the Fabric it runs on, and the state a model is left in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.anchored import Anchored
from gduq.errors import InputError
from gduq.graph import check_graph
from gduq.nn.call import Call, call_network

__all__ = ["Step", "checked_fabric", "evaluating_after"]


class Step(nn.Module):
    """What happens in one step, as a module: Fabric wraps it for several processes and precisions.

    Args:
        model: Plain or `Anchored`.
        call: How a plain network is called.
    """

    def __init__(self, model: nn.Module, call: Call | None) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, graph: Data, draws: int, mask: float) -> tuple[Tensor, Tensor]:
        """Logits ``[D, rows, C]`` and which of them were masked ``[D, rows]``; of an anchored model
        maybe those of labelled rows only."""
        if isinstance(self.model, Anchored):
            return self.model.training_pass(graph, draws, mask, labelled=True)
        check_graph(graph)
        logits = call_network(self.model, graph, self.call).unsqueeze(0)
        return logits, torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)


def checked_fabric(fabric: Fabric | None) -> Fabric:
    """The given Fabric, or one device: the first GPU, else the CPU."""
    if fabric is None:
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
        return Fabric(accelerator=accelerator, devices=1)
    if not isinstance(fabric.strategy, (SingleDeviceStrategy, DDPStrategy)):
        raise InputError(
            "a Fabric on one device or with strategy='ddp'", type(fabric.strategy).__name__
        )
    try:
        fabric.barrier()
    except RuntimeError as error:
        raise InputError(
            "a launched Fabric", "one that is not", "Call fabric.launch() first."
        ) from error
    return fabric


@contextmanager
def evaluating_after(model: nn.Module) -> Iterator[None]:
    """However training ends, the model is in evaluation mode; a failure leaves no new bank."""
    known = isinstance(model, Anchored)
    before = (model.bank, model.reach, model.temperature) if known else None
    try:
        yield
    except BaseException:
        if before is not None:
            model.bank, model.reach, model.temperature = before
        raise
    finally:
        model.eval()
