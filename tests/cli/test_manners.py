"""The manners of the program: light help, one sentence for a mistake, completion."""

import subprocess
import sys

from tests.cli.cases import run

COMMANDS = {"train", "predict", "serve", "export", "calibrate", "evaluate", "report",
            "bench", "data", "monitor"}  # fmt: skip


def test_help_of_all_commands_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from gduq.cli import app\n"
        f"for name in {COMMANDS!r}:\n"
        "    assert CliRunner().invoke(app, [name, '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "names = {m.split('.')[0] for m in sys.modules}\n"
        "heavy = 'torch numpy pandas scipy sklearn pyarrow ray matplotlib rich'.split()\n"
        "print(sorted(names & set(heavy)), len(names))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, _, count = done.stdout.strip().rpartition(" ")
    assert heavy == "[]"
    assert int(count) < 250  # top-level packages and modules, Python's own included


def test_a_place_nobody_may_write_to_is_one_sentence(monkeypatch):
    def broken(*_, **__):
        raise PermissionError(13, "Permission denied", "/forbidden/file")

    monkeypatch.setattr("gduq_reproduction.bench.bench", broken)
    result = run("bench", "size-shift", code=2)
    assert result.stderr == "Error: Permission denied: /forbidden/file\n"


def test_ctrl_c_ends_any_command_with_one_line(monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gduq.data.catalog.names", stopped)
    monkeypatch.setattr("gduq_reproduction.bench.bench", stopped)
    assert run("data", "list", code=130).stderr == "Stopped.\n"
    (line,) = run("bench", "size-shift", code=130).stderr.splitlines()
    assert "goes on with the runs that are missing" in line
    assert "goes on from the last checkpoint" in run("train", "my.csv", code=130).stderr
