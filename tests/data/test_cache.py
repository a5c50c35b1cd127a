"""The cache: what is kept, found, damaged, killed and built twice at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gduq._io import write_tensors
from gduq.data.cache import (
    cache_path,
    cache_root,
    cached,
    cached_tensors,
)
from gduq.errors import InputError
from gduq.graphs.packed import Packed

KEY = {"name": "some/set", "version": 1, "seed": 0}
EDGES = torch.tensor([[0, 1], [1, 0]])


def make(count=4, start=0):
    return [
        Data(x=torch.full((2 + i % 3, 2), float(i)), edge_index=EDGES, y=i, name=f"g{i}")
        for i in range(start, start + count)
    ]


def never():
    raise AssertionError("built again")


def assert_equal(one: Packed, two: Packed):
    one, two = one.materialise(), two.materialise()
    assert one.tensors.keys() == two.tensors.keys()
    for key, value in one.tensors.items():
        assert torch.equal(value, two.tensors[key]), key
    for a, b in zip(one, two, strict=True):
        assert a.name == b.name
        assert a.num_nodes == b.num_nodes


def test_built_once_and_read_back(tmp_path):
    first = cached(tmp_path, KEY, make)
    again = cached(tmp_path, KEY, never)
    assert_equal(first, Packed.pack(make()))
    assert_equal(again, Packed.pack(make()))
    batch = again.collate(torch.tensor([3, 1]))
    assert batch.name == ["g3", "g1"]


def test_extras_and_a_selection_are_kept(tmp_path):
    packed = Packed.pack(make())
    from dataclasses import replace

    packed = replace(packed, extras={"rows": torch.tensor([1, 2])})
    cached(tmp_path, KEY, lambda: packed[[2, 0]])
    again = cached(tmp_path, KEY, never)
    assert [g.y.item() for g in again] == [2, 0]
    assert again.extras["rows"].tolist() == [1, 2]


def test_every_part_of_the_key_counts(tmp_path):
    cached(tmp_path, KEY, make)
    for change in ({"seed": 1}, {"version": 2}, {"name": "other"}, {"more": None}):
        built = []
        cached(tmp_path, {**KEY, **change}, lambda built=built: built.append(1) or make())
        assert built, change
    with pytest.raises(InputError, match="name and version"):
        cache_path(tmp_path, {"name": "x"})


def test_tensors_of_all_kinds(tmp_path):
    tensors = {
        "flags": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 3),
        "half": torch.ones(3, dtype=torch.float16),
        "bytes": torch.arange(3, dtype=torch.uint8),
        "wide": torch.arange(6).reshape(2, 3).t(),
        "number": torch.tensor(3.5, dtype=torch.float64),
    }
    cached_tensors(tmp_path, KEY, lambda: tensors)
    again = cached_tensors(tmp_path, KEY, never)
    for name, value in tensors.items():
        assert again[name].dtype == value.dtype, name
        assert torch.equal(again[name], value), name
    with pytest.raises(InputError, match="safetensors"):
        cached_tensors(tmp_path, {**KEY, "seed": 9}, lambda: {"c": torch.ones(1).cdouble()})


def test_files_are_plain_safetensors_and_mapped_privately(tmp_path):
    from safetensors.torch import load_file

    packed = cached(tmp_path, KEY, make)
    path = cache_path(tmp_path, KEY)
    assert torch.equal(load_file(path)["data/x"], packed.tensors["x"])
    packed.tensors["x"].zero_()  # a user's change stays in memory
    assert torch.equal(cached(tmp_path, KEY, never).tensors["x"], Packed.pack(make()).tensors["x"])


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "garbage": lambda path: path.write_bytes(b"not a tensor file at all"),
    "empty": lambda path: path.write_bytes(b""),
    "pickle": lambda path: torch.save({"x": torch.ones(3)}, path),
    "other key": lambda path: write_tensors(path, {"x": torch.ones(1)}, {"key": "another"}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_built_again_with_a_warning(tmp_path, damage):
    cached(tmp_path, KEY, make)
    DAMAGES[damage](cache_path(tmp_path, KEY))
    with pytest.warns(UserWarning, match="is damaged"):
        again = cached(tmp_path, KEY, make)
    assert_equal(again, Packed.pack(make()))
    assert_equal(cached(tmp_path, KEY, never), Packed.pack(make()))


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def fail():
        raise RuntimeError("out of ideas")

    with pytest.raises(RuntimeError, match="out of ideas"):
        cached(tmp_path, KEY, fail)
    assert not list((tmp_path / "processed").glob("*.safetensors"))
    assert_equal(cached(tmp_path, KEY, make), Packed.pack(make()))


# -- several processes -----------------------------------------------------------------------------

SCRIPT = """
import sys, time
from pathlib import Path
from tests.data.test_cache import KEY, make
from gduq.data.cache import cached

root, pause = Path(sys.argv[1]), float(sys.argv[2])

def slow():
    with (root / "log").open("a") as file:
        file.write("built\\n")
    time.sleep(pause)
    return make(12)

print(len(cached(root, KEY, slow)), flush=True)
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
    assert not cache_path(tmp_path, KEY).exists()
    assert_equal(cached(tmp_path, KEY, lambda: make(12)), Packed.pack(make(12)))


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
    assert (tmp_path / "b" / "gduq").is_dir()


def test_a_root_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can be written"):
        cached(tmp_path / "file" / "root", KEY, never)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="GDUQ_CACHE"):
        cache_root(tmp_path)
