"""Subjects from run folders."""

from __future__ import annotations

import pytest

from gduq.errors import InputError
from gduq.report import build, subject_from_run, subjects_from_runs
from gduq.runs.config import RunConfig
from gduq.runs.run import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = RunConfig(
        data={"name": "cbas/color/concept"},
        model={"conv": "gcn", "hidden_channels": 8},
        method={"kind": "paper"},
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
    assert subject.predictions["ood_test"].names == subject.splits.class_names
    page = build(subject)
    assert "<dd>cbas/color/concept</dd>" in page
    assert subject.folder == str(folder.path)
    assert "of the truth" in page or "% right" in page
    assert folder.info["versions"]["torch"] in page


def test_a_run_without_its_data(folder, monkeypatch):
    def gone(*_):
        raise InputError("raw files", "none")

    monkeypatch.setattr("gduq.report.subject.data_of", gone)
    subject = subject_from_run(folder)
    assert subject.splits is None


def test_runs_that_differ_in_the_seed_are_one_subject(folder):
    root, config = folder.path.parent, folder.config
    more = {"seed": {"seed": 1}, "wider": {"model.hidden_channels": 9}}
    made = {k: run(config.with_(change), root, progress=False).path
            for k, change in more.items()}  # fmt: skip
    paths = [made["seed"], made["wider"], folder.path]
    several, wider = subjects_from_runs(paths)
    assert several.name == "gcn anchored (paper) (2 seeds)"
    assert [r.config["seed"] for r in several.runs] == [0, 1]
    assert not wider.runs
    values = [run.value("ood_test", "accuracy").value for run in several.runs]
    assert several.value("ood_test", "accuracy").value == pytest.approx(sum(values) / 2)
