"""What docs/architecture.md says is so, and the examples of how to add things run."""

from __future__ import annotations

import importlib
import re
import runpy
import sys

import pytest

import gduq
from gduq.calibration import METHODS
from gduq.data import catalog
from gduq.prediction import target as targets
from gduq_reproduction import methods, tables
from tests.calibration.battery import CalibratorBattery
from tests.test_house import FILES, ROOT

PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("architecture.md", "extend.md")}
NAMED = sorted(
    {m for page in PAGES.values() for m in re.findall(r"`([\w/]+\.py)::([\w.]+)`", page)}
)
ADD = ROOT / "docs" / "extend"
EXAMPLES = sorted(ADD.glob("*.py"))


# -- what the pages name -------------------------------------------------------------------------


def test_what_is_named_is_there():
    for file, name in NAMED:
        lab = file.startswith("gduq_reproduction/")
        path = ROOT / ("reproduction" if lab else "src/gduq") / file
        assert path.is_file(), f"{file} has moved"
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found = importlib.import_module(module if lab else f"gduq.{module}")
        for part in name.split("."):
            assert hasattr(found, part), f"{file}::{name}"
            found = getattr(found, part)


def test_the_table_has_every_package():
    shown = set(re.findall(r"^\| ([\w.]+) \|", PAGES["architecture.md"], re.MULTILINE))
    tops = {name.split(".")[1] for name in FILES if name.count(".")} - {"__main__"}
    assert tops <= {name.split(".")[0] for name in shown}


def test_other_files_that_are_named_exist():
    for page in PAGES.values():
        for path in re.findall(r"`((?:tests|docs|src|reproduction)/[\w./]+)`", page):
            assert (ROOT / path).exists(), path


def test_the_lines_of_the_walk_run(tmp_path, monkeypatch):
    load = runpy.run_path(str(ADD / "add_dataset.py"))["load_rings"]
    lines = re.search(r"```python\n(.*?)```", PAGES["architecture.md"], re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    splits = load(["rings", "size", "covariate"], None, seed=0, limit=220)
    net = gduq.nn.GNN(3, 8, 2, num_layers=2, head="mlp")
    gduq.fit(net, splits.train, splits.id_val, epochs=2)
    exec(lines, {"gduq": gduq, "net": net, "splits": splits})
    assert "<html" in (tmp_path / "report.html").read_text()
    assert gduq.load(tmp_path / "model")[0].bank.size(0) == 10


# -- how to add things ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_stays():
    """What the examples register is gone after them."""
    known = (METHODS, tables.TABLES, methods.METHODS, targets._KINDS)
    before = [dict(one) for one in known]
    yield
    for one, kept in zip(known, before, strict=True):
        one.clear()
        one.update(kept)
    catalog.families.cache_clear()


def run(name: str) -> dict[str, object]:
    return runpy.run_path(str(ADD / name), run_name="__main__")


def test_every_example_is_short_and_runs_here():
    assert {path.name for path in EXAMPLES} == {
        f"add_{what}.py" for what in ("backbone", "calibrator", "dataset", "table", "target")
    }
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) < 60, path
        assert f"](extend/{path.name})" in PAGES["extend.md"]
        assert path.read_text().rstrip() in PAGES["extend.md"], f"{path.name} has changed"


def test_add_a_backbone():
    made = run("add_backbone.py")
    assert made["p"].num_samples == 10
    assert made["inner"].bank.shape == (4, 16)


def test_add_a_target():
    made = run("add_target.py")
    assert made["model"].target.kind == "counts"
    assert 3 < made["model"].target.mean < 6  # rates from 1 to 8
    assert made["p"].kind == "values"  # so all that is for values works
    found = gduq.evaluate({"id_val": made["p"], "id_test": made["p"]}, resamples=20)
    assert 0.5 < found.value("id_test", "coverage_90").value <= 1
    assert targets.target_from(made["model"].target.spec()) == made["model"].target


def test_add_a_calibrator():
    made = run("add_calibrator.py")
    assert 0.1 < float(made["calibrator"].state()["share"]) < 0.9


class TestEvenBlend(CalibratorBattery):
    """The battery, for the calibrator of the example."""

    kind_of_it = runpy.run_path(str(ADD / "add_calibrator.py"))["EvenBlend"]

    @pytest.fixture(autouse=True)
    def known(self, nothing_stays):
        METHODS["even_blend"] = self.kind_of_it

    def make(self, case):
        return self.kind_of_it()


def test_add_a_dataset(tmp_path, monkeypatch):
    """With the entry point that the page shows, as an installed package has it."""
    group, line = re.search(
        r'\[project\.entry-points\."([\w.]+)"\]\n(.*)\n', PAGES["extend.md"]
    ).groups()
    about = tmp_path / "rings-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rings\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ADD)
    catalog.families.cache_clear()
    made = run("add_dataset.py")
    assert "rings/size/no_shift" in catalog.names()
    sizes = [int(g.num_nodes) for g in made["splits"].train.graphs]
    assert max(sizes) < min(int(g.num_nodes) for g in made["splits"].ood_test.graphs)
    sys.modules.pop("add_dataset")


def test_add_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["add_table.py", str(tmp_path)])
    result = run("add_table.py")["result"]
    assert set(result.figures["method"]) >= {"plain", "anchored head", "three heads"}
    assert (tmp_path / "tables" / "heads-smoke.md").is_file()
