"""Engines: the same cells, whatever happens to some of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from gduq.errors import InputError
from gduq.jobs import live
from gduq.jobs.engines import map_cells
from tests.jobs.cases import work

CELLS = [
    ("double", 1),
    ("raise", "no such luck"),
    ("exit", 3),
    ("double", 2),
    ("kill", None),
    ("unsendable", None),
    ("threads", None),
    ("double", 3),
]


def check(found):
    assert [o.cell for o in found] == CELLS
    assert [o.value for o in found] == [2, None, None, 4, None, None, 1, 6]
    assert [o.ok for o in found] == [o.error is None for o in found]
    assert "ValueError: no such luck" in found[1].error
    assert "in work" in found[1].error  # the traceback, not only its last line


def test_failures_stay_in_their_cells():
    found = map_cells(CELLS, work, workers=2, progress=False)
    check(found)
    assert found[2].error == "The worker died: EXIT(3)."
    assert "SIGKILL" in found[4].error
    assert "cannot be sent" in found[5].error


def test_functions_of_scripts_and_notebooks_can_be_sent():
    offset = 10
    found = map_cells([1, 2], lambda n: n + offset, workers=1, progress=False)
    assert [o.value for o in found] == [11, 12]


def test_here_and_in_processes_are_the_same():
    cells = [("double", 5), ("raise", "x"), ("pid", None)]
    here = map_cells(cells, work, workers=0, progress=False)
    assert here[0].value == 10
    assert "ValueError: x" in here[1].error
    assert here[2].value == os.getpid()


def test_no_cells():
    assert map_cells([], work, progress=False) == []


@pytest.fixture(params=[0, 2, pytest.param("ray", marks=pytest.mark.slow)])
def options(request):
    """An engine: here, in two processes, on a Ray of two workers."""
    if request.param == "ray":
        request.getfixturevalue("ray_of_two")
        return {"engine": "ray", "workers": 2}
    return {"workers": request.param}


def test_cells_wait_for_those_they_need(options):
    cells = [("stamp", 0), ("stamp", 0), ("stamp", 0.3), ("raise", "x"), ("stamp", 0)]
    needs = [[2, 4], [3], [], [], [2]]
    found = map_cells(cells, work, **options, progress=False, needs=needs)
    assert [o.ok for o in found] == [True, True, True, False, True]  # also after a failure
    times = {i: o.value for i, o in enumerate(found) if o.ok}
    for i, before in [(0, 2), (0, 4), (4, 2)]:
        assert times[i][0] >= times[before][1]


def test_needs_that_cannot_be_met():
    for needs in ([[1], [0]], [[2], []], [[0], []], [[]]):
        with pytest.raises(InputError, match=r"needs|circle"):
            map_cells([1, 2], work, workers=0, progress=False, needs=needs)


@pytest.mark.parametrize(("engine", "workers"), [("dask", None), ("local", -1), ("local", True)])
def test_bad_input(engine, workers):
    with pytest.raises(InputError):
        map_cells([1], work, engine=engine, workers=workers)


SCRIPT = """
    import signal
    from gduq.jobs.engines import map_cells

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" has it ignored

    def work(seconds):  # a script without a __main__ guard
        import os, time
        os.write(2, f"{os.getpid()}\\n".encode())  # in one piece: two of them write at a time
        time.sleep(seconds)

    map_cells([60, 60], work, workers=2, progress=False)
"""


def start_script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    process = subprocess.Popen(
        [sys.executable, str(path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    pids = [int(process.stderr.readline()) for _ in range(2)]
    return process, pids


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
    process, pids = start_script(tmp_path)
    if how == signal.SIGINT:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to all of them
    else:
        os.kill(process.pid, signal.SIGKILL)
    _, rest = process.communicate(timeout=60)
    assert process.returncode != 0
    assert all(gone(pid) for pid in pids)
    if how == signal.SIGINT:
        assert rest.strip().endswith("KeyboardInterrupt")
        assert rest.count("Traceback") == 1  # ours; the workers end in silence


@pytest.mark.slow
def test_ray_gives_the_same(ray_of_two):
    check(map_cells(CELLS, work, engine="ray", workers=2, progress=False))
    assert ray_of_two.is_initialized()  # a cluster that was connected before stays so


OWN_RAY = """
    import ray
    from gduq.jobs.engines import map_cells

    found = map_cells([1, 2, 3], lambda n: 10 * n, engine="ray", workers=2, progress=False)
    print([o.value for o in found], ray.is_initialized())
"""


@pytest.mark.slow
def test_a_local_ray_is_started_and_stopped(tmp_path):
    pytest.importorskip("ray")
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(OWN_RAY))
    for _ in range(3):  # a busy machine may need more than the 30 seconds that Ray takes
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
        if "a local Ray that starts" not in done.stderr:
            break
    assert done.stdout.splitlines()[-1:] == ["[10, 20, 30] False"], done.stderr


def test_ray_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install ray"):
        map_cells([1], work, engine="ray", progress=False)


def test_lines_in_a_pipe(capsys):
    map_cells([("double", 1), ("raise", "oh")], work, workers=0)
    shown = capsys.readouterr()
    assert shown.out == ""
    first, second = shown.err.splitlines()
    assert first == "[1/2] ('double', 1): done"
    assert second == "[2/2] ('raise', 'oh'): FAILED (ValueError: oh)"
    map_cells([("double", 1)], work, workers=0, progress=False)
    assert capsys.readouterr() == ("", "")


def on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)


def test_news_of_running_cells_reaches_the_live_view(options, monkeypatch, capsys, tmp_path):
    on_a_terminal(monkeypatch)
    summary = live._Live._summary

    def look(self):
        for file in self._news.iterdir():
            if text := file.read_text():
                (tmp_path / "heard").write_text(text)  # the cell ends when it is seen
        return summary(self)

    monkeypatch.setattr(live._Live, "_summary", look)
    cells = [("raise", "x"), ("tell", str(tmp_path / "heard"))]
    map_cells(cells, work, **options, title="many", folder=tmp_path)
    assert (tmp_path / "heard").read_text() == "epoch 1/2  loss 0.500"
    shown = capsys.readouterr().err
    assert "many" in shown
    assert "1/2 done, 0 running, 1 failed" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["heard"]  # no news is left


def test_the_live_view_names_what_runs_and_what_it_tells(monkeypatch, capsys):
    on_a_terminal(monkeypatch)
    with live.watching("cells", ["alpha", "beta", "gamma"], True) as watch:
        for i, text in enumerate(["epoch 9/9", "epoch 3/50  loss 0.500"]):
            watch.started(i).write_text(text)
        watch.ended(0, None)
        capsys.readouterr()
        watch._bars.refresh()
        shown = capsys.readouterr().err
    assert "1/3 done, 1 running, 0 failed, 0:00:00 left" in shown
    assert "beta" in shown
    assert "epoch 3/50  loss 0.500" in shown
    assert not {"alpha", "gamma", "epoch 9/9"} & set(shown.split("  "))


def test_news_is_for_terminals_only(monkeypatch, capsys):
    on_a_terminal(monkeypatch)
    cells = [("tell", None)]
    map_cells(cells, work, workers=0, progress=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("CI", "1")
    map_cells(cells, work, workers=0)
    assert capsys.readouterr().err == "[1/1] ('tell', None): done\n"
