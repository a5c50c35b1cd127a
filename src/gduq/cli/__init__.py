"""The command line: files in, files out; a user's mistake is one sentence and exit code 2."""

from gduq.cli import data, demo, export, page, predict, runs, service, tables, train
from gduq.cli.base import app

__all__ = [
    "app",
    "data",
    "demo",
    "export",
    "main",
    "page",
    "predict",
    "runs",
    "service",
    "tables",
    "train",
]


def main() -> None:
    """Entry point of the ``gduq`` command."""
    app()
