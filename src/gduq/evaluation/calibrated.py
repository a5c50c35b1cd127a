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
from gduq.graphs.view import Splits, View
from gduq.models.network import checked_predictor
from gduq.prediction import Prediction, predict
from gduq.shifts.corruptions import shifted_copies

__all__ = ["Calibrated", "FullGraph", "corrupted_predictions", "full_graph"]


@dataclass(frozen=True, eq=False)
class FullGraph:
    """A node task on one graph: predictions on all nodes, and the nodes of each split by number.
    The truth of nodes of no split is made up, and never read."""

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
            raise InputError(f"a split {self.fit_on!r} to fit on", ", ".join(self.raw))
        self.raw[self.fit_on].require_target()
        return self.raw[self.fit_on]

    def under(self, calibrator: Calibrator) -> Calibrated:
        """The same under a fitted calibrator."""
        full = self.full and replace(self.full, p=calibrator(self.full.p))
        of_graph = full if calibrator.needs_graph else None
        raw = {split: calibrator(p) if of_graph is None else of_graph.p[of_graph.rows[split]]
               for split, p in self.raw.items()}  # fmt: skip
        return Calibrated(raw, self.fit_on, full)

    def make(self, name: str) -> Calibrator:
        """A calibrator by name for these predictions, not yet fitted."""
        if not METHODS[parse_name(name)[0]].needs_graph:
            return make(name)
        if self.full is None:
            wanted = f"a model, its Splits and a node task on one graph for {name!r}"
            raise InputError(wanted, "others", "Or pass a fitted calibrator.")
        return make(name, self.full.graph, self.full.rows.get("train"))

    def fit(self, calibrator: Calibrator, name: str = "", part: Tensor | None = None) -> Calibrator:
        """Fit on ``fit_on``, or on some of its rows; by ``name``, also on copies of these."""
        if calibrator.fitted:
            return calibrator
        p = self.validation
        if calibrator.needs_graph and self.full is not None:
            rows = self.full.rows[self.fit_on]
            return calibrator.fit(self.full.p, rows=rows if part is None else rows[part])
        copies = [p if part is None else p[part] for p in (self.copies if "+" in name else ())]
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
    val = views.get(fit_on)
    copies = None if val is None else partial(corrupted_predictions, given, val, batch_size, seed)
    return Calibrated(raw, fit_on, full, copies)


def views_of(splits: object) -> dict[str, View]:
    if isinstance(splits, Splits):
        return {**dict(splits), **splits.severities}
    if not isinstance(splits, Mapping | None):
        got = type(splits).__name__
        raise InputError("Splits or views by name", got, 'Name it: {"test": view}.')
    return {k: v if isinstance(v, View) else View(v) for k, v in (splits or {}).items()}


def _predict(
    model: nn.Module, data: View | Data, batch_size: int | None = None, features: bool = True
) -> Prediction:
    found: Prediction = predict(model, data, batch_size=batch_size, features=features)
    return found.to("cpu")


def corrupted_predictions(
    model: nn.Module, view: View, batch_size: int | None = None, seed: int = 0,
    features: bool = False,
) -> list[Prediction]:  # fmt: skip
    """What a model says of every copy of `gduq.shifts.corruptions.shifted_copies` of a view, with
    the rows of the view in its order."""
    return [_predict(model, copy, batch_size, features) for copy in shifted_copies(view, seed)]


def full_graph(model: nn.Module, views: Mapping[str, View]) -> FullGraph | None:
    """What a model says, in one pass, of all nodes of the graph of a node task; else ``None``."""
    first = next(iter(views.values()))
    graph = first.graphs[0]
    one = all(v.task == "node" and len(v.graphs) == 1 and v.graphs[0] is graph
              for v in views.values())  # fmt: skip
    if not one or isinstance(graph, HeteroData):
        return None
    bare, meaning = graph.__copy__(), checked_predictor(model).target
    bare.y = None
    p, target = _predict(model, bare), torch.empty(0)
    for view in views.values():
        truth = (view.target if meaning is None else meaning.encode(view.target)).cpu()
        target = target if len(target) else truth.new_zeros(len(p), *truth.shape[1:])
        target[view.numbers] = truth
    rows = {name: view.numbers for name, view in views.items()}
    return FullGraph(graph, replace(p, target=target), rows)
