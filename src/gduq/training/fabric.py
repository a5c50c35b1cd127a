"""The pass of one step, the Fabric it runs on, and the state a model is left in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from torch import Tensor, nn

from gduq.errors import InputError
from gduq.prediction.predictor import Predictor

__all__ = ["Step", "checked_fabric", "evaluating_after", "fabric_for_rows"]


class Step(nn.Module):
    """What happens in one step, as a module: Fabric wraps it for several processes and precisions.

    Args:
        model: What is trained.
    """

    def __init__(self, model: Predictor) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: Any) -> tuple[Tensor, Tensor]:
        """Weighted losses of all rows and draws ``[D, m]``, and their weights."""
        return self.model.loss(graph)


def checked_fabric(fabric: Fabric | None) -> Fabric:
    """The given Fabric, or one device: the first GPU, else the CPU."""
    if fabric is None:
        return Fabric(accelerator=_accelerator(), devices=1)
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


def fabric_for_rows(fabric: Fabric | None) -> Fabric:
    """`checked_fabric` where nothing is set up with it, so that one serves all calls.

    Making one looks through all installed packages, which takes longer than some fits.
    """
    return _shared_fabric(_accelerator()) if fabric is None else checked_fabric(fabric)


@cache
def _shared_fabric(accelerator: str) -> Fabric:
    return Fabric(accelerator=accelerator, devices=1)


def _accelerator() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def evaluating_after(model: nn.Module) -> Iterator[None]:
    """However training ends, the model is in evaluation mode; a failure leaves what was fitted at
    the end of an earlier training (bank, temperature, novelty) as it was."""
    before = [(module, dict(module._buffers)) for module in model.modules()]
    state = {name: value.clone() for name, value in _small_buffers(model)}
    try:
        yield
    except BaseException:
        for module, buffers in before:
            module._buffers.update(buffers)
        for name, value in _small_buffers(model):
            if name in state:
                value.copy_(state[name])
        raise
    finally:
        model.eval()


def _small_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Temperatures and how they were found, which change in place."""
    names = ("temperature", "_calibration")
    return [(n, b) for n, b in model.named_buffers() if n.rpartition(".")[2] in names]
