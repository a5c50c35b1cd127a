"""What is handed out: the wheel, the version, the papers beside the code."""

from __future__ import annotations

import re
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

import gduq

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    pytest.importorskip("hatchling", reason="needs the dev extra: pip install 'gduq[dev]'")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        about = f"gduq-{gduq.__version__}.dist-info"
        names = set(wheel.namelist())
        metadata = message_from_bytes(wheel.read(f"{about}/METADATA"))
        commands = wheel.read(f"{about}/entry_points.txt").decode()
    assert {name for name in names if not name.startswith(about)} == {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "gduq").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert (metadata["Version"], metadata["Requires-Python"]) == (gduq.__version__, ">=3.10")
    assert "gduq = gduq.cli:main" in commands
    assert f"{about}/licenses/LICENSE" in names


def test_one_version_everywhere():
    assert f"\nversion: {gduq.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{gduq.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_advice_to_install_works_in_a_clone():
    """Nothing is on PyPI under this name; packages are named themselves, in one place."""
    texts = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    assert not [str(path) for path in texts if re.search(r"install .?gduq\[", path.read_text())]
    named = [path.name for path in ROOT.glob("src/**/*.py") if "pip install" in path.read_text()]
    assert sorted(named) == ["catalog.py", "errors.py"]  # the laboratory is in the clone itself
