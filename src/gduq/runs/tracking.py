"""Loggers for a run: Lightning Fabric's, by name or any of your own."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.csv_logs import CSVLogger
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from gduq.errors import InputError, not_installed
from gduq.jobs.progress import tell
from gduq.training.history import Epoch

__all__ = ["EpochNews", "Logger", "fabric_with"]


def fabric_with(logger: Logger | str | None, folder: Path) -> Fabric | None:
    """A Fabric on one device that logs every epoch; ``None`` without a logger.

    Args:
        logger: ``"csv"`` (``log/metrics.csv`` in the folder), ``"tensorboard"``, or any object with
            the ``log_metrics`` of a Fabric logger, such as Lightning's for MLflow or Weights &
            Biases. An object is used as it is; closing it is its owner's business.
        folder: The folder of the run.

    Example:
        >>> fabric_with(None, Path()) is None
        True
    """
    if logger is None:
        return None
    found = _named(logger, folder) if isinstance(logger, str) else logger
    # Not by class: the packages lightning and lightning_fabric each have a Logger of their own.
    if not callable(getattr(found, "log_metrics", None)):
        raise InputError("'csv', 'tensorboard' or a Fabric logger", type(found).__name__)
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    return Fabric(accelerator=accelerator, devices=1, loggers=[found])


def _named(name: str, folder: Path) -> Logger:
    if name == "csv":
        return CSVLogger(folder, name="log", version="", flush_logs_every_n_steps=1)
    if name == "tensorboard":
        try:
            return TensorBoardLogger(folder, name="log", version="")
        except ModuleNotFoundError:
            raise not_installed("tensorboard for logger='tensorboard'", "tensorboard") from None
    raise InputError("a logger 'csv' or 'tensorboard', or a Fabric logger", repr(name))


class EpochNews(Logger):
    """Tells whoever watches the run (`gduq.jobs.progress`) about its latest epoch.

    Args:
        epochs: How many there will be; ``None`` where validation rows say when to stop.

    Example:
        >>> from gduq.jobs.progress import heard_by
        >>> with heard_by(print):
        ...     EpochNews(50).log_metrics({"epoch": 3, "loss": 0.5, "lr": 0.1, "seconds": 1.0}, 3)
        epoch 3/50  loss 0.500
    """

    name, version = "news", ""

    def __init__(self, epochs: int | None) -> None:
        super().__init__()
        self._of = "" if epochs is None else f"/{epochs}"

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """One line with loss, and validation accuracy and ECE if there are any."""
        known = {f.name: metrics[f.name] for f in fields(Epoch) if f.name in metrics}
        if not {"epoch", "loss", "lr", "seconds"} <= set(known):
            return  # whatever else is logged is no epoch
        record = Epoch(**known)
        tell(f"epoch {record.epoch}{self._of}  {record}")

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to tell."""
