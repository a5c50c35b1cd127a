"""What the processes of one training run tell each other; a single one talks to itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torch import Tensor

from gduq.errors import InputError
from gduq.training.batches import Batches, Loader, labels, truths

__all__ = ["Processes"]


class Processes:
    """The processes of a Fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    def reduced(self, value: Tensor, how: Literal["sum", "max"]) -> Tensor:
        """A value of all processes together."""
        found: Any = self.fabric.all_reduce(value, reduce_op=how)
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
        counts: list[int] = self.reduced(found, "sum").tolist()
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
