"""The command line: files in, files out; a user's mistake is one sentence and exit code 2."""

from importlib.metadata import entry_points

# the order in which --help lists commands
# isort: off
from gduq.cli import train, runs, predict, monitor
from gduq.cli.base import app
# isort: on

__all__ = ["app", "main", "monitor", "predict", "runs", "train"]

for _point in entry_points(group="gduq.commands"):  # of other packages; each adds itself to app
    _point.load()


def main() -> None:
    """Entry point of the ``gduq`` command."""
    app()
