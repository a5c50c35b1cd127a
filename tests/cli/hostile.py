"""What the tests of hostile files share: budgets, odd values, and a run that nobody trained."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import gduq
from gduq._io import write_json
from gduq.prediction import ClassPrediction
from gduq.runs.config import RunConfig
from tests.cli.cases import anchored

MORE = 20  # times as many examples where time is not short: `make test-all`

ODD: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([2**64, 10**30, -1, 0, "\x1b[31m", "\ud800", "a\x00b", "../..", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def budget(examples: int) -> Any:
    """So many examples in `make test`, many more in `make test-all`."""
    search = os.environ.get("HYPOTHESIS_PROFILE") == "search"
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    return settings(
        max_examples=examples * (MORE if search else 1), deadline=None, suppress_health_check=slow
    )


def nested(depth: int) -> str:
    """JSON, or TOML, that is nothing but depth."""
    return "[" * depth + "]" * depth


def changed(raw: bytes, data: st.DataObject) -> bytes:
    """A file with a few bytes changed, cut off, doubled or put in."""
    found = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, max(0, len(found) - 1)))
        how = data.draw(st.sampled_from(("set", "cut", "put", "drop")))
        if how == "set" and found:
            found[where] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del found[where:]
        elif how == "put":
            found[where:where] = data.draw(st.binary(max_size=12))
        else:
            del found[where : where + data.draw(st.integers(1, 8))]
    return bytes(found)


def run_folder(path: Path) -> Path:
    """A finished run, with all files that are read of one."""
    config = RunConfig(
        data={"name": "cbas/color/concept"}, model={"conv": "gcn", "hidden_channels": 8}
    )
    (path / "predictions").mkdir(parents=True)
    write_json(path / "config.json", config.model_dump(mode="json"))
    gduq.save(anchored(), path / "bundle")
    rows, generator = {}, torch.Generator().manual_seed(0)
    for split in ("id_val", "id_test", "ood_test"):
        logits = torch.randn(2, 40, 2, generator=generator)
        p = ClassPrediction(logits, torch.arange(40) % 2)
        p.to_npz(path / "predictions" / f"{split}.npz")
        rows[split] = len(p)
    found = {"seconds": {"train": 1.0, "predict": 0.1}, "parameters": 9, "rows": rows}
    write_json(path / "info.json", {**found, "versions": {"gduq": "0"}, "machine": "mine"})
    history = {"records": [], "kept_epoch": 0, "members": [], "seconds": 0}
    write_json(path / "history.json", history)
    evaluation = gduq.evaluate({"id_test": p}, None, resamples=5)
    evaluation.to_json(path / "metrics.json")
    write_json(path / "finished", {"hash": config.hash})
    return path
