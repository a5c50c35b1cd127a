"""Subjects from run folders."""

from __future__ import annotations

import pytest
import torch

from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.prediction import ClassPrediction
from gduq.report import Subject, build, subject_from_run, subjects_from_runs
from gduq.runs.config import RunConfig
from gduq.runs.run import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = RunConfig(
        data={"name": "cbas/color/concept"},
        model={"conv": "gcn", "hidden_channels": 8},
        method={"kind": "anchored", "recipe": "paper"},
        training={"epochs": 2},
    )
    return run(config, tmp_path_factory.mktemp("runs"), progress=False)


@pytest.mark.filterwarnings("ignore")
def test_a_run_becomes_a_subject(folder):
    subject = subject_from_run(folder.path)
    assert subject.name == "gcn anchored (paper)"
    assert subject.name in folder.info["title"]
    assert subject.result.value("ood_test", "ece") == folder.evaluation().value("ood_test", "ece")
    assert set(subject.predictions) == set(folder.predictions())
    assert subject.cost is not None
    assert subject.cost["train_seconds"] > 0
    assert subject.predictions["ood_test"].names == subject.splits.class_names
    page = build(subject)
    assert "<dd>cbas/color/concept</dd>" in page
    assert subject.folder == str(folder.path)
    assert "of the truth" in page or "% right" in page
    assert folder.info["versions"]["torch"] in page


def test_a_run_without_its_data(folder, monkeypatch):
    def gone(*_):
        raise InputError("raw files", "none")

    monkeypatch.setattr("gduq.report.runs.splits_of", gone)
    subject = subject_from_run(folder, name="mine")
    assert subject.splits is None
    assert subject.name == "mine"


def test_runs_that_differ_in_the_seed_are_one_subject(folder):
    root, config = folder.path.parent, folder.config
    more = {"seed": {"seed": 1}, "wider": {"model.hidden_channels": 9}}
    made = {k: run(config.with_(change), root, progress=False).path
            for k, change in more.items()}  # fmt: skip
    paths = [made["seed"], made["wider"], folder.path]
    several, wider = subjects_from_runs(paths, data=False)
    assert several.name == "gcn anchored (paper) (2 seeds)"
    assert [r.config["seed"] for r in several.runs] == [0, 1]
    assert not wider.runs
    values = [run.value("ood_test", "accuracy").value for run in several.runs]
    assert several.value("ood_test", "accuracy").value == pytest.approx(sum(values) / 2)


def test_the_cost_holds_that_of_the_network_below(folder):
    config = folder.config.with_({"method": {"kind": "laplace"}})
    made = run(config, folder.path.parent, progress=False)
    seconds = made.info["seconds"]
    assert seconds["plain"] > 0
    cost = subject_from_run(made, data=False).cost
    assert cost["train_seconds"] == pytest.approx(seconds["train"] + seconds["plain"])


@pytest.mark.filterwarnings("ignore")
def test_a_class_that_validation_rows_lack_costs_no_report(tmp_path):
    logits = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(90) % 3
    val = y[:45] < 2  # no row of class 2
    p = {
        "id_val": ClassPrediction(logits[:45][val], y[:45][val]),
        "id_test": ClassPrediction(logits, y),
    }
    evaluate(p, calibrators=["vector"], resamples=5).to_json(tmp_path / "metrics.json")
    read = Evaluation.from_json(tmp_path / "metrics.json")
    assert "mine + vector" in build(Subject("mine", p, evaluation=read))
