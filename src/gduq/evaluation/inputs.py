"""What `evaluate` takes: a model or predictions, the data, and settings; read and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Dataset, HeteroData

from gduq.errors import InputError
from gduq.evaluation.calibrated import Calibrated, Whole
from gduq.evaluation.case import EvaluationSettings
from gduq.graphs.splits import Splits
from gduq.graphs.view import View
from gduq.metrics.structure import graph_columns
from gduq.models.network import checked_predictor
from gduq.prediction import Prediction, predict
from gduq.shifts.corruptions import shifted_copies

__all__ = ["answers_of", "check_settings", "corrupted_predictions", "group_columns", "ood_names",
           "views_of", "whole_graph"]  # fmt: skip


def views_of(splits: Splits | Mapping[str, View] | None) -> dict[str, View]:
    """Views by name."""
    if isinstance(splits, Splits):
        return {**dict(splits), **splits.severities}
    if not isinstance(splits, Mapping | None):
        raise InputError(
            "Splits or views by name", type(splits).__name__, 'Name it: {"test": view}.'
        )
    return {name: _view(name, data) for name, data in (splits or {}).items()}


def _view(name: str, data: Any) -> View:
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
    whole: Whole | None = None
    copies = None if corrupted is None else partial(list[Any], corrupted)
    if isinstance(given, nn.Module):
        if not views:
            raise InputError("splits to judge a model on", "none", "Pass splits=.")
        _check_rows(views)
        whole = whole_graph(given, views)
        if whole is None:
            found = {name: _predict(given, view, batch_size) for name, view in views.items()}
        else:
            found = {name: whole.p[rows] for name, rows in whole.rows.items()}
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
    return Calibrated(found, fit_on, lambda: whole, copies)


def _named(given: Any) -> dict[str, Any]:
    """Predictions by split; one alone is called ``test``."""
    found = {"test": given} if isinstance(given, Prediction) else given
    if not isinstance(found, Mapping) or not found:
        got = "an empty mapping" if isinstance(given, Mapping) else type(given).__name__
        raise InputError("a model, a Prediction, or predictions by split name", got)
    for name, p in found.items():
        if not isinstance(p, Prediction):
            raise InputError(f"a Prediction for {name!r}", type(p).__name__)
    return dict(found)


def _check_rows(parts: Mapping[str, Any]) -> None:
    for name, part in parts.items():
        if len(part) == 0:
            raise InputError(f"at least one row in {name!r}", "none", "Leave empty splits out.")


def _predict(model: nn.Module, data: Any, batch_size: int | None = None) -> Any:
    """With features where the model has any."""
    return predict(model, data, batch_size=batch_size, features=True).to("cpu")


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


def whole_graph(model: nn.Module, views: Mapping[str, View]) -> Whole | None:
    """What a model says of all nodes of the one graph of a node task; ``None`` for other tasks.

    One pass answers for all splits. Nodes of no split have no truth: of labels it is missing, of
    classes and values 0, which nobody reads.
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
    if p.kind == "labels":
        target = target.to(p.samples.dtype).fill_(torch.nan)
    for name, view in views.items():
        target[rows[name]] = _encoded(model, view).to(target)
    return Whole(graph, replace(p, target=target), rows)


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


def check_settings(
    settings: EvaluationSettings, predictions: Mapping[str, Prediction], negatives: str | None
) -> None:
    """Raise for settings that fit no such predictions."""
    if len(kinds := {p.kind for p in predictions.values()}) > 1:
        raise InputError("splits of one kind", ", ".join(sorted(kinds)))
    if len(sizes := {(p.num_samples, p.samples.size(2)) for p in predictions.values()}) > 1:
        raise InputError("splits with equal K and C", f"(K, C) of {sorted(sizes)}")
    if negatives is not None and negatives not in predictions:
        raise InputError(f"negatives from {', '.join(predictions)}", repr(negatives))
    if not 0 < settings.alpha < 1:
        raise InputError("alpha between 0 and 1", settings.alpha)
    if unknown := set(settings.abstain) - {"coverage", "accuracy"}:
        raise InputError("abstain with 'coverage' and 'accuracy'", ", ".join(sorted(unknown)))


def group_columns(
    views: Mapping[str, View], predictions: Mapping[str, Prediction]
) -> dict[str, dict[str, Tensor]]:
    """What each split is grouped by: everything its graphs say that differs between rows."""
    if not views:
        raise InputError("splits for subgroups=True", "none", "Pass splits=.")
    train, columns = views.get("train"), {}
    for name in (name for name in predictions if name in views):
        view, near = views[name], None
        if train is not None and view.rows is not None and train.rows is not None:
            same = len(view.graphs) == 1 and train.graphs[0] is view.graphs[0]
            near = train if same and name != "train" else None
        found = graph_columns(view, near)
        columns[name] = {k: v for k, v in found.items() if torch.unique(v).numel() > 1}
    return columns
