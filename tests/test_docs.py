"""The docs: the site builds, tutorials run, commands exist, nothing is fetched."""

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

from gduq.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
PAGES = sorted(DOCS.rglob("*.md"))
SHOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="needs the docs extra: pip install 'gduq[docs]'")
    pytest.importorskip("mkdocstrings_handlers.python", reason="needs the docs extra")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.mark.slow
def test_every_page_is_built(site):
    for page in PAGES:
        built = site / page.relative_to(DOCS).with_suffix(".html")
        assert built.is_file(), built
        assert "<h1" in built.read_text()


@pytest.mark.slow
def test_nothing_is_fetched_when_a_page_is_read(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=[\"']?(https?:[^\"'> ]*)", text)
        loaded += re.findall(r"<link[^>]*href=[\"']?(https?:[^\"'> ]*)", text)
        assert not [url for url in loaded if "canonical" not in url], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:|@import [\"']?https?:", sheet.read_text()), sheet


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_are_in_the_pages(path):
    """Word for word, and in the text itself: pages are also read on GitHub, without mkdocs."""
    code = f"```python\n{path.read_text().rstrip()}\n```\n"
    pages = [page for page in PAGES if code in page.read_text()]
    assert len(pages) == 1, f"copy {path.name} into its page anew"
    assert f"]({path.relative_to(DOCS)})" in pages[0].read_text()


def test_the_api_pages_name_modules():
    """The same as the build says, without a build: after a move it is seen at once."""
    named = [
        m for page in DOCS.glob("api/*.md") for m in re.findall(r"::: (\S+)", page.read_text())
    ]
    assert len(set(named)) == len(named) > 50
    for module in named:
        path = ROOT / "src" / Path(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module


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


def test_every_command_has_a_place_in_the_docs():
    text = (DOCS / "cli.md").read_text()
    names = [c.name or c.callback.__name__ for c in app.registered_commands] + ["data"]
    for name in names:
        assert f"`gduq {name}" in text
