"""A stored config never has code run: not that of another module, not that beside it."""

import json
import shutil
import sys

import pytest

from gduq.errors import InputError
from gduq.runs.config import RunConfig
from gduq.runs.folder import RunFolder
from tests.cli.cases import refused, run

MODULE = """
from pathlib import Path
from tests.cli.cases import rings
Path(__file__).with_name("ran").touch()
def graphs():
    return rings(160)
"""
OPTIONS = ("--method", "plain", "--epochs", 1, "--set", "model.hidden_channels=8")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on a Python object that its user named."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        (folder / "mine.py").write_text(MODULE)
        run("train", "mine:graphs", *OPTIONS, "--root", "runs", "--json")
        (found,) = (folder / "runs").glob("mine-*")
        run("report", found, "-o", "r.html")  # in the process that named it
        (folder / "r.html").unlink()
    return found


@pytest.fixture
def trained(made, tmp_path, monkeypatch):
    """The same run in a new process; an import of its module leaves a file ``ran``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    forget(monkeypatch, "mine")
    (tmp_path / "mine.py").write_text(MODULE)
    shutil.copytree(made, tmp_path / "runs" / made.name)
    return tmp_path / "runs" / made.name


def forget(monkeypatch, module):
    """As a new process would be."""
    from gduq.data import source

    monkeypatch.setattr(source, "_named", set())
    for kept in vars(source).values():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()
    sys.modules.pop(module, None)


def test_a_stored_object_is_not_imported(trained, tmp_path):
    for words in (
        ("report", trained, "-o", "r.html"),
        ("report", "runs", "-o", "r.html"),
        ("evaluate", trained),
        ("calibrate", trained),
        ("train", trained, "--set", "seed=1"),
    ):
        assert "mine:graphs" in refused(*words, says="--trust-source")
    with pytest.raises(InputError):
        _ = RunFolder(trained).config
    (tmp_path / "own.toml").write_text('[data]\nsource = "mine:graphs"\n')
    refused("train", "own.toml", *OPTIONS, says="--trust-source")
    assert not (tmp_path / "ran").exists()
    run("report", trained, "-o", "r.html", "--trust-source")
    assert (tmp_path / "ran").exists()


def test_a_config_is_trusted_when_told_so(trained, tmp_path):
    (tmp_path / "own.toml").write_text('[data]\nsource = "mine:graphs"\n')
    assert RunConfig.read(tmp_path / "own.toml", trust_source=True).data.is_object
    assert RunFolder(trained).config.data.is_object  # the same name, which is now trusted


@pytest.mark.parametrize(
    ("at", "source"),
    [("", "evil:graphs"), ("..", "inner.evil:graphs"), ("../..", "runs.inner.evil:graphs")],
)
def test_nothing_in_the_run_folder_is_imported(trained, tmp_path, monkeypatch, at, source):
    folder = trained.rename(tmp_path / "runs" / "inner")
    for name in ("evil.py", "__init__.py"):
        (folder / name).write_text(MODULE)
    config = json.loads((folder / "config.json").read_text())
    config["data"]["source"] = source
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(folder / at)
    refused("report", folder, "-o", tmp_path / "r.html", "--trust-source", says="outside")
    assert not (folder / "ran").exists()
