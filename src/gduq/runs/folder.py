"""`RunFolder`: what a run leaves on disk."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gduq.errors import InputError, first_flaw
from gduq.evaluation.evaluation import Evaluation
from gduq.prediction import Prediction
from gduq.runs.config import RunConfig
from gduq.training.history import Epoch, History

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["RunFolder"]

FINISHED = "finished"
REJECTS = "rejects.csv"
_Split = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_=.+-]+$")]  # a name of a file
_Count = Annotated[int, Field(ge=0)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class _Seconds(_Document):
    train: float | None = None
    predict: float | None = None
    plain: float | None = None


class _Info(_Document):
    """What is read of info.json; a number that was not finite is null."""

    rows: dict[_Split, _Count]
    seconds: _Seconds | None = None
    parameters: float | None = None
    task: str = ""
    model: str = ""
    description: str = ""
    machine: str = ""
    class_names: list[str] = []
    target_names: list[str] = []
    units: list[str] = []
    severities: list[str] = []
    versions: dict[str, str] = {}


class _Epoch(_Document):
    model_config = ConfigDict(extra="forbid")

    epoch: int
    loss: float | None
    lr: float | None
    seconds: float
    val_loss: float | None = None
    val_accuracy: float | None = None
    val_rmse: float | None = None


class _History(_Document):
    records: list[_Epoch]
    kept_epoch: int
    members: list[_History]
    rejected: list[_History]
    overhead_seconds: float


class RunFolder:
    """A run on disk.

    ============================ ==============================================================
    ``config.json``              the `RunConfig`
    ``bundle``                   the model, as `gduq.save` writes it
    ``predictions/<split>.npz``  predictions per split, as `Prediction.to_npz` writes them
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
        files = {split: self.path / "predictions" / f"{split}.npz" for split in order}
        for split, file in files.items():
            if not file.is_file():
                raise InputError(f"predictions of {split}, which info.json names", f"no {file}")
        found = {split: Prediction.from_npz(file) for split, file in files.items()}
        if len({(p.kind, p.num_samples, p.samples.size(2)) for p in found.values()}) > 1:
            raise InputError(f"predictions of one model in {self.path}", "those of several")
        for split, p in found.items():
            if len(p) != order[split]:
                raise InputError(f"{order[split]} predictions of {split} in {self.path}", len(p))
        return found

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
        return _history(self._json("history.json", _History))

    @property
    def info(self) -> dict[str, Any]:
        """Status, versions, seconds of training and prediction, parameters, rows."""
        return self._json("info.json", _Info)

    def _json(self, name: str, schema: type[BaseModel] | None = None) -> dict[str, Any]:
        path = self.path / name
        if path.exists() and not path.is_file():
            raise InputError(f"{name} of a run in {self.path}", "no regular file")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{name} of a run in {self.path}", error) from None
        if not isinstance(found, dict):
            raise InputError(f"{name} of a run in {self.path}", f"{found!r:.80}")
        try:
            if schema is not None:
                schema.model_validate(found, strict=True)
        except (ValidationError, RecursionError) as error:
            flaw = first_flaw(error) if isinstance(error, ValidationError) else error
            raise InputError(f"a sound {name} of a run in {self.path}", flaw) from None
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
