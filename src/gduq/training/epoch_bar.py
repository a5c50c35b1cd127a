"""A progress bar for people, and silence for everybody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gduq.training.history import Epoch

__all__ = ["epoch_bar"]


@contextmanager
def epoch_bar(
    epochs: int | None, done: int, show: bool, title: str = ""
) -> Iterator[Callable[[Epoch], None]]:
    """A bar on standard error, moved on by the function it yields; nothing off a terminal.

    ``done`` of the ``epochs`` were before; the title says what is trained, for one run of several.
    """
    if not show:
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("epoch {task.completed}/{task.total}{task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not (console.is_terminal or console.is_jupyter),
    )
    with bar:
        task = bar.add_task(title or "training", total=epochs, completed=done, numbers="")
        yield lambda record: bar.update(task, completed=record.epoch, numbers=numbers(record))


def numbers(record: Epoch) -> str:
    """The epoch's figures in one line.

    Example:
        >>> numbers(Epoch(3, 0.5, 1e-3, 0.1, 0.6, 0.75, 0.1))
        '  loss 0.500  val accuracy 0.750  ECE 0.100'
    """
    text = f"  loss {record.loss:.3f}"
    if record.val_accuracy is not None:
        text += f"  val accuracy {record.val_accuracy:.3f}  ECE {record.val_ece:.3f}"
    if record.val_rmse is not None:
        text += f"  val RMSE {record.val_rmse:.4g}"
    return text
