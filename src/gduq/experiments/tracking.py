"""Loggers for a run: Lightning Fabric's, by name or any of your own."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.csv_logs import CSVLogger
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from gduq.errors import InputError

__all__ = ["Logger", "fabric_with"]


def fabric_with(logger: Logger | str | None, folder: Path) -> Fabric | None:
    """A Fabric on one device that logs every epoch; ``None`` without a logger.

    Args:
        logger: ``"csv"`` (``log/metrics.csv`` in the folder), ``"tensorboard"``, or a logger of
            Fabric, such as Lightning's for MLflow or Weights & Biases.
        folder: The folder of the run.

    Example:
        >>> fabric_with(None, Path()) is None
        True
    """
    if logger is None:
        return None
    found = _named(logger, folder) if isinstance(logger, str) else logger
    if not isinstance(found, Logger):
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
            raise InputError(
                "tensorboard installed for logger='tensorboard'",
                "none",
                "pip install tensorboard.",
            ) from None
    raise InputError("a logger 'csv' or 'tensorboard', or a Fabric logger", repr(name))
