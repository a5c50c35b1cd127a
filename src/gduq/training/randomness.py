"""Every epoch has random numbers of its own, and the caller's stay where they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["derived", "isolated", "seed_all"]


def derived(seed: int, *keys: int) -> int:
    """A seed for one purpose, from the run's seed and what names the purpose.

    Example:
        >>> derived(0, 1) == derived(0, 1), derived(0, 1) == derived(0, 2)
        (True, False)
    """
    return int(np.random.SeedSequence((seed, *keys)).generate_state(1, np.uint64)[0] >> 1)


def seed_all(seed: int) -> None:
    """Seed torch, NumPy and Python: dropout, anchors, and whatever a user's transform draws from.

    Epochs are seeded one by one, so a run resumed at an epoch needs no generator states.
    """
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
