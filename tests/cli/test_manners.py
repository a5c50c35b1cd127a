"""The manners of the program: light help, one sentence for a mistake, completion."""

import os
import re
import subprocess
import sys

import pytest

from gduq import __version__
from tests.cli.cases import run

COMMANDS = {"demo", "train", "predict", "serve", "export", "calibrate", "evaluate", "report",
            "bench", "data"}  # fmt: skip


def test_every_command_of_the_design_is_there():
    text = run("--help").stdout
    lines = re.findall(r"^  (\w+)", text.split("Commands:")[1], re.MULTILINE)
    assert set(lines) >= COMMANDS
    assert "Exit codes" in text


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


def test_version():
    assert run("--version").stdout.strip() == __version__


def to_params(*words, shell="bash"):
    """What a shell would offer for the last word; nothing heavy is imported for it."""
    line = " ".join(["gduq", *words])
    environment = {**os.environ, "_GDUQ_COMPLETE": f"complete_{shell}"}
    environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    environment |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code = (
        "import sys; sys.argv[0] = 'gduq'; from gduq.cli import app\n"
        "try: app(prog_name='gduq')\n"
        "finally: print([m for m in ('torch', 'numpy', 'pandas', 'rich') if m in sys.modules],"
        " file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stderr.strip() == ("[]" if shell == "bash" else "['rich']")  # Typer's own
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.slow)])
def test_commands_are_completed(shell):
    found = " ".join(to_params("ca", shell=shell))
    assert "calibrate" in found
    assert "train" not in found


def test_a_wrong_command_or_option_is_a_mistake():
    assert "No such command" in run("trian", code=2).output
    assert "--epoch" in run("train", "--epoch", "3", code=2).output


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
