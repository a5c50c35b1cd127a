"""The Fabric that training runs on, what its processes tell each other, and the step they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gduq.errors import InputError
from gduq.novelty.nearest import Novelty
from gduq.prediction.predictor import Predictor
from gduq.training.batches import Batches, Loader, labels, truths

__all__ = ["FabricProcesses", "LossStep", "checked_fabric", "evaluating_after"]


class LossStep(nn.Module):
    """One step as a module, which Fabric wraps for several processes and precisions."""

    def __init__(self, model: Predictor) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: Any) -> tuple[Tensor, Tensor]:
        """Weighted losses of all rows and draws ``[D, m]``, and their weights."""
        return self.model.loss(graph)


def checked_fabric(fabric: Fabric | None) -> Fabric:
    """The given Fabric, or one device: the first GPU, else the CPU."""
    if fabric is None:
        return _one_device("cuda" if torch.cuda.is_available() else "cpu")
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


@cache  # making one looks through all installed packages, which takes longer than some fits
def _one_device(accelerator: str) -> Fabric:
    return Fabric(accelerator=accelerator, devices=1)


class FabricProcesses:
    """The processes of a Fabric; a single one talks to itself."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    def summed(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        found: Any = self.fabric.all_reduce(value, reduce_op="sum")
        return found  # type: ignore[no-any-return]

    def truths(self, train: Batches) -> Tensor:
        """The truth of all training rows of all processes."""
        y = truths(train, "train")
        if not isinstance(train, Loader) or self.fabric.world_size == 1:
            return y
        found: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(found, y.cpu())
        return torch.cat(found)

    def all_have_labels(self, graph: Any) -> bool:
        """Whether a batch has labelled rows; raises if those of some processes only have."""
        found = torch.zeros(self.fabric.world_size, dtype=torch.int64, device=self.fabric.device)
        found[self.fabric.global_rank] = labels(graph).size(0)
        counts: list[int] = self.summed(found).tolist()
        if min(counts) == 0 < max(counts):
            raise InputError(
                "labelled rows for every process in every batch",
                f"{counts} rows",
                "Use a larger batch_size or fewer processes.",
            )
        return max(counts) > 0

    def share(self, buffers: Iterable[Tensor]) -> None:
        """Give all processes the first one's: statistics of BatchNorm, Gaussian, bank."""
        if self.fabric.world_size > 1:
            for buffer in buffers:
                buffer.copy_(self.fabric.broadcast(buffer))


@contextmanager
def evaluating_after(model: Predictor, trains: bool = True) -> Iterator[None]:
    """However training ends, the model is in evaluation mode. A failure leaves what an earlier
    training fitted at its end (bank, temperature, novelty, target) as it was; but once weights have
    changed, the model no longer counts as calibrated, and knows no novelty."""
    learn = [p for p in model.parameters() if trains and p.requires_grad]
    target, known = model.target, [p for p in learn if not is_lazy(p)]
    weights = [p.detach().clone() for p in known]
    before = [(module, dict(module._buffers)) for module in model.modules()]
    in_place = [
        (buffer, buffer.clone())
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2] in ("temperature", "_calibration")
    ]
    try:
        yield
    except BaseException:
        for module, buffers in before:
            module._buffers.update(buffers)
        for buffer, value in in_place:
            buffer.copy_(value)
        if all(torch.equal(p.to(w), w) for p, w in zip(known, weights, strict=True)):
            model.target = target
        else:
            model.set_temperature(1.0, None)
            model.novelty = Novelty(model.novelty.k, model.novelty.size)
        raise
    finally:
        model.eval()
