"""Seeds and generators as arguments; and passes that torch.export records as programs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["below", "chunks", "derived", "device_of_model", "exporting", "generator_device",
           "isolated", "normal", "seed_all"]  # fmt: skip


def derived(seed: int, *keys: int) -> int:
    """A seed for one purpose, from the run's seed and what names the purpose."""
    return int(np.random.SeedSequence((seed, *keys)).generate_state(1, np.uint64)[0] >> 1)


def seed_all(seed: int) -> None:
    """Seed torch, NumPy and Python: dropout, anchors, and whatever a user's transform draws from.
    Epochs are seeded one by one, so a run resumed at an epoch needs no generator states."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (what old transforms use)
    random.seed(seed)


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Within this context the global generators may be seeded; they come back as they were."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002


def normal(
    size: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Standard normal numbers, drawn where the generator lives and moved to ``device``."""
    source = device if generator is None else generator.device
    return torch.randn(size, dtype=dtype, device=source, generator=generator).to(device)


def generator_device(generator: torch.Generator | None) -> torch.device:
    """Where a generator can draw: a CUDA generator draws on its GPU only; without one, the CPU."""
    return torch.device("cpu") if generator is None else generator.device


def exporting() -> bool:
    """Whether torch.export is at work: sizes are symbols, values unknown."""
    return bool(getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)())


def chunks(rows: Tensor, size: int) -> tuple[Tensor, ...]:
    """Rows in parts of at most ``size``, so that memory stays small; in an export, in one part."""
    return (rows,) if exporting() else rows.split(max(1, size))


def device_of_model(model: nn.Module) -> torch.device:
    """Where a model computes."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def below(known: Tensor, values: Tensor, equal: bool = False) -> Tensor:
    """How many of the sorted known numbers are smaller than each value, or equal to it."""
    if not exporting():
        return torch.searchsorted(known, values, right=equal)
    known, values = known.unsqueeze(-2), values.unsqueeze(-1)
    return (known <= values if equal else known < values).sum(dim=-1)
