"""`RunFolder`: what a run leaves on disk, and everything about it again without training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from gduq._io import locked, write_json
from gduq.bundle import describe, load_reference, save
from gduq.bundle import load as load_bundle
from gduq.data import View
from gduq.errors import InputError, first_flaw
from gduq.evaluation import Evaluation, corrupted_predictions, evaluate
from gduq.evaluation.calibrated import Calibrated, full_graph
from gduq.models.predictor import Predictor
from gduq.prediction import Prediction
from gduq.runs import build
from gduq.runs.config import RunConfig
from gduq.training.history import History

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["RunFolder"]

FINISHED = "finished"
_Split = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_=.+-]+$")]  # a name of a file


class _Info(BaseModel):
    """What is read of info.json; a number that was not finite is null."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    rows: dict[_Split, Annotated[int, Field(ge=0)]]
    seconds: dict[str, float | None] = {}
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


class RunFolder:
    """A run on disk.

    ============================ ==============================================================
    ``config.json``              the `RunConfig`
    ``bundle``                   the model, as `gduq.save` writes it
    ``predictions/<split>.npz``  predictions per split, as `Prediction.to_npz` writes them
    ``metrics.json``             the whole `Evaluation`, made when first asked for
    ``history.json``             the epochs
    ``info.json``                versions, seconds, parameters, sizes of the splits
    ``rejects.csv``              rows of own data that were left out, with reasons
    ``report.html``              the page that `gduq train` writes of own data
    ``checkpoint/``              while it trains
    ``finished``                 written last: without it the run is not over
    ============================ ==============================================================

    Args:
        path: The folder; it must hold a run, finished or not.
        trust_source: Whether data that its config names as ``package.module:Name`` may be
            imported: it is code.
    """

    def __init__(self, path: str | PathLike[str], trust_source: bool = False) -> None:
        self.path, self._trusted = Path(path), trust_source
        if not (self.path / "config.json").is_file():
            do = "Make one with `gduq train` or gduq.runs.run.run."
            raise InputError("the folder of a run, with config.json", str(self.path), do)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / FINISHED).is_file()

    def check_finished(self) -> None:
        """Raise unless the run came to its end."""
        if not self.finished:
            do = "Run it again: it goes on."
            raise InputError("a finished run", f"{self.path}, which is not", do)

    @cached_property
    def config(self) -> RunConfig:
        """What was asked for."""
        return RunConfig.read(self.path, trust_source=self._trusted)

    @property
    def bundle(self) -> Path:
        """The saved model, for `gduq.load`."""
        return self.path / "bundle"

    @cached_property
    def model(self) -> Predictor:
        """The trained model."""
        return load_bundle(self.bundle)[0]

    @cached_property
    def views(self) -> dict[str, View]:
        """The data of the run, by split."""
        return build.all_views(build.splits_of(self.config))

    @property
    def history(self) -> History:
        """The epochs; of an ensemble, those of its members."""
        found: History = self._read("history.json", History)
        return found

    @property
    def info(self) -> dict[str, Any]:
        """Versions, seconds of training and prediction, parameters, rows."""
        found: dict[str, Any] = self._read("info.json", _Info).model_dump()
        return found

    def _read(self, name: str, schema: Any) -> Any:
        """A file of the run, as pydantic reads such a thing."""
        path, what = self.path / name, f"a sound {name} of a run in {self.path}"
        try:
            if path.exists() and not path.is_file():  # a pipe would never end
                raise OSError("no regular file")
            found = json.loads(path.read_text(encoding="utf-8"))
            return TypeAdapter(schema).validate_python(found)
        except ValidationError as error:
            raise InputError(what, first_flaw(error)) from None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(what, error) from None

    def predictions(self) -> dict[str, Any]:
        """Uncalibrated predictions by split, in the order they were made."""
        self.check_finished()
        found: dict[str, Any] = {}
        for split, rows in self.info["rows"].items():
            file = self.path / "predictions" / f"{split}.npz"
            if not file.is_file():
                raise InputError(f"predictions of {split}, which info.json names", f"no {file}")
            found[split] = Prediction.from_npz(file)
            if len(found[split]) != rows:
                raise InputError(f"{rows} predictions of {split} in {file}", len(found[split]))
        if len({(p.kind, p.num_samples, p.samples.size(2)) for p in found.values()}) > 1:
            raise InputError(f"predictions of one model in {self.path}", "those of several")
        return found

    @cached_property
    def calibrated(self) -> Calibrated:
        """Predictions under any calibrator; data and model are read only where one needs them."""
        found = self.predictions()
        features = found["id_val"].features is not None
        return Calibrated(
            found,
            full=full_graph(self.model, self.views) if self.info["task"] == "node" else None,
            find_copies=lambda: corrupted_predictions(
                self.model, self.views["id_val"], features=features
            ),
        )

    def evaluation(self) -> Evaluation:
        """Everything measured; made and kept when first asked for, without training."""
        self.check_finished()
        with locked(self.path):
            if not (path := self.path / "metrics.json").is_file():
                self.evaluate().to_json(path)
        return Evaluation.from_json(path)

    def evaluate(self, more: Iterable[str] = (), subgroups: bool = False) -> Evaluation:
        """Everything measured, with every calibrator of the config; nothing is written.

        Args:
            more: Other calibrators beside those.
            subgroups: Also measure groups of rows, see `gduq.evaluate`.
        """
        severe = self.info["severities"]
        return evaluate(
            self.calibrated,
            self.views if subgroups else None,
            (*self.config.calibrators, *more),
            ood=[s for s in self.calibrated.raw if s.startswith("ood") or s in severe],
            resamples=self.config.resamples,
            subgroups=subgroups,
        )

    def recalibrate(self, methods: Iterable[str]) -> RunFolder:
        """Add calibrators to a finished run, which its evaluation then has; nothing is trained.

        Where one cannot be fitted, an `InputError` says why, and the run stays as it is.

        Args:
            methods: Names of `gduq.calibration.METHODS`, or of those that take copies with
                ``+corrupted``, which are fitted on shifted copies of the rows too.
        """
        with locked(self.path):
            self.check_finished()
            fresh = RunFolder(self.path)  # another process may have added some
            known = fresh.config.calibrators
            config = fresh.config.with_({"calibrators": (*known, *methods)})
            if more := config.calibrators[len(known) :]:
                result, metrics = fresh.evaluate(more), self.path / "metrics.json"
                for name in set(more) & set(result.settings["skipped"]):
                    reason = result.settings["skipped"][name]
                    raise InputError(f"calibrators that fit this run, not {name}", reason)
                metrics.unlink(missing_ok=True)
                write_json(self.path / "config.json", config.model_dump(mode="json"))
                result.to_json(metrics)
        return RunFolder(self.path)

    def save_calibrated(self, name: str, output: str | Path) -> Path:
        """The model with one calibrator in one bundle, for ``gduq predict`` and `gduq.load`.

        Args:
            name: Of `gduq.calibration.METHODS`, or such a name with ``+corrupted``.
            output: The bundle; replaced if it is one already.
        """
        notes = describe(self.bundle).preprocessing
        fitted = self.calibrated.fit(self.calibrated.make(name), name)
        # one that reads whole graphs cannot calibrate rows that are kept without theirs
        known = None if fitted.needs_graph else load_reference(self.bundle)
        return save(self.model, output, fitted, preprocessing=notes, reference=known)
