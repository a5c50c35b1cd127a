"""`gduq data list`, and `gduq train --dry-run`: what would be read, cut and trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gduq.data import names
from tests.cli.cases import refused, run
from tests.cli.tables import table


def test_list_shows_every_name():
    shown = run("data", "list").output
    rows = json.loads(run("data", "list", "--json").output)
    assert [row["name"] for row in rows] == list(names())
    for row in rows:
        assert row["name"] in shown
        assert all(row[k] for k in ("size", "task", "domain", "shift", "source", "target"))


@pytest.mark.parametrize(
    "by", [None, "size", "scaffold", "group=lab", "time=measured on", "random"]
)
def test_a_dry_run_shows_the_cut_that_train_makes(by, tmp_path):
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    path, runs = table(tmp_path / "t.csv", "values"), tmp_path / "runs"
    given = () if by is None else ("--by", by)
    small = ("--set", "model.hidden_channels=4", "--set", "model.num_layers=1")
    quick = ("--method", "vanilla", "--epochs", 1, "-o", runs, *small)
    plan = json.loads(run("train", path, *given, *quick, "--dry-run", "--json").stdout)
    assert not runs.exists()
    done = json.loads(run("train", path, *given, *quick, "--json", code=3).stdout)
    rows = json.loads((Path(done["run"]) / "info.json").read_text())["rows"]
    assert {line.split()[0]: int(line.split()[1]) for line in plan["cut"]} == rows
    assert (plan["targets"], plan["units"], plan["task"]) == (["logS"], ["log mol/L"], "values")
    assert len(plan["rejected"]) == done["rejected"] == 1


def test_a_dry_run_is_read_by_people_too(tmp_path):
    pytest.importorskip("rdkit", reason="needs the molecules extra")
    shown = run("train", table(tmp_path / "t.csv", "values"), "--dry-run", "-o", tmp_path / "r")
    for part in ("cut by scaffold", "task: values", "method: choose", "Left out: t.csv, line"):
        assert part in shown.output
    assert not (tmp_path / "r").exists()
    named = json.loads(run("train", "cbas/color/concept", "--dry-run", "--json").output)
    assert named["task"] == "classes"


def test_mistakes_in_a_dry_run(tmp_path):
    path = table(tmp_path / "t.csv", "values")
    for by, says in (("colour", "--by scaffold, size"), ("time", "--by time=COLUMN")):
        refused("train", path, "--dry-run", "--by", by, says=says)
