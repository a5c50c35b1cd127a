"""The same items, whatever happens to some of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from gduq.errors import InputError
from gduq.runs.parallel import parallel_map
from tests.runs.parallel_cases import work

ITEMS = [("double", 1), ("raise", "no such luck"), ("double", 2), ("threads", None)]


def check(found):
    assert [o.item for o in found] == ITEMS
    assert [o.value for o in found] == [2, None, 4, 1]
    assert [o.ok for o in found] == [True, False, True, True]
    assert "ValueError: no such luck" in found[1].error
    assert "in work" in found[1].error  # the traceback, not only its last line


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_failures_stay_in_their_items(workers):
    check(parallel_map(work, ITEMS, workers=workers, progress=False))


def test_a_dead_worker_fails_what_was_under_way_only():
    items = [("double", i) for i in range(4)] + [("kill", None)] + [("double", i) for i in range(6)]
    found = parallel_map(work, items, workers=2, progress=False)
    assert not found[4].ok
    assert sum(not o.ok for o in found) <= 4
    assert [o.value for o in found if o.ok] == [
        2 * value for (_, value), o in zip(items, found, strict=True) if o.ok
    ]


def test_functions_of_scripts_and_notebooks_can_be_sent():
    offset = 10
    found = parallel_map(lambda n: n + offset, [1, 2], workers=2, progress=False)
    assert [o.value for o in found] == [11, 12]


def test_without_workers_it_is_done_here():
    assert parallel_map(work, [("pid", None)], workers=0, progress=False)[0].value == os.getpid()
    assert parallel_map(work, [], progress=False) == []


@pytest.mark.parametrize(("engine", "workers"), [("dask", None), ("local", -1), ("local", True)])
def test_bad_input(engine, workers):
    with pytest.raises(InputError):
        parallel_map(work, [1], engine=engine, workers=workers)


SCRIPT = """
    import signal
    from gduq.runs.parallel import parallel_map

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" has it ignored

    def work(seconds):  # a script without a __main__ guard
        import os, time
        os.write(2, f"{os.getpid()}\\n".encode())  # in one piece: two of them write at a time
        time.sleep(seconds)

    parallel_map(work, [60, 60], workers=2, progress=False)
"""


def gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_or_killed_no_worker_stays(tmp_path, how):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    process = subprocess.Popen(
        [sys.executable, str(path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    pids = [int(process.stderr.readline()) for _ in range(2)]
    if how == signal.SIGINT:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to all of them
    else:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
def test_ray_gives_the_same():
    ray = pytest.importorskip("ray")
    check(parallel_map(work, ITEMS, engine="ray", workers=2, progress=False))
    assert not ray.is_initialized()


def test_ray_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="pip install ray"):
        parallel_map(work, [1], engine="ray", progress=False)


def test_a_line_per_item_in_a_pipe(capsys):
    parallel_map(work, [("double", 1), ("raise", "oh")], workers=0)
    out, lines = capsys.readouterr()
    assert out == ""
    assert [line.startswith(f"[{i}/2]") for i, line in enumerate(lines.splitlines(), 1)] == [
        True, True
    ]  # fmt: skip
    assert "FAILED (ValueError: oh)" in lines


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.delenv("CI", raising=False)
    parallel_map(work, [("double", 1), ("raise", "oh")], workers=0, title="many")
    assert "FAILED (ValueError: oh)" in capsys.readouterr().err
