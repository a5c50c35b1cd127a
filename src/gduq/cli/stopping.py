"""Being stopped: Ctrl-C and SIGTERM end a long command with one line that says how to go on."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import typer

__all__ = ["going_on_later"]


@contextlib.contextmanager
def going_on_later(what: str) -> Iterator[None]:
    """End with one line on standard error where a user or the system stops the block.

    Args:
        what: What the same command does when it is given again.
    """
    caught: list[int] = []

    def stop(number: int, _: Any) -> None:
        caught.append(number)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if in_main else None
    try:
        yield
    except KeyboardInterrupt:
        number = caught[0] if caught else signal.SIGINT
        command = shlex.join(["gduq", *sys.argv[1:]])
        typer.echo(f"Stopped. {what}: {command}", err=True)
        raise typer.Exit(128 + number) from None
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
