"""Predictions by split, of a model or given; and under any calibrator, each fitted once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, Dataset, HeteroData

from gduq.calibration import FIXED, METHODS, Calibrator, Fixed, make, parse_name
from gduq.errors import InputError
from gduq.graphs.splits import Splits
from gduq.graphs.view import View
from gduq.models.network import checked_predictor
from gduq.prediction import Prediction, predict
from gduq.shifts.corruptions import shifted_copies

__all__ = ["Calibrated", "FullGraph", "corrupted_predictions", "full_graph"]


@dataclass(frozen=True, eq=False)
class FullGraph:
    """A node task on one graph: predictions on all nodes, and which nodes each split has.

    The truth of nodes of no split is made up; only those of splits are ever read.
    """

    graph: Data
    p: Prediction
    rows: dict[str, Tensor]

    def numbers(self, split: str) -> Tensor:
        """The nodes of a split by number."""
        rows = self.rows[split]
        return rows.nonzero().flatten() if rows.dtype == torch.bool else rows


@dataclass(eq=False)
class Calibrated:
    """Predictions by split, and under any calibrator fitted on the labels of ``fit_on``."""

    raw: dict[str, Prediction]
    fit_on: str = "id_val"
    find_graph: Callable[[], FullGraph | None] = lambda: None  # for calibrators that read the graph
    find_copies: Callable[[], Sequence[Prediction]] | None = None  # for ``+corrupted`` ones
    _fitted: dict[str, Calibrator] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def full_graph(self) -> FullGraph | None:
        """The one graph of a node task; found when first asked for."""
        return self.find_graph()

    @cached_property
    def copies(self) -> list[Prediction]:
        """Predictions of shifted copies of the rows of ``fit_on``; made when first asked for."""
        if self.find_copies is None:
            raise InputError(
                "corrupted copies of the rows to fit on",
                "predictions alone",
                "Pass corrupted=, or the model with its Splits.",
            )
        return list(self.find_copies())

    @property
    def validation(self) -> Prediction:
        """The predictions that calibrators are fitted on, which must be there and have labels."""
        if self.fit_on not in self.raw:
            wanted = f"a split {self.fit_on!r} to fit calibrators on"
            raise InputError(wanted, ", ".join(self.raw), "Pass fit_on=.")
        self.raw[self.fit_on].require_target()
        return self.raw[self.fit_on]

    def predictions(self, name: str) -> dict[str, Prediction]:
        """By split, under the calibrator of that name; uncalibrated under ``"none"``."""
        return self.raw if name == "none" else self.under(self.fitted(name)).raw

    def under(self, calibrator: Calibrator) -> Calibrated:
        """The same under a fitted calibrator."""
        found = Calibrated({}, self.fit_on, lambda: self._mapped_graph(calibrator))
        full = found.full_graph if calibrator.needs_graph else None
        for split, p in self.raw.items():
            found.raw[split] = calibrator(p) if full is None else full.p[full.rows[split]]
        return found

    def _mapped_graph(self, calibrator: Calibrator) -> FullGraph | None:
        full = self.full_graph
        return None if full is None else replace(full, p=calibrator(full.p))

    def fitted(self, name: str) -> Calibrator:
        """The calibrator of that name, fitted on all of ``fit_on``."""
        if name not in self._fitted:
            self._fitted[name] = self.fit(self.make(name), name)
        return self._fitted[name]

    def make(self, name: str) -> Calibrator:
        """A calibrator by name for these predictions; fitted only if nothing is to be learned."""
        p, method = next(iter(self.raw.values())), parse_name(name)[0]
        if method in FIXED and p.kind != Fixed.kind:
            raise InputError(f"predictions about {Fixed.kind} for {name!r}", p.kind)
        if method in FIXED or not METHODS[method].needs_graph:
            return make(name, p)
        if self.full_graph is None:
            raise InputError(
                f"a model and a node task on one graph for {name!r}",
                "other splits or predictions alone",
                "Pass the model with its Splits, or a fitted calibrator.",
            )
        return make(name, p, self.full_graph.graph, self.full_graph.rows.get("train"))

    def fit(self, calibrator: Calibrator, name: str = "", part: Tensor | None = None) -> Calibrator:
        """Fit on ``fit_on``, or on some of its rows; by ``name``, also on copies of these."""
        if calibrator.fitted:
            return calibrator
        p, full = self.validation, self.full_graph if calibrator.needs_graph else None
        if full is not None:
            rows = full.numbers(self.fit_on)
            return calibrator.fit(full.p, rows=rows if part is None else rows[part])
        copies = self.copies if name and parse_name(name)[1] else []
        copies = copies if part is None else [copy[part] for copy in copies]
        return calibrator.fit(p, rows=part, **({"corrupted": copies} if copies else {}))

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
        raw, full = {**self.raw, self.fit_on: self.raw[self.fit_on][rest]}, self.full_graph
        if full is not None:
            left = {**full.rows, self.fit_on: full.numbers(self.fit_on)[rest]}
            full = replace(full, rows=left)
        return Calibrated(raw, self.fit_on, lambda: full).under(half)


def views_of(splits: Splits | Mapping[str, View] | None) -> dict[str, View]:
    """Views by name."""
    if isinstance(splits, Splits):
        return {**dict(splits), **splits.severities}
    if not isinstance(splits, Mapping | None):
        raise InputError(
            "Splits or views by name", type(splits).__name__, 'Name it: {"test": view}.'
        )
    return {name: _view(name, data) for name, data in (splits or {}).items()}


def _view(name: str, data: object) -> View:
    if isinstance(data, (list, tuple, Dataset)):
        return View(data)
    if not isinstance(data, View):
        raise InputError(
            f"a View or a list of graphs as {name!r}",
            type(data).__name__,
            "Pass gduq.data.View(data, mask) for nodes; of a loader, its dataset.",
        )
    return data


def answers_of(
    given: Any,
    views: dict[str, View],
    fit_on: str,
    corrupted: Sequence[Prediction] | None,
    batch_size: int | None,
    seed: int,
) -> Calibrated:
    """Predictions by split, with the graph of a node task and shifted copies where known."""
    full: FullGraph | None = None
    copies = None if corrupted is None else partial(list[Prediction], corrupted)
    if isinstance(given, nn.Module):
        if not views:
            raise InputError("splits to judge a model on", "none", "Pass splits=.")
        _check_rows(views)
        full = full_graph(given, views)
        if full is None:
            found = {name: _predict(given, view, batch_size) for name, view in views.items()}
        else:
            found = {name: full.p[rows] for name, rows in full.rows.items()}
        if copies is None and fit_on in views:
            copies = partial(corrupted_predictions, given, views[fit_on], batch_size, seed)
    else:
        found = _named(given)
        _check_rows(found)
        for name, p in found.items():
            if name in views and len(views[name]) != len(p):
                raise InputError(f"{len(views[name])} rows in {name!r}, as its view has", len(p))
    if corrupted is not None and fit_on in found:
        sizes, rows = [len(p) for p in corrupted], len(found[fit_on])
        if set(sizes) != {rows}:
            wanted = f"corrupted copies of the {rows} rows that are fitted on, in order"
            raise InputError(wanted, f"{', '.join(map(str, sizes)) or 'no'} rows")
    return Calibrated(found, fit_on, lambda: full, copies)


def _named(given: object) -> dict[str, Prediction]:
    """Predictions by split; one alone is called ``test``."""
    found = {"test": given} if isinstance(given, Prediction) else given
    if not isinstance(found, Mapping) or not found:
        got = "an empty mapping" if isinstance(given, Mapping) else type(given).__name__
        raise InputError("a model, a Prediction, or predictions by split name", got)
    for name, p in found.items():
        if not isinstance(p, Prediction):
            raise InputError(f"a Prediction for {name!r}", type(p).__name__)
    return dict(found)


def _check_rows(parts: Mapping[str, Sized]) -> None:
    for name, part in parts.items():
        if len(part) == 0:
            raise InputError(f"at least one row in {name!r}", "none", "Leave empty splits out.")


def _predict(model: nn.Module, data: View | Data, batch_size: int | None = None) -> Prediction:
    """With features where the model has any."""
    found: Prediction = predict(model, data, batch_size=batch_size, features=True)
    return found.to("cpu")


def corrupted_predictions(
    model: nn.Module,
    view: View,
    batch_size: int | None = None,
    seed: int = 0,
    features: bool = False,
) -> list[Prediction]:
    """What a model says of every copy of `gduq.shifts.corruptions.shifted_copies`.

    Args:
        model: As in `gduq.predict`.
        view: The rows; each prediction has them in the same order.
        batch_size: Graphs at a time.
        seed: Of the copies.
        features: Also keep representations.

    Example:
        >>> import torch
        >>> from gduq.nn import GNN
        >>> from torch_geometric.data import Data
        >>> ring = torch.arange(6)
        >>> graph = Data(x=torch.ones(6, 3), edge_index=torch.stack([ring, ring.roll(1)]), y=0)
        >>> said = corrupted_predictions(GNN(3, 4, 2, num_layers=2), View([graph] * 5))
        >>> len(said), len(said[0])
        (8, 5)
    """
    copies = shifted_copies(view, seed)
    return [predict(model, c, batch_size=batch_size, features=features).to("cpu") for c in copies]


def full_graph(model: nn.Module, views: Mapping[str, View]) -> FullGraph | None:
    """What a model says of all nodes of the one graph of a node task; ``None`` for other tasks.

    One pass answers for all splits. The truth of nodes of no split is set to 0; nobody reads it.
    """
    first = next(iter(views.values()))
    graph, rows = first.graphs[0], dict[str, Tensor]()
    for name, view in views.items():
        if view.rows is None or len(view.graphs) != 1 or view.graphs[0] is not graph:
            return None
        rows[name] = view.rows
    if isinstance(graph, HeteroData):
        return None
    bare = graph.__copy__()
    bare.y = None
    p, known = _predict(model, bare), _encoded(model, first)
    target = torch.zeros(len(p), *known.shape[1:], dtype=known.dtype, device=p.samples.device)
    for name, view in views.items():
        target[rows[name]] = _encoded(model, view).to(target)
    return FullGraph(graph, replace(p, target=target), rows)


def _encoded(model: nn.Module, view: View) -> Tensor:
    meaning = checked_predictor(model).target
    return view.target if meaning is None else meaning.encode(view.target)


def ood_names(
    given: Iterable[str] | None,
    predictions: Mapping[str, Prediction],
    splits: Splits | Mapping[str, View] | None,
) -> tuple[str, ...]:
    """The OOD splits: those given, or those that begin with "ood" and the severities."""
    if given is None:
        severe = splits.severities if isinstance(splits, Splits) else {}
        return tuple(n for n in predictions if n.startswith("ood") or n in severe)
    names = tuple(given)
    if unknown := [n for n in names if n not in predictions]:
        raise InputError(f"ood splits from {', '.join(predictions)}", ", ".join(unknown))
    return names
