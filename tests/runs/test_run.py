"""Runs: once, resumable, and everything again without training."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch

import gduq
from gduq._io import write_json
from gduq.errors import InputError
from gduq.runs.config import RunConfig
from gduq.runs.folder import RunFolder
from gduq.runs.run import run

CONFIG = RunConfig(
    data={"name": "cbas/color/concept"},
    model={"conv": "gcn", "hidden_channels": 8, "dropout": 0.5},
    method={"kind": "plain"},
    training={"epochs": 4, "lr": 3e-3},
    calibrators=("temperature", "vector"),
    resamples=5,
)
LAPLACIAN = "motif-lpe/basis/covariate"
ANCHORED = CONFIG.with_({"method": {"kind": "paper", "num_anchors": 4}})

GRAPHS = RunConfig(
    data={"name": "motif/basis/covariate", "limit": 120},
    model={"conv": "gin", "hidden_channels": 8},
    method={"kind": "plain", "calibrate": "none"},
    training={"epochs": 1},
    calibrators=(),
    resamples=5,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def go(config, root):
    return run(config, root, progress=False)


@pytest.fixture
def no_training(root, monkeypatch):
    go(ANCHORED, root)  # is there, whichever test comes first

    def fit(*args, **options):
        raise AssertionError("trained again")

    monkeypatch.setattr("gduq.runs.run.fit", fit)


def test_what_a_run_leaves(root):
    folder = go(ANCHORED, root)
    assert folder.path == root / ANCHORED.folder_name
    assert folder.config == ANCHORED
    assert (folder.path / "finished").is_file()
    assert not (folder.path / "checkpoint").exists()
    p = folder.predictions()
    assert list(p) == ["train", "id_val", "id_test", "ood_val", "ood_test"]
    assert p["ood_test"].samples.shape == (4, 140, 4)
    assert len(folder.history.records) == 4
    info = folder.info
    assert info["rows"]["ood_test"] == 140
    assert info["parameters"] > 0
    assert info["seconds"]["train"] > 0
    assert info["versions"]["gduq"] == gduq.__version__
    model, _ = gduq.load(folder.bundle)
    view = gduq.data.load("cbas/color/concept").ood_test
    assert torch.equal(gduq.predict(model, view).samples, p["ood_test"].samples)
    found = folder.evaluation()
    assert set(found.table["calibrator"]) == {"none", "temperature", "vector"}
    accuracy = found.value("ood_test", "accuracy").value
    assert accuracy == pytest.approx(gduq.metrics.accuracy(p["ood_test"]))
    scaled = gduq.calibration.VectorScaling().fit(p["id_val"])(p["ood_test"])
    assert found.value("ood_test", "nll", "vector").value == pytest.approx(gduq.metrics.nll(scaled))
    assert str(folder.path) in repr(folder)


def test_asked_again_nothing_is_trained(root, no_training):
    folder = go(ANCHORED.with_({"calibrators": ("spline", "gats", "isotonic")}), root)
    asked = {"temperature", "spline", "gats", "isotonic"}
    assert asked <= set(folder.evaluation().table["calibrator"])
    assert asked | {"dirichlet"} <= set(folder.evaluation(["dirichlet"]).table["calibrator"])
    assert RunFolder(folder.path).config.calibrators[-1] == "dirichlet"
    with pytest.raises(InputError):
        folder.evaluation(["vectors"])


def test_what_is_measured_is_not_measured_again(root):
    folder = go(CONFIG, root)
    before = (folder.path / "metrics.json").stat().st_mtime_ns
    folder.evaluation(["temperature"])
    assert (folder.path / "metrics.json").stat().st_mtime_ns == before


def test_models_made_of_other_runs(root):
    ensemble = go(CONFIG.with_({"method.kind": "ensemble", "seed": 1}), root)
    folders = [go(CONFIG.with_({"seed": s}), root) for s in (1, 2, 3)]
    temperatures = [float(gduq.load(folder.bundle)[0].temperature) for folder in folders]
    said = [folder.predictions()["ood_test"].samples for folder in folders]
    raw = [samples * t for samples, t in zip(said, temperatures, strict=True)]
    model, _ = gduq.load(ensemble.bundle)
    p = ensemble.predictions()["ood_test"]
    torch.testing.assert_close(p.samples * model.temperature, torch.cat(raw))  # calibrated once
    assert p.calibrated == "shifted"
    assert p.novelty is not None
    assert len(ensemble.history.members) == 3


@pytest.mark.parametrize(
    ("method", "found"),
    [
        ({"kind": "head"}, "Anchored(GNN at 'head.first'"),
        ({"kind": "thawed"}, "all of it learns"),
        pytest.param({"kind": "heads"}, "HeadEnsemble", marks=pytest.mark.slow),
        ({"kind": "laplace"}, "LastLayerLaplace"),
        ({"kind": "choose"}, "Stack"),
    ],
)
def test_every_kind_stands_on_the_plain_run(root, method, found):
    folder = go(CONFIG.with_({"method": method}), root)
    assert found in folder.info["model"]
    assert folder.info["seconds"]["plain"] == go(CONFIG, root).info["seconds"]["train"]
    p = folder.predictions()["ood_test"]
    assert p.novelty is not None
    found = folder.evaluation().value("ood_test", "nll").value
    assert found == pytest.approx(gduq.metrics.nll(p))


def test_calibration_can_be_left_to_others(root):
    folder = go(CONFIG.with_({"method": {"kind": "head", "calibrate": "none"}}), root)
    assert {p.calibrated for p in folder.predictions().values()} == {None}
    assert gduq.load(folder.bundle)[0].calibration is None


def test_epochs_on_top_of_a_network(root):
    method = {"kind": "thawed"}
    assert len(go(CONFIG.with_({"method": method}), root).history.records) == 1  # a quarter of 4
    folder = go(CONFIG.with_({"method": {**method, "epochs": 2}}), root)
    assert len(folder.history.records) == 2
    assert folder.info["seconds"]["train"] == pytest.approx(folder.history.seconds)


def test_graph_tasks_with_pna_and_encodings(root):
    model = {"conv": "pna", "hidden_channels": 8, "num_layers": 2, "positional": "laplacian"}
    changes = {"model": model, "calibrators": ("spline", "cagcn"), "data.name": LAPLACIAN}
    folder = go(GRAPHS.with_(changes), root)
    assert folder.predictions()["train"].features is not None
    found = folder.evaluation()
    assert "spline" in set(found.table["calibrator"])
    assert "cagcn" in found.settings["skipped"]  # said, not hidden


def test_folders_that_are_none(root, tmp_path):
    with pytest.raises(InputError):
        RunFolder(tmp_path)
    write_json(tmp_path / "config.json", CONFIG.model_dump(mode="json"))
    with pytest.raises(InputError):
        RunFolder(tmp_path).predictions()
    with pytest.raises(InputError):
        _ = RunFolder(tmp_path).info


KILLED = """
import os, signal, sys, torch
import gduq.training.loop
from gduq.runs.config import RunConfig
from gduq.runs.run import run

