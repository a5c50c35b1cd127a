"""Calibrators of a finished run, fitted on what it stored; data and model only if need be."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from gduq.bundle import describe, save
from gduq.bundle import load as load_bundle
from gduq.calibration import METHODS, Calibrator
from gduq.data import View
from gduq.errors import InputError
from gduq.evaluation import corrupted_predictions
from gduq.evaluation.calibrated import make_calibrator
from gduq.evaluation.measuring import Whole
from gduq.evaluation.judging import whole_graph
from gduq.evaluation.shifted_copies import VARIANTS
from gduq.prediction.predictor import Predictor
from gduq.runs import build
from gduq.runs.folder import RunFolder
from gduq.runs.scores import FIXED, fixed

__all__ = ["Calibrated", "export"]

FIT_ON = "id_val"


class Calibrated:
    """Predictions of a run under any calibrator.

    Args:
        folder: A finished run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.raw = folder.predictions()

    def predictions(self, name: str) -> dict[str, Any]:
        """By split, under the calibrator of that name; uncalibrated under ``"none"``."""
        if name == "none":
            return self.raw
        calibrator = self.fitted(name)
        if not calibrator.needs_graph:
            return {split: calibrator(p) for split, p in self.raw.items()}
        q = calibrator(self.whole.p)
        return {split: q[rows] for split, rows in self.whole.rows.items()}

    def fitted(self, name: str) -> Calibrator:
        """The calibrator of that name, fitted on all of ``id_val``."""
        first = next(iter(self.raw.values()))
        if name in FIXED:
            return fixed(name, first.num_classes, first.num_samples)
        if FIT_ON not in self.raw:
            raise InputError(f"a split {FIT_ON!r} to fit calibrators on", ", ".join(self.raw))
        on_graph = METHODS[VARIANTS.get(name, name)].needs_graph
        whole = self.whole if on_graph else None
        calibrator = make_calibrator(name, whole, self.raw.get("train"))
        if whole is not None:
            return calibrator.fit(whole.p, rows=whole.rows[FIT_ON])
        copies = self.copies if name in VARIANTS else ()
        return calibrator.fit(self.raw[FIT_ON], corrupted=copies)

    @cached_property
    def model(self) -> Predictor:
        """The trained model."""
        return load_bundle(self.folder.bundle)[0]

    @cached_property
    def views(self) -> dict[str, View]:
        """The data of the run, by split."""
        return build.all_views(build.splits_of(self.folder.config))

    @cached_property
    def whole(self) -> Whole:
        """The one graph of a node task, predictions on all its nodes, and the nodes by split."""
        found = whole_graph(self.model, self.views) if self.folder.info["task"] == "node" else None
        if found is None:
            raise InputError("a node task on one graph for graph calibrators", "another task")
        return found

    @cached_property
    def copies(self) -> list[Any]:
        """Corrupted copies of the rows that calibrators are fitted on."""
        features = self.raw[FIT_ON].features is not None
        return corrupted_predictions(self.model, self.views[FIT_ON], features=features)


def export(folder: RunFolder, name: str, output: str | Path) -> Path:
    """The model of a run with one calibrator in one bundle, for ``gduq predict`` and `gduq.load`.

    Args:
        folder: A finished run.
        name: Of `gduq.calibration.METHODS`, or such a name with ``+corrupted``.
        output: The bundle; replaced if it is one already.
    """
    calibrated = Calibrated(folder)
    if VARIANTS.get(name, name) not in METHODS:
        raise InputError(f"a calibrator to save from {', '.join([*METHODS, *VARIANTS])}", name)
    notes = describe(folder.bundle).preprocessing
    return save(calibrated.model, output, calibrated.fitted(name), preprocessing=notes)
