"""Bundles on disk: where they may go, and whole through full disks, kills and other readers."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gduq.bundle import load, save
from gduq.errors import BundleError, InputError
from tests.bundle.cases import GRAPH, fitted_calibrators, gnn, in_process, seeded


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor, nn.Module, Tensor]:
    """A saved model and its logits, and another to replace it with."""
    old, new = seeded(gnn, 1).eval(), seeded(gnn, 2).eval()
    path = save(old, tmp_path_factory.mktemp("pair") / "m")
    return path, old(GRAPH), new, new(GRAPH)


def test_a_bundle_is_replaced_and_nothing_of_the_old_stays(tmp_path):
    path = tmp_path / "new" / "m"
    save(seeded(gnn, 1), path, calibrator=fitted_calibrators()["TemperatureScaling"])
    assert len(list(path.iterdir())) == 3
    (path / "notes.txt").write_text("the user's")
    new = seeded(gnn, 2).eval()
    save(new, path)
    assert sorted(p.suffix for p in path.iterdir()) == [".json", ".safetensors", ".txt"]
    assert torch.equal(load(path)[0](GRAPH), new(GRAPH))


def test_overwrite_false_keeps_a_bundle(tmp_path):
    old = seeded(gnn, 1).eval()
    path = save(old, tmp_path / "m", overwrite=False)
    with pytest.raises(InputError, match="overwrite=True"):
        save(seeded(gnn, 2), path, overwrite=False)
    assert torch.equal(load(path)[0](GRAPH), old(GRAPH))


def test_other_peoples_folders_and_files_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(InputError, match="other files"):
        save(gnn(), tmp_path)
    with pytest.raises(InputError, match="the file"):
        save(gnn(), tmp_path / "thesis.tex")
    with pytest.raises(BundleError, match="to write"):
        save(gnn(), tmp_path / "thesis.tex" / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    assert (tmp_path / "thesis.tex").read_text() == "years"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(BundleError, match="Permission denied"):
        save(gnn(), tmp_path / "m")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux' /proc")
def test_a_place_where_even_root_may_not_write():
    with pytest.raises(BundleError, match="to write the bundle /proc/gduq"):
        save(gnn(), "/proc/gduq")


def test_leftovers_of_a_killed_save_go_when_they_are_old(tmp_path):
    path = save(gnn(), tmp_path / "m")
    for name, age in (("weights-00000000.safetensors", 7200), ("weights-11111111.safetensors", 0)):
        (path / name).write_bytes(b"half")
        stat = (path / name).stat()
        os.utime(path / name, (stat.st_atime - age, stat.st_mtime - age))
    save(gnn(), path)
    assert not (path / "weights-00000000.safetensors").exists()
    assert (path / "weights-11111111.safetensors").exists()  # another save may be writing it


# -- full disks and kills ---


def full_disk(monkeypatch: pytest.MonkeyPatch, step: str, at: int) -> list[str]:
    """From the ``at``-th call on, one kind of disk access fails half-way."""
    calls: list[str] = []
    originals = {"fsync": os.fsync, "replace": os.replace}

    def failing(*args: object) -> object:
        calls.append(step)
        if len(calls) >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return originals[step](*args)

    class Wrapped:
        def __init__(self, file: object) -> None:
            self.file = file

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

        def __enter__(self) -> Wrapped:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, raw: bytes) -> int:
            calls.append(step)
            if len(calls) >= at:
                self.file.write(raw[: len(raw) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(raw)

    if step == "write":
        plain = Path.open
        monkeypatch.setattr(Path, "open", lambda p, *a, **k: Wrapped(plain(p, *a, **k)))
    else:
        monkeypatch.setattr(os, step, failing)
    return calls


@pytest.mark.parametrize(
    ("step", "at"), [("write", 1), ("write", 2), *(("fsync", i) for i in (1, 2, 3)), ("replace", 1)]
)
@pytest.mark.parametrize("fresh", [False, True])
def test_a_full_disk_leaves_the_old_bundle(tmp_path, monkeypatch, pair, step, at, fresh):
    source, old, new_model, _ = pair
    path = tmp_path / "m"
    if not fresh:
        shutil.copytree(source, path)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with monkeypatch.context() as patch:
        calls = full_disk(patch, step, at)
        with pytest.raises(BundleError, match="No space left on device"):
            save(new_model, path)
        assert len(calls) >= at
    assert sorted(p.name for p in tmp_path.rglob("*")) == before
    if not fresh:
        assert torch.equal(load(path)[0](GRAPH), old)


def test_a_failing_last_sync_does_not_lose_the_new_bundle(tmp_path, monkeypatch, pair):
    source, _, new_model, new = pair
    path = Path(shutil.copytree(source, tmp_path / "m"))
    with monkeypatch.context() as patch:
        full_disk(patch, "fsync", 4)  # after the new index took its place
        save(new_model, path)
    assert torch.equal(load(path)[0](GRAPH), new)


@pytest.fixture(scope="module")
def interruptions(pair, tmp_path_factory) -> list[list[str]]:
    place = tmp_path_factory.mktemp("interrupted")
    return [line.split() for line in in_process("interrupt", pair[0], place).splitlines()]


@pytest.mark.parametrize("fresh", ["False", "True"])
def test_a_kill_at_any_moment_leaves_old_or_new(interruptions, fresh):
    rows = [tuple(row[3:]) for row in interruptions if row[:2] == ["kill", fresh]]
    before = "none" if fresh == "True" else "old"
    assert set(rows) == {("killed", before), ("killed", "new"), ("done", "new")}
    assert rows[-1] == ("done", "new")  # so no access was left out
    assert rows == sorted(rows, key=[("killed", before), ("killed", "new"), ("done", "new")].index)


@pytest.mark.parametrize("fresh", ["False", "True"])
@pytest.mark.parametrize("mode", ["full", "limit"])
def test_a_failure_at_any_access_leaves_old_or_new(interruptions, mode, fresh):
    rows = {tuple(row[3:]) for row in interruptions if row[:2] == [mode, fresh]}
    before = "none" if fresh == "True" else "old"
    assert ("refused", before) in rows
    assert rows <= {("refused", before), ("done", "new")}


def test_reading_while_somebody_saves(tmp_path, pair):
    source, old, new_model, new = pair
    path = Path(shutil.copytree(source, tmp_path / "m"))
    old_model, stop, trouble = load(source)[0], threading.Event(), []

    def keep_saving() -> None:
        try:
            for i in range(60):
                save(new_model if i % 2 == 0 else old_model, path)
        except Exception as error:  # shown by the assertion below
            trouble.append(error)
        stop.set()

    saver = threading.Thread(target=keep_saving)
    saver.start()
    seen = set()
    while not stop.is_set():
        found = load(path)[0](GRAPH)
        seen.add("old" if torch.equal(found, old) else "new")
        assert torch.equal(found, old) or torch.equal(found, new)
    saver.join()
    assert not trouble
    assert seen == {"old", "new"}
