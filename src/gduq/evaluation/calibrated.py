"""Predictions by split, of a model or given; and under any calibrator, each fitted once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from gduq.calibration import METHODS, Calibrator, make, parse_name
from gduq.errors import InputError
from gduq.graphs.splits import Splits
from gduq.graphs.view import View
from gduq.models.network import checked_predictor
from gduq.prediction import Prediction, predict
from gduq.shifts.corruptions import shifted_copies

__all__ = ["Calibrated", "FullGraph", "corrupted_predictions", "full_graph"]


@dataclass(frozen=True, eq=False)
class FullGraph:
    """A node task on one graph: predictions on all nodes, and the nodes of each split by number.

    The truth of nodes of no split is made up; only those of splits are ever read.
    """

    graph: Data
    p: Prediction
    rows: dict[str, Tensor]


@dataclass(eq=False)
class Calibrated:
    """Predictions by split, and under any calibrator fitted on the labels of ``fit_on``."""

    raw: dict[str, Prediction]
    fit_on: str = "id_val"
    full: FullGraph | None = None  # of a node task, for calibrators that read the graph
    find_copies: Callable[[], Sequence[Prediction]] | None = None  # for ``+corrupted`` ones

    @cached_property
    def copies(self) -> list[Prediction]:
        """Predictions of shifted copies of the rows of ``fit_on``; made when first asked for."""
        if self.find_copies is None:
            do = "Or pass a calibrator that was fitted with corrupted=."
            raise InputError("a model with its Splits, for shifted copies", "predictions", do)
        return list(self.find_copies())

    @property
    def validation(self) -> Prediction:
        """The predictions that calibrators are fitted on, which must be there and have labels."""
        if self.fit_on not in self.raw:
            wanted = f"a split {self.fit_on!r} to fit calibrators on"
            raise InputError(wanted, ", ".join(self.raw), "Pass fit_on=.")
        self.raw[self.fit_on].require_target()
        return self.raw[self.fit_on]

    def under(self, calibrator: Calibrator) -> Calibrated:
        """The same under a fitted calibrator."""
        full = self.full and replace(self.full, p=calibrator(self.full.p))
        if full is not None and calibrator.needs_graph:
            raw = {split: full.p[full.rows[split]] for split in self.raw}
        else:
            raw = {split: calibrator(p) for split, p in self.raw.items()}
        return Calibrated(raw, self.fit_on, full)

    def make(self, name: str) -> Calibrator:
        """A calibrator by name for these predictions, not yet fitted."""
        if not METHODS[parse_name(name)[0]].needs_graph:
            return make(name)
        if self.full is None:
            wanted = f"a model and a node task on one graph for {name!r}"
            do = "Pass the model with its Splits, or a fitted calibrator."
            raise InputError(wanted, "other splits or predictions alone", do)
        return make(name, self.full.graph, self.full.rows.get("train"))

    def fit(self, calibrator: Calibrator, name: str = "", part: Tensor | None = None) -> Calibrator:
        """Fit on ``fit_on``, or on some of its rows; by ``name``, also on copies of these."""
        if calibrator.fitted:
            return calibrator
        p = self.validation
        if calibrator.needs_graph and self.full is not None:
            rows = self.full.rows[self.fit_on]
            return calibrator.fit(self.full.p, rows=rows if part is None else rows[part])
        copies = self.copies if "+" in name else []
        copies = [copy if part is None else copy[part] for copy in copies]
        return calibrator.fit(p, rows=part, corrupted=copies)

    def held_out(self, calibrator: Calibrator, name: str, seed: int) -> Calibrated:
        """The same under a calibrator fitted on a random half of ``fit_on``.

        Only the other half is left of ``fit_on``, to put thresholds on: no row may serve both a
        calibrator and a threshold on what it gives.
        """
        size = len(self.validation)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
        first, rest = order[: (size + 1) // 2], order[(size + 1) // 2 :]
        if not len(rest):
            raise InputError("at least two rows to fit on", size)
        half = self.fit(calibrator, name, first)
        raw, full = {**self.raw, self.fit_on: self.raw[self.fit_on][rest]}, self.full
        if full is not None:
            full = replace(full, rows={**full.rows, self.fit_on: full.rows[self.fit_on][rest]})
        return Calibrated(raw, self.fit_on, full).under(half)


def answers_of(
    given: Any, views: Mapping[str, View], fit_on: str, batch_size: int | None, seed: int
) -> Calibrated:
    """Predictions by split, with the graph of a node task and shifted copies where known."""
    if not isinstance(given, nn.Module):
        found = {"test": given} if isinstance(given, Prediction) else given
        parts = list(found.values()) if isinstance(found, Mapping) else []
        if not parts or not all(isinstance(p, Prediction) and len(p) for p in parts):
            wanted = "a model, a Prediction, or predictions with rows by split name"
            raise InputError(wanted, f"{given!r:.60}")
        return Calibrated(dict(found), fit_on)
    if not views or not all(map(len, views.values())):
        raise InputError("splits with rows to judge a model on", "none, or empty ones")
    full = full_graph(given, views)
    if full is None:
        raw = {name: _predict(given, view, batch_size) for name, view in views.items()}
    else:
        raw = {name: full.p[rows] for name, rows in full.rows.items()}
    copies = None
    if fit_on in views:
        copies = partial(corrupted_predictions, given, views[fit_on], batch_size, seed)
    return Calibrated(raw, fit_on, full, copies)


def views_of(splits: Any) -> dict[str, View]:
    """Views by name."""
    if isinstance(splits, Splits):
        return {**dict(splits), **splits.severities}
    if not isinstance(splits, Mapping | None):
        got = type(splits).__name__
        raise InputError("Splits or views by name", got, 'Name it: {"test": view}.')
    return {k: v if isinstance(v, View) else View(v) for k, v in (splits or {}).items()}


def _predict(model: nn.Module, data: View | Data, batch_size: int | None = None) -> Prediction:
    """With features where the model has any."""
    found: Prediction = predict(model, data, batch_size=batch_size, features=True)
    return found.to("cpu")


def corrupted_predictions(
    model: nn.Module, view: View, batch_size: int | None = None, seed: int = 0,
    features: bool = False,
) -> list[Prediction]:  # fmt: skip
    """What a model says of every copy of `gduq.shifts.corruptions.shifted_copies` of a view.

    Each prediction has the rows of the view in its order.
    """
    copies = shifted_copies(view, seed)
    return [predict(model, c, batch_size=batch_size, features=features).to("cpu") for c in copies]


def full_graph(model: nn.Module, views: Mapping[str, View]) -> FullGraph | None:
    """What a model says of all nodes of the one graph of a node task; ``None`` for other tasks.

    One pass answers for all splits.
    """
    first = next(iter(views.values()))
    graph = first.graphs[0]
    one = all(v.task == "node" and len(v.graphs) == 1 and v.graphs[0] is graph
              for v in views.values())  # fmt: skip
    if not one or isinstance(graph, HeteroData):
        return None
    bare, meaning = graph.__copy__(), checked_predictor(model).target
    bare.y = None
    p, rows = _predict(model, bare), {name: view.numbers for name, view in views.items()}
    truth = {k: v.target if meaning is None else meaning.encode(v.target) for k, v in views.items()}
    known = next(iter(truth.values()))
    target = torch.zeros(len(p), *known.shape[1:], dtype=known.dtype, device=p.samples.device)
    for name, encoded in truth.items():
        target[rows[name]] = encoded.to(target)
    return FullGraph(graph, replace(p, target=target), rows)
