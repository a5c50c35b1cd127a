"""Loggers: Fabric's by name, and anybody's object."""

from __future__ import annotations

import pytest
from lightning_fabric.loggers.logger import Logger

from gduq.errors import InputError
from gduq.runs.config import RunConfig
from gduq.runs.run import run

CONFIG = RunConfig(
    data={"name": "cbas/color/concept"},
    model={"conv": "gcn", "hidden_channels": 4},
    training={"epochs": 3},
    calibrators=(),
)


class Mine(Logger):
    """As MLflow's and Weights & Biases' loggers are: a subclass of Fabric's class."""

    name, version = "mine", "0"

    def __init__(self):
        self.seen = []

    def log_metrics(self, metrics, step=None):
        self.seen.append((step, metrics))

    def log_hyperparams(self, *args, **kwargs):
        raise AssertionError("not asked for")


class Duck:
    """As those of the package lightning are, whose Logger is another class than Fabric's."""

    def __init__(self):
        self.seen = []

    def log_metrics(self, metrics, step=None):
        self.seen.append((step, metrics))


@pytest.mark.parametrize("kind", [Mine, Duck])
def test_any_logger_gets_every_epoch(tmp_path, kind):
    logger = kind()
    folder = run(CONFIG, tmp_path, progress=False, logger=logger, evaluate=False)
    assert [step for step, _ in logger.seen] == [1, 2, 3]
    for (_, metrics), record in zip(logger.seen, folder.history.records, strict=True):
        assert metrics["loss"] == record.loss
        assert metrics["val_ece"] == record.val_ece
        assert metrics["val_accuracy"] == record.val_accuracy


def test_what_is_no_logger_is_refused_before_training(tmp_path):
    with pytest.raises(InputError, match="a Fabric logger"):
        run(CONFIG, tmp_path, progress=False, logger=object(), evaluate=False)
