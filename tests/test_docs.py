"""The docs: the site builds, tutorials and examples run, commands exist, nothing is fetched."""

import os
import pydoc
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gduq
from gduq.calibration import METHODS
from gduq.cli import app
from gduq.data import catalog
from gduq.prediction import target as targets
from gduq_reproduction import methods, tables

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
PAGES = sorted(DOCS.rglob("*.md"))
SHOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
ADD = DOCS / "extend"
EXAMPLES = sorted(ADD.glob("*.py"))


@pytest.mark.slow
def test_every_page_is_built_and_fetches_nothing(tmp_path):
    for module in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason="needs the docs extra: pip install 'gduq[docs]'")
    site, environment = tmp_path / "site", {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(site)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    for page in PAGES:
        assert "<h1" in (site / page.relative_to(DOCS).with_suffix(".html")).read_text()
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=[\"']?(https?:[^\"'> ]*)", text)
        loaded += re.findall(r"<link[^>]*href=[\"']?(https?:[^\"'> ]*)", text)
        assert not [url for url in loaded if "canonical" not in url], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:|@import [\"']?https?:", sheet.read_text()), sheet


@pytest.mark.parametrize("path", [*TUTORIALS, *EXAMPLES], ids=lambda path: path.stem)
def test_files_of_code_are_in_the_pages(path):
    """Word for word, and in the text itself: pages are also read on GitHub, without mkdocs."""
    code = f"```python\n{path.read_text().rstrip()}\n```\n"
    pages = [page for page in PAGES if code in page.read_text()]
    assert len(pages) == 1, f"copy {path.name} into its page anew"
    assert f"]({path.relative_to(DOCS)})" in pages[0].read_text()
    assert path in TUTORIALS or len(path.read_text().splitlines()) < 60


def test_what_the_reference_lists_exists():
    """The same as the build says, without a build: after a move it is seen at once."""
    named = re.findall(r"::: (\S+)", "".join(page.read_text() for page in DOCS.glob("api/*.md")))
    assert len(set(named)) == len(named) > 50
    for name in named:
        assert pydoc.locate(name) is not None, name


def test_names_in_the_text_exist():
    """Of modules, functions and classes, so that a renamed one is seen here."""
    no_names = {"gduq.datasets", "gduq.json"}  # a group of entry points, a file of an export
    for page in [*DOCS.glob("*.md"), *SHOWN]:
        code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", page.read_text(), re.DOTALL))
        for name in set(re.findall(r"(?<![\w/.\"-])gduq(?:\.[A-Za-z_]\w*)+", code)) - no_names:
            assert pydoc.locate(name) is not None, f"{page.name}: {name}"


def headings(page: Path) -> set[str]:
    """The names by which links lead to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = [re.sub(r"[^\w\s-]", "", h) for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[-\s]+", "-", heading.strip().lower()) for heading in found}


def test_links_lead_somewhere():
    for page in [*PAGES, *SHOWN]:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if not link.startswith("https://"):
                path, _, heading = link.partition("#")
                target = page.parent / path if path else page
                assert target.exists(), f"{page.name}: {link}"
                assert not heading or heading in headings(target), f"{page.name}: {link}"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GDUQ_CACHE", str(tmp_path / "cache"))
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_lines_of_the_walk_run(tmp_path, monkeypatch):
    load = runpy.run_path(str(ADD / "add_dataset.py"))["load_rings"]
    lines = re.search(r"```python\n(.*?)```", (DOCS / "architecture.md").read_text(), re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    splits = load(["rings", "size", "covariate"], None, seed=0, limit=220)
    net = gduq.nn.GNN(3, 8, 2, num_layers=2, head="mlp")
    gduq.fit(net, splits.train, splits.id_val, epochs=2)
    exec(lines, {"gduq": gduq, "net": net, "splits": splits})
    assert "<html" in (tmp_path / "report.html").read_text()
    assert gduq.load(tmp_path / "model")[0].bank.size(0) == 10


# -- commands in the text ------------------------------------------------------------------------


@cache
def help_of(*name: str) -> str:
    shown = CliRunner().invoke(app, [*name, "--help"])
    assert shown.exit_code == 0, name
    return shown.output


def test_commands_in_the_text_exist():
    for page in [*PAGES, ROOT / "README.md"]:
        fenced = page.read_text().replace("\\\n", " ").split("```")[1::2]
        lines = [line for block in fenced for line in block.splitlines()]
        for line in (line for line in lines if line.startswith("gduq ")):
            words = line.split("#")[0].split()
            shown = help_of(*(words[1:3] if words[1] == "data" else words[1:2]))
            for word in (word for word in words if word.startswith("-")):
                known = re.search(rf"(^|[ ,]){re.escape(word)}\b", shown, re.MULTILINE)
                assert known, f"{page.name}: {line}"
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        assert f"`gduq {name}" in (DOCS / "cli.md").read_text()


# -- how to add things ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_stays():
    """What the examples register is gone after them."""
    known = (METHODS, tables.TABLES, methods.METHODS)
    before = [dict(one) for one in known]
    yield
    for one, kept in zip(known, before, strict=True):
        one.clear()
        one.update(kept)
    catalog.families.cache_clear()


def run(name: str) -> dict[str, object]:
    return runpy.run_path(str(ADD / name), run_name="__main__")


def test_add_a_backbone():
    made = run("add_backbone.py")
    assert made["p"].num_samples == 10
    assert made["inner"].bank.shape == (4, 16)


def test_add_a_target():
    made = run("add_target.py")
    target, p = made["model"].target, made["p"]
    assert (target.kind, p.kind) == ("counts", "values")  # so all that is for values works
    assert 3 < target.mean < 6  # rates from 1 to 8
    found = gduq.evaluate({"id_val": p, "id_test": p}, resamples=20)
    assert 0.5 < found.value("id_test", "coverage_90").value <= 1
    assert targets.target_from(target.spec()) == target


def test_add_a_calibrator():
    made = run("add_calibrator.py")
    assert 0.1 < float(made["calibrator"].state()["share"]) < 0.9


def test_add_a_dataset(tmp_path, monkeypatch):
    """With the entry point that the page shows, as an installed package has it."""
    page = (DOCS / "extend.md").read_text()
    group, line = re.search(r'\[project\.entry-points\."([\w.]+)"\]\n(.*)\n', page).groups()
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
