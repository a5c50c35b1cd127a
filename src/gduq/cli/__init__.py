"""The command line: files in, files out; a user's mistake is one sentence and exit code 2."""

from gduq.cli import bench, data, demo, export, predict, report, runs, serve, train
from gduq.cli.base import app

__all__ = ["app", "bench", "data", "demo", "export", "main", "predict", "report", "runs", "serve",
           "train"]  # fmt: skip


def main() -> None:
    """Entry point of the ``gduq`` command."""
    app()
