"""The cache: what is kept, found, damaged, killed and built twice at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gduq.data.cache import cache_root, cached_tensors
from gduq.errors import InputError

KEY = {"name": "some/set", "version": 1, "seed": 0}


def make(count=4):
    return {"x": torch.arange(float(count)), "name": torch.arange(count, dtype=torch.uint8)}


def never():
    raise AssertionError("built again")


def cached(root, build, **changes):
    return cached_tensors(build, root, **{**KEY, **changes})


def assert_equal(one, two):
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert all(one[key].dtype == two[key].dtype for key in one)


def test_built_once_and_read_back(tmp_path):
    wide = {"wide": torch.arange(6).reshape(2, 3).t(), "empty": torch.zeros(0, 3)}
    tensors = {**make(), **wide, "flags": torch.tensor([True, False]), "one": torch.tensor(3.5)}
    assert_equal(cached(tmp_path, lambda: tensors), tensors)
    again = cached(tmp_path, never)
    assert_equal(again, tensors)
    again["x"].zero_()  # a user's change stays in memory
    assert_equal(cached(tmp_path, never), tensors)
    for change in ({"seed": 1}, {"version": 2}, {"name": "other"}, {"more": None}):
        assert_equal(cached(tmp_path, make, **change), make())


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "garbage": lambda path: path.write_bytes(b"not a tensor file at all"),
    "empty": lambda path: path.write_bytes(b""),
    "pickle": lambda path: torch.save({"x": torch.ones(3)}, path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_built_again_with_a_warning(tmp_path, damage):
    cached(tmp_path, make)
    (path,) = (tmp_path / "processed").glob("*.safetensors")
    DAMAGES[damage](path)
    with pytest.warns(UserWarning, match="is damaged"):
        assert_equal(cached(tmp_path, make), make())
    assert_equal(cached(tmp_path, never), make())


# -- several processes -----------------------------------------------------------------------------

SCRIPT = """
import sys, time
from pathlib import Path
from tests.data.test_cache import cached, make

root, pause = Path(sys.argv[1]), float(sys.argv[2])

def slow():
    with (root / "log").open("a") as file:
        file.write("built\\n")
    time.sleep(pause)
    return make(12)

print(len(cached(root, slow)["x"]), flush=True)
"""


def start(root: Path, pause: float) -> subprocess.Popen:
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", SCRIPT, str(root), str(pause)]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def test_a_build_that_was_killed_is_made_again_by_the_next(tmp_path):
    """The lock of a killed process is free, and half a set is never visible."""
    process = start(tmp_path, pause=60.0)
    while not (tmp_path / "log").exists():
        assert process.poll() is None, "the builder ended early"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not list((tmp_path / "processed").glob("*.safetensors"))
    assert_equal(cached(tmp_path, lambda: make(12)), make(12))


@pytest.mark.slow
def test_two_processes_build_one_set(tmp_path):
    processes = [start(tmp_path, pause=0.5) for _ in range(2)]
    assert [p.communicate()[0].strip() for p in processes] == ["12", "12"]
    assert (tmp_path / "log").read_text().split() == ["built"]


# -- folders ---------------------------------------------------------------------------------------


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("GDUQ_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_root() == tmp_path / "a"
    assert cache_root(tmp_path / "c") == tmp_path / "c"
    monkeypatch.delenv("GDUQ_CACHE")
    assert cache_root() == tmp_path / "b" / "gduq"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        cache_root(tmp_path / "file" / "root")
