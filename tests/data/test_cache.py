"""The cache: what is kept, found, damaged, killed and built twice at once."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gduq.data import cache
from gduq.data.cache import (
    cache_path,
    cache_root,
    cached,
    cached_shards,
    cached_tensors,
    digest,
)
from gduq.data.packed import Packed
from gduq.data.parallel import progress_bar
from gduq.errors import InputError
from gduq.tensorfile import write

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
    with pytest.raises(InputError, match="dtype"):
        cached_tensors(tmp_path, {**KEY, "seed": 9}, lambda: {"c": torch.ones(1).cdouble()})


def test_files_are_plain_safetensors_and_mapped_privately(tmp_path):
    from safetensors.torch import load_file

    packed = cached(tmp_path, KEY, make)
    path = cache_path(tmp_path, KEY)
    assert torch.equal(load_file(path)["data/x"], packed.tensors["x"])
    packed.tensors["x"].zero_()  # a user's change stays in memory
    assert torch.equal(cached(tmp_path, KEY, never).tensors["x"], Packed.pack(make()).tensors["x"])


def damage_truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def damage_flip(path):
    """One bit, as a disk does it: size and time stay."""
    before, raw = path.stat(), bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(bytes(raw))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def damage_garbage(path):
    path.write_bytes(b"not a tensor file at all")


def damage_empty(path):
    path.write_bytes(b"")


def damage_pickle(path):
    torch.save({"x": torch.ones(3)}, path)


def damage_other_key(path):
    write(path, {"x": torch.ones(1)}, {"key": "another"})


@pytest.mark.parametrize(
    "damage",
    [
        damage_truncate,
        damage_flip,
        damage_garbage,
        damage_empty,
        damage_pickle,
        damage_other_key,
    ],
)
def test_a_damaged_file_is_built_again_with_a_warning(tmp_path, damage):
    cached(tmp_path, KEY, make)
    damage(cache_path(tmp_path, KEY))
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


# -- shards ----------------------------------------------------------------------------------------


def part(log: Path, i: int):
    with log.open("a") as file:
        file.write(f"{i}\n")
    return make(3, start=3 * i)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_shards_join_in_order_and_are_built_once(tmp_path, workers):
    log = tmp_path / "log"
    packed = cached_shards(tmp_path, KEY, 4, partial(part, log), workers=workers)
    assert_equal(packed, Packed.pack(make(12)))
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3"]
    again = cached_shards(tmp_path, KEY, 4, never)
    assert_equal(again, Packed.pack(make(12)))
    assert not list((tmp_path / "processed").glob("*parts*"))


def test_a_bar_that_is_asked_for(capsys):
    with progress_bar("parts", 2, show=True) as advance:
        advance()
    assert not capsys.readouterr().out  # it is drawn on standard error


def edgeless(i: int):
    edges = torch.zeros(2, 0).long() if i == 0 else EDGES
    return [Data(x=torch.ones(2, 1), edge_index=edges, y=i, name="")]


def test_shards_without_edges_join(tmp_path):
    packed = cached_shards(tmp_path, KEY, 2, edgeless, workers=1)
    assert [g.num_edges for g in packed] == [0, 2]


def test_shards_carry_extras(tmp_path):
    def build(i):
        from dataclasses import replace

        return replace(Packed.pack(make(2, start=2 * i)), extras={"size": torch.tensor([i, i])})

    packed = cached_shards(tmp_path, KEY, 2, build, workers=1)
    assert packed.extras["size"].tolist() == [0, 0, 1, 1]


def test_finished_shards_survive_a_failure(tmp_path):
    log = tmp_path / "log"

    def fails_late(i):
        if i == 2:
            raise RuntimeError("power cut")
        return part(log, i)

    with pytest.raises(RuntimeError, match="power cut"):
        cached_shards(tmp_path, KEY, 4, fails_late, workers=1)
    assert not cache_path(tmp_path, KEY).exists()
    packed = cached_shards(tmp_path, KEY, 4, partial(part, log), workers=1)
    assert log.read_text().split() == ["0", "1", "2", "3"]
    assert_equal(packed, Packed.pack(make(12)))


def test_a_damaged_shard_is_built_again(tmp_path):
    log = tmp_path / "log"

    def fails_late(i):
        if i == 1:
            raise RuntimeError("power cut")
        return part(log, i)

    with pytest.raises(RuntimeError):
        cached_shards(tmp_path, KEY, 2, fails_late, workers=1)
    (shard,) = (tmp_path / "processed").glob("*parts/00000.safetensors")
    damage_flip(shard)
    with pytest.warns(UserWarning, match="is damaged"):
        packed = cached_shards(tmp_path, KEY, 2, partial(part, log), workers=1)
    assert_equal(packed, Packed.pack(make(6)))


SCRIPT = """
import sys, time
from functools import partial
from pathlib import Path
from tests.data.test_cache import KEY, part
from gduq.data.cache import cached_shards

