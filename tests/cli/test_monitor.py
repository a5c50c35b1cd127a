"""``gduq monitor``: files of answers in, an alarm where they are no longer like the training."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

import gduq
from gduq.prediction import ClassPrediction
from tests.cli.cases import refused, run
from tests.serve.cases import model as trained

pytest.importorskip("rdkit")
GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A bundle whose validation rows have novelty, and answers: one in ten is wrong."""
    known = ClassPrediction(
        torch.tensor([[2.0, 0.0]]).repeat(200, 1),
        (torch.arange(200) % 10 == 0).long(),
        novelty=torch.linspace(0, 1, 200),
    )
    folder = tmp_path_factory.mktemp("monitor")
    return gduq.save(trained(), folder / "model", class_names=["small", "Big"], reference=known)


def answers(path, rows, novel=False, wrong=0.1, **more):
    novelty = torch.rand(rows, generator=GENERATOR)
    errors = torch.rand(rows, generator=GENERATOR) < wrong
    columns = {"novelty": 1 - novelty / 50 if novel else novelty, "label": [0] * rows}
    columns |= {"class": ["small"] * rows, "prob_small": [0.9] * rows, "prob_Big": [0.1] * rows}
    columns["truth"] = ["BIG" if error else "small" for error in errors.tolist()]
    frame = pd.DataFrame(columns | more)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path


def test_an_alarm_names_its_row_and_ends_with_3(model, tmp_path):
    old = answers(tmp_path / "old.csv", 150)
    assert "No alarm" in run("monitor", model, old).output
    new = [answers(tmp_path / f"new{end}", 40, True) for end in (".parquet", ".jsonl")]
    picture = tmp_path / "monitor.svg"
    found = run("monitor", model, old, *new, "-o", picture, "--json", code=3).stdout
    [alarm] = json.loads(found)["alarms"]
    rows = json.loads(found)["files"]
    assert [row["rows"] for row in rows] == [150, 40, 40]
    assert [row["above 0.99"] < 0.05 for row in rows] == [True, False, False]
    assert "new.parquet" in alarm
    row, after = (int(alarm.split(f"{name} ")[1].split()[0]) for name in ("row", "after"))
    assert after == 150 + row + 1
    assert "</svg>" in picture.read_text(encoding="utf-8")


def test_errors_are_watched_where_the_truth_is_known(model, tmp_path):
    files = [answers(tmp_path / "old.csv", 150), answers(tmp_path / "bad.csv", 100, wrong=0.5)]
    unknown = pd.read_csv(files[1])
    unknown.loc[:9, "truth"] = ""
    unknown.to_csv(files[1], index=False)
    found = json.loads(run("monitor", model, *files, "--truth", "truth", "--json", code=3).stdout)
    assert [row["known"] for row in found["files"]] == [150, 90]
    [alarm] = found["alarms"]
    assert "errors" in alarm
    assert "bad.csv" in alarm
    run("monitor", model, *files, "--truth", "truth", "--tolerated", 0.6)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"novelty": ["much"] * 9}, ()),
        ({"novelty": [1.5] * 9}, ()),
        ({"node": [0] * 9}, ()),
        ({}, ("--truth", "nothing")),
        ({"truth": ["maybe"] * 9}, ("--truth", "truth")),
        ({}, ("--alpha", 2)),
        ({}, ("-o", "picture.txt")),
    ],
)
def test_what_is_no_stream_is_refused(model, tmp_path, change, options):
    refused("monitor", model, answers(tmp_path / "a.csv", 9, **change), *options)


def test_a_model_without_validation_rows_is_refused(tmp_path):
    path = gduq.save(trained(), tmp_path / "model")
    refused("monitor", path, answers(tmp_path / "a.csv", 9))
