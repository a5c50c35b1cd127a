"""Work for the tests of `parallel_map`; importable by its workers."""

from __future__ import annotations

import os
from typing import Any


def work(item: tuple[str, Any]) -> Any:
    """Do what the item says."""
    kind, value = item
    if kind == "raise":
        raise ValueError(value)
    if kind == "threads":
        import torch

        return torch.get_num_threads()
    if kind == "pid":
        return os.getpid()
    return value * 2
