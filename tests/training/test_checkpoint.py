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
from gduq.training import checkpoint as checkpoint_module
from gduq.training import fit, fitting, loop
from gduq.training.fitting import GraphLearner
from tests.training.cases import Net, graphs, node_view
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
    monkeypatch.setattr(checkpoint_module, "_RARELY", 0)


def die(*args: Any, **options: Any) -> None:
    raise KeyboardInterrupt


MODELS: dict[str, tuple[Callable[[int], nn.Module], Any]] = {
    "plain": (lambda s: gnn(s), graphs(12)),
    "input": (lambda s: anchored("input", seed=s), graphs(12)),
    "gaussian": (lambda s: anchored(1, seed=s, anchors="gaussian"), graphs(12)),
    "frozen": (lambda s: anchored(1, seed=s, freeze=True), graphs(12)),
    "nodes": (lambda s: anchored(1, seed=s, gnn={"task": "node"}), node_view()),
    "ensemble": (lambda s: gduq.Ensemble([gnn(s), gnn(s + 10)]), graphs(12)),
    "dropout": (lambda s: gduq.MCDropout(gnn(s)), graphs(12)),
}


# -- stopped and resumed -------------------------------------------------------------------------

STOPS: dict[str, tuple[Any, str, int]] = {
    "epoch": (loop, "_train_epoch", 3),
    "validation": (GraphLearner, "validate", 3),
    "end": (fitting, "finish_model", 1),
}


@pytest.mark.parametrize(
    ("case", "stop"),
    [
        ("plain", "epoch"),
        ("gaussian", "epoch"),
        ("frozen", "validation"),
        ("nodes", "end"),
        ("dropout", "epoch"),
        *(pytest.param(c, s, marks=pytest.mark.slow) for c in MODELS for s in STOPS),
    ],
)
def test_a_stopped_run_ends_as_the_whole(
    case: str, stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, data = MODELS[case]
    whole = make(0)
    expected = fit(whole, data, data, epochs=4, **OPTIONS)
    owner, name, count = STOPS[stop]
    function, calls = getattr(owner, name), []

    def stopping(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == count:
            raise KeyboardInterrupt
        return function(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stopping)
        with pytest.raises(KeyboardInterrupt):
            fit(make(0), data, data, epochs=4, resume=tmp_path, **OPTIONS)
    resumed = make(1)  # its own weights do not count
    history = fit(resumed, data, data, epochs=4, resume=tmp_path, **OPTIONS)
    assert len(history.members) == len(expected.members)
    if case != "ensemble":  # members that had not begun start from weights of their own
        assert equal(whole, resumed)
        assert history.kept_epoch == expected.kept_epoch
        assert [r.loss for r in history.records] == [r.loss for r in expected.records]


@pytest.mark.parametrize("case", ["plain", "gaussian"])
def test_epochs_may_grow(case: str, tmp_path: Path) -> None:
    make, data = MODELS[case]
    whole, grown = make(0), make(1)
    expected = fit(whole, data, data, epochs=5, **OPTIONS)
    fit(make(0), data, data, epochs=2, resume=tmp_path, **OPTIONS)
    history = fit(grown, data, data, epochs=5, resume=tmp_path, **OPTIONS)
    assert equal(whole, grown)
    assert [r.val_loss for r in history.records] == [r.val_loss for r in expected.records]
    with pytest.raises(InputError, match="epochs >= 5"):
        fit(make(0), data, data, epochs=4, resume=tmp_path, **OPTIONS)


def test_a_finished_run_returns_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in ("plain", "gaussian"):
        make, data = MODELS[case]
        whole, again = make(0), make(1)
        first = fit(whole, data, data, epochs=3, resume=tmp_path / case, **OPTIONS)
        with monkeypatch.context() as patch:
            patch.setattr(loop, "_train_epoch", die)
            second = fit(again, data, data, epochs=3, resume=tmp_path / case, **OPTIONS)
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


def test_calibration_and_novelty_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that was stopped before them, and of one that was finished."""
    options = {**OPTIONS, "calibrate": "shifted"}
    nets = [Net(seed=s) for s in (0, 0, 1, 2)]
    data, val = graphs(12), graphs(24, seed=3)
    fit(nets[0], data, val, epochs=3, **options)
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "finish_model", die)
        with pytest.raises(KeyboardInterrupt):
            fit(nets[1], data, val, epochs=3, resume=tmp_path, **options)
    for net in nets[2:]:
        fit(net, data, val, epochs=3, resume=tmp_path, **options)
    found = [gduq.predict(net, val) for net in (nets[0], *nets[2:])]
    assert found[0].calibrated == "shifted"
    for p in found[1:]:
        assert torch.equal(p.samples, found[0].samples)
        assert torch.equal(p.novelty, found[0].novelty)
        assert p.calibrated == "shifted"


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
