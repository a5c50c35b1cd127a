"""What `evaluate` takes: a model or predictions, the data, and settings; read and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Dataset, HeteroData

from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.errors import InputError
from gduq.evaluation.calibrated import Whole
from gduq.evaluation.case import Settings
from gduq.metrics.structure import graph_columns
from gduq.prediction import Hypotheses, predict
from gduq.shifts.copies import shifted_copies

__all__ = [
    "check_copies",
    "check_settings",
    "copies_of",
    "corrupted_predictions",
    "group_columns",
    "ood_names",
    "predictions_of",
    "views_of",
    "whole_graph",
]


def views_of(splits: Splits | Mapping[str, View] | None) -> dict[str, View]:
    if splits is None:
        return {}
    if isinstance(splits, Mapping):
        return {name: _view(name, data) for name, data in splits.items()}
    if not isinstance(splits, Splits):
        raise InputError(
            "Splits or views by name", type(splits).__name__, 'Name it: {"test": view}.'
        )
    return {**dict(splits), **splits.severities}


def _view(name: str, data: Any) -> View:
    if isinstance(data, View):
        return data
    if isinstance(data, (list, tuple, Dataset)):
        return View(data)
    raise InputError(
        f"a View or a list of graphs as {name!r}",
        type(data).__name__,
        "Pass gduq.data.View(data, mask) for nodes; of a loader, its dataset.",
    )


def predictions_of(
    given: Any, views: dict[str, View], batch_size: int | None
) -> tuple[dict[str, Any], Whole | None]:
    if isinstance(given, nn.Module):
        if not views:
            raise InputError("splits to judge a model on", "none", "Pass splits=.")
        for name, view in views.items():
            _check_rows(name, len(view))
        return _predicted(given, views, batch_size)
    predictions = {"test": given} if isinstance(given, Hypotheses) else given
    if not isinstance(predictions, Mapping) or not predictions:
        got = "an empty mapping" if isinstance(given, Mapping) else type(given).__name__
        raise InputError("a model, a Prediction, or predictions by split name", got)
    for name, p in predictions.items():
        if not isinstance(p, Hypotheses):
            raise InputError(f"a Prediction for {name!r}", type(p).__name__)
        _check_rows(name, len(p))
        if name in views and len(views[name]) != len(p):
            raise InputError(f"{len(views[name])} rows in {name!r}, as its view has", len(p))
    return dict(predictions), None


def copies_of(
    given: Any,
    view: View | None,
    corrupted: Sequence[Hypotheses] | None,
    batch_size: int | None,
    seed: int,
) -> Callable[[], Sequence[Any]] | None:
    """Where corrupted copies come from, if from anywhere."""
    if corrupted is not None:
        return lambda: corrupted
    if isinstance(given, nn.Module) and view is not None:
        return lambda: corrupted_predictions(given, view, batch_size, seed)
    return None


def corrupted_predictions(
    model: nn.Module,
    view: View,
    batch_size: int | None = None,
    seed: int = 0,
    features: bool = False,
) -> list[Hypotheses]:
    """What a model says of every copy of `gduq.shifts.copies.shifted_copies`.

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


def check_copies(corrupted: Sequence[Hypotheses] | None, rows: Hypotheses | None) -> None:
    if corrupted is None or rows is None:
        return
    sizes = [len(p) for p in corrupted]
    if not sizes or set(sizes) != {len(rows)}:
        raise InputError(
            f"corrupted copies of the {len(rows)} rows that are fitted on, in order",
            f"{', '.join(map(str, sizes)) or 'no'} rows",
        )


def _check_rows(name: str, rows: int) -> None:
    if rows == 0:
        raise InputError(f"at least one row in {name!r}", "none", "Leave empty splits out.")


def _predicted(
    model: nn.Module, views: dict[str, View], batch_size: int | None
) -> tuple[dict[str, Any], Whole | None]:
    whole = whole_graph(model, views)
    if whole is not None:
        return {name: whole.p[rows] for name, rows in whole.rows.items()}, whole
    return {name: _predict(model, view, batch_size) for name, view in views.items()}, None


def whole_graph(model: nn.Module, views: Mapping[str, View]) -> Whole | None:
    """What a model says of all nodes of the one graph of a node task; ``None`` for other tasks.

    One pass answers for all splits. Nodes of no split have no truth: of labels it is missing, of
    classes and values 0, which nobody reads.
    """
    graph = next(iter(views.values())).graphs[0]
    if isinstance(graph, HeteroData):
        return None
    if any(v.rows is None or len(v.graphs) != 1 or v.graphs[0] is not graph
           for v in views.values()):  # fmt: skip
        return None
    bare = graph.__copy__()
    bare.y = None
    p = _predict(model, bare, None)
    known = next(iter(views.values())).target
    target = torch.zeros(len(p), *known.shape[1:], dtype=known.dtype, device=p.samples.device)
    if p.kind == "labels":
        target = target.to(p.samples.dtype).fill_(torch.nan)
    rows: dict[str, Tensor] = {}
    for name, view in views.items():
        assert view.rows is not None
        rows[name] = view.rows
        target[view.rows] = view.target.to(target)
    return Whole(graph, replace(p, target=target), rows)


def _predict(model: nn.Module, data: Any, batch_size: int | None) -> Any:
    """With features where the model has any."""
    return predict(model, data, batch_size=batch_size, features=True).to("cpu")


def ood_names(
    given: Iterable[str] | None,
    predictions: Mapping[str, Hypotheses],
    splits: Splits | Mapping[str, View] | None,
) -> tuple[str, ...]:
    if given is not None:
        names = tuple(given)
        unknown = [n for n in names if n not in predictions]
        if unknown:
            raise InputError(f"ood splits from {', '.join(predictions)}", ", ".join(unknown))
        return names
    severe = splits.severities if isinstance(splits, Splits) else {}
    return tuple(n for n in predictions if n.startswith("ood") or n in severe)


def check_settings(
    settings: Settings, predictions: Mapping[str, Hypotheses], negatives: str | None
) -> None:
    if len(kinds := {p.kind for p in predictions.values()}) > 1:
        raise InputError("splits of one kind", ", ".join(sorted(kinds)))
    sizes = {(p.num_samples, p.samples.size(2)) for p in predictions.values()}
    if len(sizes) > 1:
        raise InputError("splits with equal K and C", f"(K, C) of {sorted(sizes)}")
    if negatives is not None and negatives not in predictions:
        raise InputError(f"negatives from {', '.join(predictions)}", repr(negatives))
    if not 0 < settings.alpha < 1:
        raise InputError("alpha between 0 and 1", settings.alpha)
    unknown = set(settings.abstain) - {"coverage", "accuracy"}
    if unknown:
        raise InputError("abstain with 'coverage' and 'accuracy'", ", ".join(sorted(unknown)))


def group_columns(
    views: Mapping[str, View], predictions: Mapping[str, Hypotheses]
) -> dict[str, dict[str, Tensor]]:
    """What each split is grouped by: everything its graphs say that differs between rows."""
    if not views:
        raise InputError("splits for subgroups=True", "none", "Pass splits=.")
    train, columns = views.get("train"), {}
    for name in predictions:
        if name in views:
            view = views[name]
            same = train is not None and view.rows is not None and train.rows is not None
            same = same and len(view.graphs) == 1 and train.graphs[0] is view.graphs[0]  # type: ignore[union-attr]
            found = graph_columns(view, train if same and name != "train" else None)
            columns[name] = {k: v for k, v in found.items() if torch.unique(v).numel() > 1}
    return columns
