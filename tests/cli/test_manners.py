"""The manners of the program: light help, one sentence for a mistake, completion."""

import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from gduq import __version__
from gduq.cli import app
from gduq.cli.base import print_json, print_rows
from tests.cli.cases import run

COMMANDS = ("demo", "train", "predict", "serve", "export", "calibrate", "evaluate", "report",
            "bench", "data", "points")  # fmt: skip


def test_every_command_of_the_design_is_there_in_order():
    text = run("--help").stdout
    lines = text.split("Commands:")[1].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "][
        : len(COMMANDS)
    ] == list(COMMANDS)
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell):
    environment = {**os.environ, "_GDUQ_COMPLETE": f"complete_{shell}"}
    environment |= {"COMP_WORDS": "gduq ca", "COMP_CWORD": "1"}
    environment |= {"_TYPER_COMPLETE_ARGS": "gduq ca", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code = "import sys; sys.argv[0] = 'gduq'; from gduq.cli import app; app(prog_name='gduq')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert "calibrate" in done.stdout
    assert "train" not in done.stdout


def completed(*words):
    """What bash would offer for the last word, and the heavy modules that were imported for it."""
    environment = {**os.environ, "_GDUQ_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": " ".join(["gduq", *words]), "COMP_CWORD": str(len(words))}
    code = (
        "import sys; sys.argv[0] = 'gduq'; from gduq.cli import app\n"
        "try: app(prog_name='gduq')\n"
        "finally: print([m for m in ('torch', 'numpy', 'pandas', 'rich') if m in sys.modules],"
        " file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stderr.strip() == "[]"
    return done.stdout.split()


def test_tables_and_datasets_are_completed():
    assert completed("bench", "node-") == ["node-shift", "node-layerwise"]
    assert completed("bench", "size-shift", "--scale", "s") == ["smoke", "small"]
    motifs = ["motif/size/covariate", "motif/size/concept", "motif/size/no_shift"]
    assert completed("train", "--data", "motif/s") == motifs
    assert completed("data", "prepare", "motif/s") == motifs
    assert completed("data", "describe", "motif/s") == motifs
    assert completed("train", "--method", "v") == ["vanilla"]


def test_names_offered_are_those_that_exist():
    from gduq.calibration import methods_for
    from gduq.cli.completion import CALIBRATORS, OF_FEATURES, SCORES, check_calibrator, datasets
    from gduq.cli.completion import FIXED as COMPLETED_FIXED
    from gduq.cli.completion import TABLES as offered
    from gduq.data import names
    from gduq.deploy.service import _OF_FEATURES
    from gduq.evaluation.named_calibrators import FIXED
    from gduq.novelty import scores_for
    from gduq.paper.tables import TABLES

    assert offered == (*TABLES, "molecules")
    assert COMPLETED_FIXED == FIXED
    assert tuple(_OF_FEATURES) == OF_FEATURES
    for kind in ("classes", "labels", "values"):
        assert tuple(methods_for(kind)) == CALIBRATORS[kind]
        assert scores_for(kind) == SCORES[kind]
        for one in methods_for(kind).values():
            check_calibrator(one.__name__, kind)
    assert tuple(datasets("")) == names()


def test_no_arguments_show_the_help():
    assert "Usage: gduq" in CliRunner().invoke(app, [], prog_name="gduq").output


def test_a_wrong_command_or_option_is_a_mistake():
    assert "No such command" in run("trian", code=2).output
    assert "--epoch" in run("train", "--epoch", "3", code=2).output


def test_a_place_nobody_may_write_to_is_one_sentence(monkeypatch):
    def broken(*_, **__):
        raise PermissionError(13, "Permission denied", "/forbidden/file")

    monkeypatch.setattr("gduq.paper.bench.bench", broken)
    result = run("bench", "size-shift", code=2)
    assert result.stderr == "Error: Permission denied: /forbidden/file\n"


def test_ctrl_c_ends_any_command_with_one_line(monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gduq.data.catalog.names", stopped)
    assert run("data", "list", code=130).stderr == "Stopped.\n"
    assert "goes on from the last checkpoint" in run("train", "my.csv", code=130).stderr


def test_json_has_no_infinities(capsys):
    print_json({"a": [float("inf"), float("nan"), 1.5]})
    assert capsys.readouterr().out == '{"a": ["inf", null, 1.5]}\n'


def test_a_table_shows_every_column_and_no_markup(capsys):
    print_rows([{"a": "[red]x[/red]"}, {"a": 1.23456, "b": None}], as_json=False)
    out = capsys.readouterr().out
    assert "[red]x[/red]" in out
    assert out.splitlines()[0].split() == ["a", "b"]
    assert "1.235" in out


def test_no_secret_commands():
    assert {c.name or c.callback.__name__ for c in app.registered_commands} == set(COMMANDS) - {
        "data"
    }
    assert isinstance(app, typer.Typer)
