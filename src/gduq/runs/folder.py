"""What a run learns from, and what it leaves on disk: all about it again without training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from gduq._io import locked, write_json
from gduq.bundle import describe, load_reference, save
from gduq.bundle import load as load_bundle
from gduq.data import Splits, View, load
from gduq.data.files import OwnData, read_own
from gduq.data.table import source_digest
from gduq.errors import InputError, first_flaw
from gduq.evaluation import Evaluation, corrupted_predictions, evaluate
from gduq.evaluation.calibrated import Calibrated, full_graph
from gduq.models.predictor import Predictor
from gduq.prediction import Classes, Prediction, infer_target
from gduq.runs.config import RunConfig
from gduq.training import History

__all__ = ["RunFolder", "all_views", "data_of", "plan"]

FINISHED = "finished"
_ROLES = {
    "train": "to learn from",
    "id_val": "like training, to stop and calibrate by",
    "id_test": "like training, to judge it at home",
    "ood_val": "unlike training",
    "ood_test": "unlike training, to judge it under shift",
}
Schema = TypeVar("Schema")
_Split = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_=.+-]+$")]  # a name of a file
_load = lru_cache(maxsize=2)(load)  # for the next run of the same process


def data_of(config: RunConfig) -> OwnData:
    """The data of a run: its splits, and what the outputs mean, with the names and units it
    brings."""
    data = config.data
    if data.source is None:
        splits = _load(data.name, seed=data.seed, limit=data.limit)
        y = torch.cat([view.target for view in all_views(splits).values()])
        target = infer_target(y, len(splits.class_names) or None)
        found = OwnData(splits, target, by="", rejects=())
    elif source_digest(data.source) == data.digest:
        found = read_own(**data.model_dump(exclude={"digest"}))
    else:
        do = "Train again: another content makes another run."
        raise InputError(f"in {data.source} what the run was made with", "other content", do)
    if isinstance(found.target, Classes):  # which has names of its own
        return found
    given = {"names": found.splits.target_names, "units": found.splits.units}
    known = {k: v for k, v in given.items() if v and hasattr(found.target, k)}
    return replace(found, target=replace(found.target, **known))


def plan(config: RunConfig) -> dict[str, object]:
    """What would be read, cut and trained: for `gduq train --dry-run`."""
    model, found = config.model, data_of(config)
    noun = "molecules" if config.data.smiles else f"{found.splits.train.task}s"
    return {
        "description": found.splits.description,
        "cut by": found.by,
        "task": found.target.kind,
        "targets": found.splits.target_names,
        "units": found.splits.units,
        "classes": found.splits.class_names,
        "network": f"{model.conv}, {model.num_layers} layers of {model.hidden_channels}",
        "method": config.method.kind,
        "epochs": config.training.epochs,
        "cut": [f"{part:<9} {len(view)} {noun}, {_ROLES[part]}" for part, view in found.splits],
        "rejected": [str(reject) for _, reject in found.rejects],
    }


def all_views(splits: Splits) -> dict[str, View]:
    """Every split and severity that has rows, by name."""
    views = {**dict(splits), **splits.severities}
    return {name: view for name, view in views.items() if len(view)}


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
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / "config.json").is_file():
            do = "Make one with `gduq train` or gduq.runs.run.run."
            raise InputError("the folder of a run, with config.json", str(self.path), do)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @cached_property
    def config(self) -> RunConfig:
        """What was asked for."""
        return RunConfig.read(self.path)

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
        return all_views(data_of(self.config).splits)

    @property
    def history(self) -> History:
        """The epochs; of an ensemble, those of its members."""
        return self._read("history.json", History)

    @property
    def info(self) -> dict[str, Any]:
        """Versions, seconds of training and prediction, parameters, rows."""
        return self._read("info.json", _Info).model_dump()

    def _read(self, name: str, schema: type[Schema]) -> Schema:
        """A file of the run, as pydantic reads such a thing."""
        if not (self.path / FINISHED).is_file():
            do = "Run it again: it goes on."
            raise InputError("a finished run", f"{self.path}, which is not", do)
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

    def evaluation(self, more: Iterable[str] = (), subgroups: bool = False) -> Evaluation:
        """Everything measured, with all calibrators of the run; kept, and nothing is trained.

        Where one of ``more`` cannot be fitted, an `InputError` says why, and the run stays as it
        is.

        Args:
            more: Calibrators that are new to the run, and stay with it: names of
                `gduq.calibration.METHODS`, or of those that take copies with ``+corrupted``, which
                are fitted on shifted copies of the rows too.
            subgroups: Also measure groups of rows, see `gduq.evaluate`.
        """
        path, severe = self.path / "metrics.json", self.info["severities"]
        with locked(self.path):
            config = RunConfig.read(self.path)  # others may have added
            known = len(config.calibrators)
            config = config.with_({"calibrators": (*config.calibrators, *more)})
            new = config.calibrators[known:]
            if new or subgroups or not path.is_file():
                found = evaluate(
                    self.calibrated,
                    self.views if subgroups else None,
                    config.calibrators,
                    ood=[s for s in self.calibrated.raw if s.startswith("ood") or s in severe],
                    resamples=config.resamples,
                    subgroups=subgroups,
                )
                for name in set(new) & set(found.settings["skipped"]):
                    reason = found.settings["skipped"][name]
                    raise InputError(f"calibrators that fit this run, not {name}", reason)
                path.unlink(missing_ok=True)
                write_json(self.path / "config.json", config.model_dump(mode="json"))
                found.to_json(path)
        return Evaluation.from_json(path)

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
