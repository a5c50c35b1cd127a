"""What a cell says while it runs: one short line, for whoever watches.

Work calls `tell`; whether somebody listens is the engine's business. News is for people only and
may be lost: what comes too soon after the last is not passed on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["heard", "heard_by", "tell"]

_PAUSE = 0.2  # seconds between two pieces of news: people read no faster
_listeners: list[Callable[[str], object]] = []


def heard() -> bool:
    """Whether anybody listens; otherwise news need not even be made."""
    return bool(_listeners)


def tell(text: str) -> None:
    """Say how far the work is; without a listener nothing happens.

    Example:
        >>> with heard_by(print):
        ...     tell("epoch 1")
        ...     tell("epoch 2, too soon to be read")
        epoch 1
        >>> tell("nobody is there")
    """
    if _listeners:
        _listeners[-1](text)


@contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """Let somebody hear what the work in this block tells."""
    last = -_PAUSE

    def listen(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _PAUSE:
            last = time.monotonic()
            with suppress(OSError):  # a file that cannot be written: nobody is there
                listener(text)

    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)
