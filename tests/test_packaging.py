"""What is handed out: the wheel, the version, what editors are told, the papers beside the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from email import message_from_bytes
from importlib import import_module
from pathlib import Path
from zipfile import ZipFile

import pytest

import gduq

ROOT = Path(__file__).parents[1]


def text(name: str) -> str:
    return (ROOT / name).read_text()


# -- the wheel -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="needs the dev extra: pip install 'gduq[dev]'")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with ZipFile(next(folder.glob("*.whl"))) as archive:
        yield archive


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    about = f"gduq-{gduq.__version__}.dist-info/"
    package = {name for name in wheel.namelist() if not name.startswith(about)}
    source = ROOT / "src"
    files = [path for path in (source / "gduq").rglob("*") if path.is_file()]
    assert package == {
        path.relative_to(source).as_posix() for path in files if "__pycache__" not in path.parts
    }
    assert not [name for name in package if Path(name).name.startswith(("test_", "conftest"))]


def test_the_wheel_says_what_it_is(wheel):
    about = f"gduq-{gduq.__version__}.dist-info"
    said = message_from_bytes(wheel.read(f"{about}/METADATA"))
    assert said["Version"] == gduq.__version__
    assert said["Requires-Python"] == ">=3.10"
    assert "gduq = gduq.cli:main" in wheel.read(f"{about}/entry_points.txt").decode()
    assert f"{about}/licenses/LICENSE" in wheel.namelist()


# -- what an editor reads ------------------------------------------------------------------------


def test_editors_find_every_name_where_python_does():
    """Names are imported on first use; editors and type checkers read the block for them."""
    block = next(
        node
        for node in ast.parse(text("src/gduq/__init__.py")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    told = {
        alias.name: node.module.removeprefix("gduq").lstrip(".")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(told) == set(gduq.__all__)
    for name, home in told.items():
        there = import_module(f"gduq.{home}" if home else "gduq")
        assert getattr(gduq, name) is getattr(there, name), name


# -- papers --------------------------------------------------------------------------------------


def test_one_version_everywhere():
    version = gduq.__version__
    assert f"\nversion: {version}\n" in text("CITATION.cff")
    assert f"\n## [{version}]" in text("CHANGELOG.md")


def test_advice_to_install_works_in_a_clone():
    """Nothing is on PyPI under this name; packages are named themselves, in one place."""
    told = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    assert not [str(path) for path in told if re.search(r"install .?gduq\[", path.read_text())]
    named = [path.name for path in ROOT.glob("src/**/*.py") if "pip install" in path.read_text()]
    assert named == ["errors.py"]