def replace(source, target):
    real(source, target)
    names.append(os.path.basename(target))
    if names.count("checkpoint.pt") == 2:
        os.kill(os.getpid(), signal.SIGKILL)

names, real, os.replace = [], os.replace, replace
gduq.training.loop._RARELY = 0  # a checkpoint after every epoch, however short
torch.set_num_threads(1)
run(RunConfig.read(sys.argv[1]), sys.argv[2], progress=False)
"""


def test_killed_in_training_it_goes_on(root, tmp_path):
    config = ANCHORED.with_({"calibrators": ()})
    (tmp_path / "config.json").write_text(config.model_dump_json())
    path = tmp_path / "killed" / config.folder_name
    arguments = [str(tmp_path), str(tmp_path / "killed")]
    process = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert process.returncode == -signal.SIGKILL
    assert not (path / "finished").exists()
    assert list((path / "checkpoint").glob("*.pt"))
    resumed, whole = go(config, tmp_path / "killed"), go(config, root)
    for split, p in whole.predictions().items():
        assert torch.equal(p.samples, resumed.predictions()[split].samples)
    losses = [[r["loss"] for r in folder.history.records] for folder in (resumed, whole)]
    assert losses[0] == losses[1]


def test_a_calibrator_that_cannot_be_fitted_leaves_the_run_as_it_was(root):
    folder = go(GRAPHS, root)
    with pytest.raises(InputError):
        folder.evaluation(["cagcn"])
    assert RunFolder(folder.path).config.calibrators == ()
    assert not folder.evaluation().settings["skipped"]
