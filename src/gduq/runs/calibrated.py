"""Calibrators of a finished run, fitted on what it stored; data and model only if need be."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from gduq.bundle import describe, load_reference, save
from gduq.bundle import load as load_bundle
from gduq.calibration import METHODS, parse_name
from gduq.data import View
from gduq.errors import InputError
from gduq.evaluation import corrupted_predictions
from gduq.evaluation.calibrated import Calibrated, FullGraph, full_graph
from gduq.models.predictor import Predictor
from gduq.runs import build
from gduq.runs.folder import RunFolder

__all__ = ["CalibratedRun", "export"]


class CalibratedRun(Calibrated):
    """Predictions of a finished run under any calibrator.

    Args:
        folder: A finished run.
    """

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(
            folder.predictions(), find_graph=self._graph_of_run, find_copies=self._copies_of_run
        )
        self.folder = folder

    @cached_property
    def model(self) -> Predictor:
        """The trained model."""
        return load_bundle(self.folder.bundle)[0]

    @cached_property
    def views(self) -> dict[str, View]:
        """The data of the run, by split."""
        return build.all_views(build.splits_of(self.folder.config))

    def _graph_of_run(self) -> FullGraph | None:
        node = self.folder.info["task"] == "node"
        return full_graph(self.model, self.views) if node else None

    def _copies_of_run(self) -> list[Any]:
        features = self.raw[self.fit_on].features is not None
        return corrupted_predictions(self.model, self.views[self.fit_on], features=features)


def export(folder: RunFolder, name: str, output: str | Path) -> Path:
    """The model of a run with one calibrator in one bundle, for ``gduq predict`` and `gduq.load`.

    Args:
        folder: A finished run.
        name: Of `gduq.calibration.METHODS`, or such a name with ``+corrupted``.
        output: The bundle; replaced if it is one already.
    """
    if parse_name(name)[0] not in METHODS:
        raise InputError(f"a calibrator to save from {', '.join(METHODS)}", name)
    run = CalibratedRun(folder)
    notes = describe(folder.bundle).preprocessing
    fitted = run.fitted(name)
    # one that reads whole graphs cannot calibrate rows that are kept without theirs
    known = None if fitted.needs_graph else load_reference(folder.bundle)
    return save(run.model, output, fitted, preprocessing=notes, reference=known)
