"""`History`: what happened in each epoch of a training run, kept and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Epoch", "History", "epoch_progress"]


@dataclass(frozen=True)
class Epoch:
    """One epoch: its number (from 1), mean training loss, learning rate and duration.

    ``val_loss`` is ``None`` without validation data; so are ``val_accuracy``, which is
    about classes, and ``val_rmse``, which is about values and in their units.
    """

    epoch: int
    loss: float
    lr: float
    seconds: float
    val_loss: float | None = None
    val_accuracy: float | None = None
    val_rmse: float | None = None

    def __str__(self) -> str:
        text = f"loss {self.loss:.3f}"
        if self.val_accuracy is not None:
            text += f"  val accuracy {self.val_accuracy:.3f}"
        return text if self.val_rmse is None else f"{text}  val RMSE {self.val_rmse:.4g}"


@dataclass(frozen=True)
class History:
    """The epochs of a run, in order; returned by `gduq.fit`.

    Attributes:
        records: One `Epoch` each; empty for an ensemble.
        kept_epoch: The epoch whose weights the model has now; 0: those it had before the first
            (and for an ensemble).
        members: The history of each member of an ensemble.
        overhead_seconds: Time outside of these epochs: the one pass of a frozen trunk, heads that
            were trained beside the one that stayed, fitting anchors, temperature and novelty.

    Example:
        >>> History((Epoch(1, 0.9, 1e-3, 0.1, 0.8), Epoch(2, 0.7, 1e-3, 0.1, 0.9)), 1)
        History(2 epochs, kept 1; 0.2 s)
    """

    records: tuple[Epoch, ...] = ()
    kept_epoch: int = 0
    members: tuple[History, ...] = ()
    overhead_seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        parts = [f"{len(self)} epochs, kept {self.kept_epoch}"] * bool(self.records)
        parts += [f"{len(self.members)} members"] * bool(self.members)
        return f"History({'; '.join([*parts, f'{self.seconds:.3g} s'])})"

    @property
    def seconds(self) -> float:
        """Time spent in all epochs and around them, of members and before a resumption too."""
        own = self.overhead_seconds + sum(record.seconds for record in self.records)
        return own + sum(member.seconds for member in self.members)

    def to_pandas(self) -> pd.DataFrame:
        """One row per epoch; for an ensemble with a column ``member``."""
        import pandas as pd

        if not self.members:
            return pd.DataFrame([asdict(record) for record in self.records])
        frames = [m.to_pandas().assign(member=i) for i, m in enumerate(self.members)]
        return pd.concat(frames, ignore_index=True)


@contextmanager
def epoch_progress(epochs: int | None, show: bool, title: str) -> Iterator[Callable[[Epoch], None]]:
    """A bar on standard error, moved on by the function it yields; nothing off a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("epoch {task.completed}/{task.total}  {task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not (show and (console.is_terminal or console.is_jupyter)),
    )
    with bar:
        task = bar.add_task(title, total=epochs, numbers="")
        yield lambda record: bar.update(task, completed=record.epoch, numbers=str(record))
