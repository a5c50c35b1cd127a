"""`RunFolder`: what a run leaves on disk."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq.errors import InputError
from gduq.evaluation.evaluation import Evaluation
from gduq.prediction import Hypotheses
from gduq.runs.config import RunConfig
from gduq.training.history import Epoch, History

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["RunFolder"]

FINISHED = "finished"
REJECTS = "rejects.csv"
_INFO = {"rows": dict, "seconds": dict, "versions": dict}  # what is read of info.json
_SPLIT = re.compile(r"[\w=.+-]+", re.ASCII)  # names of splits, which are names of files


class RunFolder:
    """A run on disk.

    ============================ ==============================================================
    ``config.json``              the `RunConfig`
    ``bundle``                   the model, as `gduq.save` writes it
    ``predictions/<split>.npz``  predictions per split, as `Hypotheses.to_npz` writes them
    ``metrics.json``             the whole `Evaluation`, made when first asked for
    ``history.json``             the epochs
    ``info.json``                status, versions, seconds, parameters, sizes of the splits
    ``rejects.csv``              rows of own data that were left out, with reasons
    ``report.html``              the page that `gduq train` writes of own data
    ``checkpoint/``              while it trains
    ``finished``                 written last: without it the run is not over
    ============================ ==============================================================

    Args:
        path: The folder; it must hold a run, finished or not.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / "config.json").is_file():
            raise InputError(
                "the folder of a run, with config.json",
                str(self.path),
                "Make one with `gduq train` or gduq.runs.run.run.",
            )

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / FINISHED).is_file()

    @cached_property
    def config(self) -> RunConfig:
        """What was asked for."""
        return RunConfig.from_values(self._json("config.json"), {})

    @property
    def bundle(self) -> Path:
        """The saved model, for `gduq.load`."""
        return self.path / "bundle"

    def predictions(self) -> dict[str, Any]:
        """Uncalibrated predictions by split, in the order they were made."""
        self.check_finished()
        order = self.info["rows"]
        if not isinstance(order, dict) or not all(_SPLIT.fullmatch(split) for split in order):
            raise InputError(f"rows by split in info.json of {self.path}", f"{order!r:.80}")
        files = {split: self.path / "predictions" / f"{split}.npz" for split in order}
        for split, file in files.items():
            if not file.is_file():
                raise InputError(f"predictions of {split}, which info.json names", f"no {file}")
        return {split: Hypotheses.from_npz(file) for split, file in files.items()}

    def evaluation(self) -> Evaluation:
        """Everything measured; made and kept when first asked for, without training."""
        self.check_finished()
        path = self.path / "metrics.json"
        if not path.is_file():
            from gduq.runs.run import recalibrate

            recalibrate(self, ())
        return Evaluation.from_json(path)

    @property
    def history(self) -> History:
        """The epochs; of an ensemble, those of its members."""
        try:
            return _history(self._json("history.json"))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"epochs in history.json of {self.path}", repr(error)) from None

    @property
    def info(self) -> dict[str, Any]:
        """Status, versions, seconds of training and prediction, parameters, rows."""
        found = self._json("info.json")
        for key, kind in _INFO.items():
            if not isinstance(found.get(key, kind()), kind):
                got = f"{found[key]!r:.80}"
                raise InputError(f"{key} as {kind.__name__} in info.json of {self.path}", got)
        if "rows" not in found:
            raise InputError(f"rows by split in info.json of {self.path}", "none")
        return found

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if path.exists() and not path.is_file():
            raise InputError(f"{name} of a run in {self.path}", "no regular file")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{name} of a run in {self.path}", error) from None
        if not isinstance(found, dict):
            raise InputError(f"{name} of a run in {self.path}", f"{found!r:.80}")
        return found

    def check_finished(self) -> None:
        """Raise unless the run came to its end."""
        if not self.finished:
            raise InputError(
                "a finished run", f"{self.path}, which is not", "Run it again: it goes on."
            )


def _history(content: dict[str, Any]) -> History:
    return History(
        tuple(Epoch(**record) for record in content["records"]),
        content["kept_epoch"],
        tuple(_history(member) for member in content["members"]),
        tuple(_history(other) for other in content["rejected"]),
        content["overhead_seconds"],
    )
