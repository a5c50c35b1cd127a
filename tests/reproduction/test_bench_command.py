"""`gduq bench`: tables by name, files, and reports of them."""

import json

import pytest

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


def test_a_table_that_needs_no_training_and_its_reports(tmp_path):
    root = tmp_path / "bench"
    text = run("bench", "parameters", "--root", root, "--workers", 0).stdout
    assert "vanilla" in text
    table = root / "tables" / "parameters-smoke.json"
    for ending in ("md", "tex", "csv", "json"):
        run("report", table, "-o", tmp_path / f"t.{ending}")
        assert (tmp_path / f"t.{ending}").stat().st_size > 200
    page = run("report", table, "-o", tmp_path / "t.html", code=2)
    assert "a table made of runs" in page.stderr


@pytest.mark.slow
def test_a_table_of_runs_has_a_page(tmp_path, monkeypatch):
    monkeypatch.setenv("GDUQ_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "bench"
    run("bench", "node-shift", "--root", root, "--seeds", 1, "--workers", 0)
    out = tmp_path / "page.html"
    done = json.loads(
        run("report", root / "tables" / "node-shift-smoke.json", "-o", out, "--json").stdout
    )
    assert 3 <= len(done["runs"]) <= 8
    assert "<h1>" in out.read_text()
