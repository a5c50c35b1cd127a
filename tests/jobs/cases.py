"""Work for the engines' tests; importable by their workers."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def work(cell: tuple[str, Any]) -> Any:
    """Do what the cell says."""
    kind, value = cell
    if kind == "raise":
        raise ValueError(value)
    if kind == "exit":
        os._exit(value)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "sleep":
        time.sleep(value)
    if kind == "threads":
        import torch

        return torch.get_num_threads()
    if kind == "unsendable":
        import threading

        return threading.Lock()
    if kind == "pid":
        return os.getpid()
    if kind == "stamp":
        start = time.time()
        time.sleep(value)
        return start, time.time()
    if kind == "tell":
        from gduq.jobs.progress import tell

        tell("epoch 1/2  loss 0.500")
        while value is not None and not os.path.exists(value):  # until it was heard
            time.sleep(0.01)
        return None
    return value * 2
