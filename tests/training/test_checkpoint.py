"""Checkpoints: a run that was stopped, killed or damaged ends as if nothing had happened, or says
what is wrong."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.loader import DataLoader

import gduq
from gduq import InputError
from gduq.training import fit, loop
from tests.training.cases import Net, graphs
from tests.training.test_training import anchored, equal, gnn

OPTIONS: dict[str, Any] = {
    "lr": 0.05,
    "batch_size": 5,
    "milestones": [2],
    "calibrate": None,
    "progress": False,
}
FILE = "checkpoint.pt"


@pytest.fixture(autouse=True)
def after_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs are so short here that most would have no checkpoint."""
    monkeypatch.setattr(loop, "_RARELY", 0)


def die(*args: Any, **options: Any) -> None:
    raise KeyboardInterrupt


# -- stopped and resumed -------------------------------------------------------------------------

MODELS: list[Callable[[int], nn.Module]] = [
    lambda seed: gnn(seed),
    lambda seed: anchored(1, seed=seed, anchors="gaussian"),
    lambda seed: gduq.MCDropout(gnn(seed)),
]


@pytest.mark.parametrize("make", MODELS)
def test_epochs_may_grow(make: Callable[[int], nn.Module], tmp_path: Path) -> None:
    data = graphs(12)
    whole, grown = make(0), make(1)
    expected = fit(whole, data, data, epochs=5, **OPTIONS)
    fit(make(0), data, data, epochs=2, resume=tmp_path, **OPTIONS)
    history = fit(grown, data, data, epochs=5, resume=tmp_path, **OPTIONS)
    assert equal(whole, grown)
    assert [r["val_loss"] for r in history.records] == [r["val_loss"] for r in expected.records]
    with pytest.raises(InputError, match="epochs >= 5"):
        fit(make(0), data, data, epochs=4, resume=tmp_path, **OPTIONS)


def test_a_finished_run_returns_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for case, make in enumerate(MODELS):
        data = graphs(12)
        whole, again = make(0), make(1)
        first = fit(whole, data, data, epochs=3, resume=tmp_path / str(case), **OPTIONS)
        with monkeypatch.context() as patch:
            patch.setattr(loop, "_train_epoch", die)
            second = fit(again, data, data, epochs=3, resume=tmp_path / str(case), **OPTIONS)
        assert equal(whole, again)
        assert (second.records, second.kept_epoch) == (first.records, first.kept_epoch)
        assert not again.training


def test_shuffled_loaders_resume(tmp_path: Path) -> None:
    nets = [Net(), Net(seed=1)]

    def loader(seed: int) -> DataLoader:
        own = torch.Generator().manual_seed(seed)
        return DataLoader(graphs(12), 5, shuffle=True, generator=own)

    fit(nets[0], loader(0), epochs=4, **OPTIONS)
    fit(Net(), loader(0), epochs=2, resume=tmp_path, **OPTIONS)
    fit(nets[1], loader(9), epochs=4, resume=tmp_path, **OPTIONS)
    assert equal(*nets)


# -- killed --------------------------------------------------------------------------------------


def run_killed(seed: int, *cases: str) -> None:
    root, script = Path(__file__).parents[2], Path(__file__).with_name("killed_run.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(seed), *cases],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root}{os.pathsep}{root}/src"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(cases)


def test_a_killed_run_ends_as_the_whole() -> None:
    run_killed(0, "hidden")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_run_killed_anywhere_ends_as_the_whole(seed: int) -> None:
    run_killed(seed, "readout", "input", "hidden", "frozen", "loader")


# -- another run's, damaged, hostile -------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 0.01}, "lr=0.05"),
        ({"seed": 1}, "seed=1"),
        ({"milestones": [3]}, "milestones"),
        ({"class_weights": "balanced"}, "weights"),
        ({"calibrate": "clean"}, "calibrate=clean"),
        ({"model": Net(classes=4)}, "model"),
        ({"model": gnn()}, "model=GNN"),
        ({"train": graphs(12)[::-1]}, "train"),
        ({"val": None}, "val=None"),
    ],
)
def test_another_runs_checkpoint(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    base: dict[str, Any] = {"model": Net(), "train": graphs(12), "val": graphs(6), **OPTIONS}
    fit(epochs=1, resume=tmp_path, **base)
    content = (tmp_path / FILE).read_bytes()
    changed = {**base, **changes}
    before = copy.deepcopy(changed["model"])
    with pytest.raises(InputError, match=named):
        fit(epochs=3, resume=tmp_path, **changed)
    assert equal(changed["model"], before)
    assert (tmp_path / FILE).read_bytes() == content


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_a_damaged_checkpoint_is_an_error(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fit(Net(), graphs(6), epochs=1, resume=folder, **OPTIONS)
        path = Path(folder) / FILE
        content = path.read_bytes()
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        with pytest.raises(InputError):
            fit(Net(), graphs(6), epochs=2, resume=folder, **OPTIONS)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.path.join(tempfile.gettempdir(), "gduq-bomb"),)


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    bomb = Path(tempfile.gettempdir()) / "gduq-bomb"
    torch.save({"last": Bomb()}, tmp_path / "torch")
    for content in (pickle.dumps(Bomb()), (tmp_path / "torch").read_bytes()):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(InputError):
            fit(Net(), graphs(6), epochs=1, resume=tmp_path, **OPTIONS)
        assert not bomb.exists()


# -- disks ---------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(loop, "_train_epoch", die)  # it must not come to training
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/gduq")):
        with pytest.raises(InputError):
            fit(Net(), graphs(6), epochs=1, resume=folder, **OPTIONS)


def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, resumed = Net(), Net(seed=1)
    fit(whole, graphs(12), epochs=4, **OPTIONS)
    fsync, calls = os.fsync, []

    def full(file: int) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="No space left"):
            fit(Net(), graphs(12), epochs=4, resume=tmp_path, **OPTIONS)
    assert [p.name for p in tmp_path.iterdir()] == [FILE]
    fit(resumed, graphs(12), epochs=4, resume=tmp_path, **OPTIONS)
    assert equal(whole, resumed)


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    """A first try with a wrong model must not claim the folder."""
    with pytest.raises(InputError):
        fit(Net(classes=2), graphs(12), epochs=1, resume=tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run").exists()
    fit(Net(), graphs(12), epochs=1, resume=tmp_path / "run", **OPTIONS)


# -- tensors -------------------------------------------------------------------------------------
