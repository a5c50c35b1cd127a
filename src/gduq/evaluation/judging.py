"""`evaluate`: one call that says how far to trust a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Dataset, HeteroData

from gduq.calibration import Calibrator
from gduq.data.view import Splits, View
from gduq.errors import InputError
from gduq.evaluation.calibrated import Data, case_of, fit_all
from gduq.evaluation.kinds import records
from gduq.evaluation.measuring import Settings, Whole
from gduq.evaluation.evaluation import COLUMNS, Evaluation
from gduq.evaluation.shifted_copies import corrupted_predictions
from gduq.metrics.structure import graph_columns
from gduq.prediction import Hypotheses, predict

__all__ = ["evaluate", "whole_graph"]


def evaluate(
    model_or_predictions: nn.Module | Hypotheses | Mapping[str, Hypotheses],
    splits: Splits | Mapping[str, View] | None = None,
    calibrators: Iterable[str | Calibrator] | Mapping[str, str | Calibrator] = (),
    *,
    corrupted: Sequence[Hypotheses] | None = None,
    fit_on: str = "id_val",
    negatives: str | None = None,
    ood: Iterable[str] | None = None,
    alpha: float = 0.1,
    bins: int = 15,
    abstain: Mapping[str, float] | None = None,
    subgroups: bool = False,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    batch_size: int | None = None,
) -> Evaluation:
    """Judge a model, or predictions, on every split, with and without calibration.

    Measured on every split, by what the predictions are about:

    * classes: accuracy, balanced accuracy, what always answering the most common class would give,
      ROC-AUC and average precision, calibration errors, NLL, Brier score, AURC and sharpness;
    * values: RMSE, MAE, R², NLL, CRPS, coverage and width of 50, 80, 90 and 95 % intervals,
      miscalibration area, ENCE, rank correlation of deviation and error, AURC and sharpness; of
      several values each under its name (``variant``);
    * labels: the measures of classes for each label under its name, and without a name their mean.

    On splits other than ``train`` and ``fit_on`` also conformal sets or intervals and abstention
    and, of classes and labels, predicted accuracy: all fitted on ``fit_on``. On OOD splits:
    detection by every score that applies.

    No row serves both a calibrator and a threshold, since thresholds on rows that a flexible
    calibrator has seen promise too much. So for those three kinds ``fit_on`` is cut into two random
    halves: a calibrator is fitted anew on one, thresholds on the other. All other numbers are of
    the calibrator fitted on all of ``fit_on``; without one, thresholds take all of it too. A
    calibrator that comes fitted is used as it is: fit it on other rows than ``fit_on``.

    Novelty needs a model that `gduq.fit` trained, Mahalanobis and k-NN scores need features and a
    ``train`` split; graph calibrators and DAPS need
    a model and a node task on one graph. What cannot be measured is not in the table; which named
    calibrators could not be fitted, and why, is in ``settings["skipped"]``.

    Args:
        model_or_predictions: A model (then with ``splits``), predictions by split name, or one
            prediction, which is called ``test``.
        splits: A `gduq.data.Splits`, or views by name.
        calibrators: Names of `gduq.calibration.METHODS`, or calibrators; those that are not yet
            fitted are fitted on ``fit_on``. By name, those with parameters for each class leave
            absent classes as they are (``missing="keep"``). A name with ``+corrupted`` at its end,
            such as ``"temperature+corrupted"``, is fitted on shifted copies of ``fit_on`` too.
        corrupted: Those copies: predictions of the rows of ``fit_on``, in order, with labels. A
            model makes its own by default, see `gduq.shifts.copies`.
        fit_on: The split with labels that calibrators and thresholds are fitted on.
        negatives: The ID split that OOD rows are told from: ``id_test``, or ``id_val`` if there is
            none; the paper took ``id_val``.
        ood: Names of the OOD splits; by default those that begin with "ood" and the severities of
            the splits.
        alpha: Accepted share of misses of conformal sets.
        bins: Bins of ECE, adaptive and classwise ECE (``ece100`` always has 100).
        abstain: Wished ``coverage`` and ``accuracy`` of answers; 0.8 and 0.9 by default. Values
            have no accuracy.
        subgroups: Also measure groups by degree, size, homophily and distance to training nodes;
            needs ``splits``.
        resamples: Bootstrap resamples of every interval.
        level: Coverage of the intervals.
        seed: Seed of everything random.
        batch_size: Graphs at a time, when a model predicts.

    Example:
        >>> from gduq.prediction import Prediction
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.randint(3, (300,), generator=g)
        >>> z = 4 * (torch.nn.functional.one_hot(y, 3) + torch.randn(300, 3, generator=g))
        >>> p = {"id_val": Prediction(z[:150], y[:150]), "id_test": Prediction(z[150:], y[150:])}
        >>> found = evaluate(p, calibrators=["temperature"], resamples=100)
        >>> found.value("id_test", "nll", "temperature").value < found.value("id_test", "nll").value
        True
    """
    views = _views(splits)
    predictions, whole = _predictions(model_or_predictions, views, batch_size)
    settings = Settings(
        fit_on=fit_on,
        negatives=negatives or ("id_test" if "id_test" in predictions else "id_val"),
        ood=_ood_names(ood, predictions, splits),
        alpha=alpha,
        bins=bins,
        abstain={"coverage": 0.8, "accuracy": 0.9} if abstain is None else dict(abstain),
        resamples=resamples,
        level=level,
        seed=seed,
    )
    _check(settings, predictions, negatives)
    columns = _columns(views, predictions) if subgroups else None
    _check_copies(corrupted, predictions.get(fit_on))
    copies = _copies(model_or_predictions, views.get(fit_on), corrupted, batch_size, seed)
    data = Data(predictions, whole, settings, columns, copies)
    skipped: dict[str, str] = {}
    fitted = fit_all(calibrators, data, skipped)
    rows = [
        row
        for name, pair in {"none": None, **fitted}.items()
        for row in records(case_of(name, pair, data))
    ]
    return _evaluation(rows, data, {name: pair.full for name, pair in fitted.items()}, skipped)


def _evaluation(
    rows: list[dict[str, Any]],
    data: Data,
    fitted: Mapping[str, Calibrator],
    skipped: Mapping[str, str],
) -> Evaluation:
    import pandas as pd

    kept = asdict(data.settings) | {"ood": list(data.settings.ood), "skipped": dict(skipped)}
    kept["about"] = next(iter(data.predictions.values())).kind
    return Evaluation(pd.DataFrame(rows, columns=list(COLUMNS)), kept, data.predictions, fitted)


# -- predictions --------------------------------------------------------------------------------


def _views(splits: Splits | Mapping[str, View] | None) -> dict[str, View]:
    if splits is None:
        return {}
    if isinstance(splits, Mapping):
        return {name: _view(name, data) for name, data in splits.items()}
    if not isinstance(splits, Splits):
        raise InputError("Splits or views by name", type(splits).__name__)
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


def _predictions(
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


def _copies(
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


def _check_copies(corrupted: Sequence[Hypotheses] | None, rows: Hypotheses | None) -> None:
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


def _ood_names(
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


def _check(
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


def _columns(
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