root, pause = Path(sys.argv[1]), float(sys.argv[2])

def slow(i):
    out = part(root / "log", i)
    time.sleep(pause)
    return out

print(len(cached_shards(root, KEY, 4, slow, workers=1)), flush=True)
"""


def start(root: Path, pause: float) -> subprocess.Popen:
    script = root / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    here = Path(__file__).parents[2]
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, str(script), str(root), str(pause)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, lines: int, process: subprocess.Popen) -> None:
    for _ in range(1200):
        if path.exists() and len(path.read_text().split()) >= lines:
            return
        assert process.poll() is None, "the builder ended early"
        time.sleep(0.05)
    pytest.fail("the builder did nothing for a minute")


def test_a_kill_in_the_middle_of_a_build(tmp_path):
    """The next call goes on where the killed one stopped and never sees a half set."""
    process = start(tmp_path, pause=30.0)
    wait_for(tmp_path / "log", 1, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    stale = tmp_path / "processed" / f".{cache_path(tmp_path, KEY).name}.{process.pid}-dead.tmp"
    stale.write_bytes(b"half a file")  # as a kill during the last write would leave it
    os.utime(stale, (time.time() - 120,) * 2)
    assert not cache_path(tmp_path, KEY).exists()
    packed = cached_shards(tmp_path, KEY, 4, partial(part, tmp_path / "log"), workers=1)
    assert_equal(packed, Packed.pack(make(12)))
    assert not stale.exists()


def test_two_processes_build_one_set(tmp_path):
    processes = [start(tmp_path, pause=0.2) for _ in range(2)]
    assert [p.communicate()[0].strip() for p in processes] == ["12", "12"]
    assert_equal(cached_shards(tmp_path, KEY, 4, never), Packed.pack(make(12)))
    if sys.platform != "win32":  # with file locks the second one waits
        assert sorted((tmp_path / "log").read_text().split()) == ["0", "1", "2", "3"]


def test_two_builders_without_locks_do_no_harm(tmp_path, monkeypatch):
    """As on a file system without locks: both build, the later rename wins, both read."""
    monkeypatch.setattr(cache, "locked", lambda path: contextlib.nullcontext())

    def build_while_another_builds():
        cached(tmp_path, KEY, make)
        return make()

    assert_equal(cached(tmp_path, KEY, build_while_another_builds), Packed.pack(make()))
    assert_equal(cached(tmp_path, KEY, never), Packed.pack(make()))


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


def test_digest_depends_on_content_and_order(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("1")
    b.write_text("2")
    assert digest([a, b]) != digest([b, a])
    before = digest([a])
    a.write_text("3")
    assert digest([a]) != before


# -- two builders where locks do not work ----------------------------------------------------------


def plain_part(i):
    return make()[i : i + 1]


def test_a_builder_whose_parts_are_cleared_away_takes_the_finished_file(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "locked", lambda path: contextlib.nullcontext())
    once = []

    def part(i):
        if i == 1 and not once:  # another process builds all of it meanwhile
            once.append(1)
            cached_shards(tmp_path, KEY, 3, plain_part, workers=1)
        return plain_part(i)

    found = cached_shards(tmp_path, KEY, 3, part, workers=1)
    assert once
    assert torch.equal(found.tensors["x"], Packed.pack(make()[:3]).tensors["x"])


def test_only_stale_temporaries_are_cleared_away(tmp_path):
    path = cache_path(tmp_path, KEY)
    path.parent.mkdir(parents=True)
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    dead, mine = done.stdout.decode().strip(), os.getpid()
    old = {f"{dead}-aa": 120, f"{dead}-bb": 0, f"{mine}-cc": 120, f"{mine}-dd": 90000}
    for name, age in old.items():
        file = path.with_name(f".{path.name}.{name}.tmp")
        file.write_text("half")
        os.utime(file, (time.time() - age,) * 2)
    cached(tmp_path, KEY, make)
    left = sorted(file.name.split(".")[-2] for file in path.parent.glob(".*.tmp"))
    assert left == sorted([f"{dead}-bb", f"{mine}-cc"])
