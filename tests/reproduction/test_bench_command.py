"""`gduq bench`: tables by name, files, and reports of them."""

import json

import pytest

from gduq.cli import app
from gduq.data import catalog
from gduq.errors import InputError
from gduq_reproduction.bench_result import BenchResult, record, verdicts
from gduq_reproduction.tables import TABLES
from tests.cli.cases import refused, run


def test_all_tables_are_listed():
    rows = json.loads(run("bench", "--json").stdout)
    assert [row["name"] for row in rows] == [*TABLES, "comparison", "molecules"]
    assert "size-shift" in run("bench").stdout


@pytest.fixture
def made(monkeypatch):
    """What the command asked for; the tables themselves are tested elsewhere."""
    key = {"dataset": "d", "variant": "vanilla", "calibrator": "none", "metric": "ece"}
    records = verdicts([record("size-shift", key, [0.1, 0.2], scale="smoke", command="x")])
    asked = []

    def bench(name, scale, root, **options):
        asked.append((name, scale, root, options))
        failures = {"one run": "Traceback: boom"} if scale == "small" else {}
        return BenchResult(name, scale, records, "Title", failures=failures)

    monkeypatch.setattr("gduq_reproduction.bench.bench", bench)
    return asked


def test_options_reach_the_bench_and_the_table_is_written(made, tmp_path):
    out = tmp_path / "table.tex"
    options = ("--engine", "ray", "--workers", 2, "--seeds", 4, "--address", "auto")
    result = run("bench", "size-shift", "--root", tmp_path, *options, "-o", out)
    (name, scale, root, given) = made[0]
    assert (name, scale, root) == ("size-shift", "smoke", tmp_path)
    wanted = {"engine": "ray", "workers": 2, "seeds": 4, "address": "auto", "progress": True}
    assert given == wanted
    assert "vanilla" in result.stdout
    assert "tabular" in out.read_text()


def test_json_for_machines_is_quiet(made):
    found = json.loads(run("bench", "size-shift", "--json").stdout)
    assert found["records"][0]["mean"] == pytest.approx(0.15)
    assert made[0][3]["progress"] is False


def test_failed_runs_have_an_exit_code(made):
    assert "1 run(s) failed" in run("bench", "size-shift", "--scale", "small", code=3).stderr


def test_mistakes_are_one_sentence(tmp_path):
    cases = [
        (("size-shft",), "Did you mean 'size-shift'"),
        (("size-shift", "--scale", "huge", "--root", tmp_path), "smoke, small, paper"),
        (("size-shift", "--engine", "steam", "--root", tmp_path), "local, ray"),
        (("size-shift", "-o", tmp_path / "t.pdf"), ".md, .tex, .json, .csv"),
    ]
    for arguments, says in cases:
        refused("bench", *arguments, says=says)


def test_a_table_that_needs_no_training_and_its_formats(tmp_path):
    root = tmp_path / "bench"
    for ending in ("md", "tex", "csv", "json"):
        options = ("--root", root, "--workers", 0, "-o", tmp_path / f"t.{ending}")
        assert "vanilla" in run("bench", "parameters", *options).stdout
        assert (tmp_path / f"t.{ending}").stat().st_size > 200
    assert (root / "tables" / "parameters-smoke.json").is_file()


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(app, "registered_commands", [])
    assert "./reproduction" in refused("bench", "size-shift")


def test_datasets_of_the_package_are_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(catalog, "entry_points", lambda group: ())
    catalog.families.cache_clear()
    try:
        assert "motif/size/concept" in catalog.names()
        with pytest.raises(InputError, match="reproduction"):
            catalog.load("cora-ml/word/concept")
    finally:
        catalog.families.cache_clear()
