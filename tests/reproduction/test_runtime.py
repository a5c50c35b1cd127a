"""The table of runtimes: what a training of all epochs is said to take, from a few of them."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from gduq.training.history import Epoch, History
from gduq_reproduction import runtime
from gduq_reproduction.tables import TABLES

PLAIN, HEAD, ONCE = 2.0, 5.0, 3.0  # seconds of an epoch, of a head, of what comes once


class Clock:
    """Time passes in `fit` only: for its epochs (the first is slow) and for what it does once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.options: list[dict[str, Any]] = []

    def perf_counter(self) -> float:
        return self.now

    def fit(self, model: nn.Module, train: Any, val: Any, **options: Any) -> History:
        assert val is not None
        self.options.append(options)
        if options["epochs"] is None:  # a head that stops by itself
            self.now += HEAD
            return History()
        seconds = [10 * PLAIN] + [PLAIN] * (options["epochs"] - 1)
        self.now += sum(seconds) + ONCE
        return History(tuple(Epoch(i, 1.0, 1e-3, s, None) for i, s in enumerate(seconds, 1)), 1)


@pytest.mark.parametrize("table", ["node-shift", "graph-shift"])
def test_trainings_are_told_from_a_few_epochs(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(runtime, "fit", clock.fit)
    monkeypatch.setattr(runtime.time, "perf_counter", clock.perf_counter)
    for name in ("_prediction", "_calibration"):
        monkeypatch.setattr(runtime, name, lambda *_: 1.0)
    setting = TABLES[table].smoke[0]
    variants = ("vanilla", "ensemble", "mcdropout", "gduq", "gduq-pretrained", "readout")
    found = {t.variant: t for t in runtime._measured(setting, variants, "smoke")
             if t.calibrator == "none"}  # fmt: skip
    configs = {name: setting.config(name, 0, "smoke") for name in variants}
    epochs = configs["vanilla"].training.epochs
    vanilla = ONCE + epochs * PLAIN
    before = configs["gduq"].training.epochs
    assert before < epochs
    assert {name: t.training for name, t in found.items()} == {
        "vanilla": vanilla,
        "ensemble": 3 * vanilla,
        "mcdropout": vanilla,
        "gduq": ONCE + before * PLAIN + HEAD,
        "gduq-pretrained": HEAD,  # its network was there before
        "readout": vanilla,
    }
    assert found["vanilla"].epoch == PLAIN  # not that of the first
    assert found["ensemble"].epoch == 3 * PLAIN
    assert found["gduq"].epoch == PLAIN
    decay = configs["vanilla"].training.weight_decay
    assert {o["weight_decay"] for o in clock.options} == {decay}
