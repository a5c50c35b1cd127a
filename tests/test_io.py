"""Files on disk: whole or not at all, JSON that any program reads, one process at a time."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

from gduq._io import atomic_path, locked, to_json, write_json, write_text


def test_the_old_file_stays_when_a_write_fails(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"y": (1, 2)})
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    with suppress(ZeroDivisionError), atomic_path(path) as temporary:
        temporary.write_text(f"half {1 / 0}")
    assert json.loads(path.read_text()) == {"y": [1, 2]}
    assert os.listdir(tmp_path) == ["a.json"]


def test_json_of_numbers_that_json_has_not():
    content = {1: [np.float32("nan"), float("-inf")], "n": np.int64(3)}
    assert json.loads(to_json(content)) == {"1": [None, None], "n": 3}
    assert json.loads(to_json(content, infinite=str))["1"] == [None, "-inf"]


def test_a_lock_keeps_others_waiting(tmp_path):
    code = (
        "import sys; from pathlib import Path; from gduq._io import locked\n"
        "print('ready', flush=True)\n"
        "with locked(Path(sys.argv[1])): print('in', flush=True)"
    )
    with locked(tmp_path / "run"):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
    assert process.communicate(timeout=60)[0] == "in\n"


def test_what_killed_writes_left_is_deleted_and_nothing_else(tmp_path):
    path, old = tmp_path / "answers.csv", time.time() - 100_000
    left, mine = tmp_path / ".answers.csv.4-ab12cd34.tmp", tmp_path / ".answers.csv.mine.tmp"
    for file in (left, mine):
        file.write_text("half")
        os.utime(file, (old, old))
    write_text(path, "complete")
    assert not left.exists()
    assert mine.exists(), "a file of the user's"
