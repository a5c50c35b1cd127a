"""`evaluate`: one call that says how far to trust a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from gduq.calibration import METHODS, Calibrator
from gduq.data.view import Splits, View
from gduq.errors import InputError
from gduq.evaluation.parts import Case, Settings, Whole, records
from gduq.evaluation.result import COLUMNS, Evaluation
from gduq.metrics.structure import graph_columns
from gduq.prediction import Prediction, predict

__all__ = ["evaluate"]


def evaluate(
    model_or_predictions: nn.Module | Prediction | Mapping[str, Prediction],
    splits: Splits | Mapping[str, View] | None = None,
    calibrators: Iterable[str | Calibrator] | Mapping[str, Calibrator] = (),
    *,
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

    Measured on every split: accuracy, calibration errors, NLL, Brier score, AURC and sharpness. On
    splits other than ``train`` and ``fit_on`` also: predicted accuracy, conformal sets and
    abstention, all fitted on ``fit_on``. On OOD splits: detection by every score that applies.
    Mahalanobis and k-NN scores need features and a ``train`` split; graph calibrators and DAPS need
    a model and a node task on one graph. What cannot be measured is not in the table.

    Args:
        model_or_predictions: A model (then with ``splits``), predictions by split name, or one
            `Prediction`, which is called ``test``.
        splits: A `gduq.data.Splits`, or views by name.
        calibrators: Names of `gduq.calibration.METHODS`, or calibrators; those that are not yet
            fitted are fitted on ``fit_on``.
        fit_on: The split with labels that calibrators and thresholds are fitted on.
        negatives: The ID split that OOD rows are told from: ``id_test``, or ``id_val`` if there is
            none; the paper took ``id_val``.
        ood: Names of the OOD splits; by default those that begin with "ood" and the severities of
            the splits.
        alpha: Accepted share of misses of conformal sets.
        bins: Bins of ECE, adaptive and classwise ECE (``ece100`` always has 100).
        abstain: Wished ``coverage`` and ``accuracy`` of answers; 0.8 and 0.9 by default.
        subgroups: Also measure groups by degree, size, homophily and distance to training nodes;
            needs ``splits``.
        resamples: Bootstrap resamples of every interval.
        level: Coverage of the intervals.
        seed: Seed of everything random.
        batch_size: Graphs at a time, when a model predicts.

    Example:
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
    fitted = _fitted(calibrators, predictions, whole, fit_on)
    columns = _columns(views, predictions) if subgroups else None
    rows = [
        row
        for name, calibrator in {"none": None, **fitted}.items()
        for row in records(_case(name, calibrator, predictions, whole, settings, columns))
    ]
    return _evaluation(rows, settings, predictions, fitted)


def _evaluation(
    rows: list[dict[str, Any]],
    settings: Settings,
    predictions: Mapping[str, Prediction],
    fitted: Mapping[str, Calibrator],
) -> Evaluation:
    import pandas as pd

    kept = asdict(settings) | {"ood": list(settings.ood)}
    return Evaluation(pd.DataFrame(rows, columns=list(COLUMNS)), kept, predictions, fitted)


# -- predictions --------------------------------------------------------------------------------


def _views(splits: Splits | Mapping[str, View] | None) -> dict[str, View]:
    if splits is None:
        return {}
    if isinstance(splits, Mapping):
        return dict(splits)
    if not isinstance(splits, Splits):
        raise InputError("Splits or views by name", type(splits).__name__)
    return {**dict(splits), **splits.severities}


def _predictions(
    given: Any, views: dict[str, View], batch_size: int | None
) -> tuple[dict[str, Prediction], Whole | None]:
    if isinstance(given, nn.Module):
        if not views:
            raise InputError("splits to judge a model on", "none", "Pass splits=.")
        for name, view in views.items():
            _check_rows(name, len(view))
        return _predicted(given, views, batch_size)
    predictions = {"test": given} if isinstance(given, Prediction) else given
    if not isinstance(predictions, Mapping) or not predictions:
        got = "an empty mapping" if isinstance(given, Mapping) else type(given).__name__
        raise InputError("a model, a Prediction, or predictions by split name", got)
    for name, p in predictions.items():
        if not isinstance(p, Prediction):
            raise InputError(f"a Prediction for {name!r}", type(p).__name__)
        _check_rows(name, len(p))
        if name in views and len(views[name]) != len(p):
            raise InputError(f"{len(views[name])} rows in {name!r}, as its view has", len(p))
    return dict(predictions), None


def _check_rows(name: str, rows: int) -> None:
    if rows == 0:
        raise InputError(f"at least one row in {name!r}", "none", "Leave empty splits out.")


def _predicted(
    model: nn.Module, views: dict[str, View], batch_size: int | None
) -> tuple[dict[str, Prediction], Whole | None]:
    first = next(iter(views.values())).graphs[0]
    if all(v.rows is not None and len(v.graphs) == 1 and v.graphs[0] is first
           for v in views.values()):  # fmt: skip
        whole = _whole(model, first, views)
        return {name: whole.p[rows] for name, rows in whole.rows.items()}, whole
    return {name: _predict(model, view, batch_size) for name, view in views.items()}, None


def _whole(model: nn.Module, graph: Any, views: dict[str, View]) -> Whole:
    """One pass over the one graph answers for all splits; nodes of no split get label 0."""
    bare = graph.__copy__()
    bare.y = None
    p = _predict(model, bare, None)
    target = torch.zeros(len(p), dtype=torch.long, device=p.samples.device)
    rows: dict[str, Tensor] = {}
    for name, view in views.items():
        assert view.rows is not None
        rows[name] = view.rows
        target[view.rows] = view.target.to(target)
    return Whole(graph, replace(p, target=target), rows)


def _predict(model: nn.Module, data: Any, batch_size: int | None) -> Prediction:
    """With features where the model has any."""
    try:
        return predict(model, data, batch_size=batch_size, features=True).to("cpu")
    except InputError:
        return predict(model, data, batch_size=batch_size).to("cpu")


def _ood_names(
    given: Iterable[str] | None,
    predictions: Mapping[str, Prediction],
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
    settings: Settings, predictions: Mapping[str, Prediction], negatives: str | None
) -> None:
    sizes = {(p.num_samples, p.num_classes) for p in predictions.values()}
    if len(sizes) > 1:
        raise InputError("splits with equal K and C", f"(K, C) of {sorted(sizes)}")
    if negatives is not None and negatives not in predictions:
        raise InputError(f"negatives from {', '.join(predictions)}", repr(negatives))
    if not 0 < settings.alpha < 1:
        raise InputError("alpha between 0 and 1", settings.alpha)
    unknown = set(settings.abstain) - {"coverage", "accuracy"}
    if unknown:
        raise InputError("abstain with 'coverage' and 'accuracy'", ", ".join(sorted(unknown)))


# -- calibrators --------------------------------------------------------------------------------


def _fitted(
    calibrators: Any, predictions: Mapping[str, Prediction], whole: Whole | None, fit_on: str
) -> dict[str, Calibrator]:
    """The calibrators by name, each fitted."""
    if isinstance(calibrators, (str, Calibrator)):
        calibrators = [calibrators]
    named = calibrators.items() if isinstance(calibrators, Mapping) else (
        (c if isinstance(c, str) else _name(c), c) for c in calibrators
    )  # fmt: skip
    fitted: dict[str, Calibrator] = {}
    for name, given in named:
        calibrator = _built(given, predictions, whole) if isinstance(given, str) else given
        if not isinstance(calibrator, Calibrator):
            raise InputError("calibrators or their names", type(calibrator).__name__)
        if name in fitted or name == "none":
            raise InputError("calibrators with different names", f"{name!r} twice or 'none'")
        if not calibrator.fitted:
            _fit(calibrator, name, predictions, whole, fit_on)
        fitted[name] = calibrator
    return fitted


def _name(calibrator: Any) -> str:
    known = {cls: name for name, cls in METHODS.items()}
    return known.get(type(calibrator), type(calibrator).__name__)


def _built(name: str, predictions: Mapping[str, Prediction], whole: Whole | None) -> Calibrator:
    if name not in METHODS:
        raise InputError(f"a calibrator from {', '.join(METHODS)}", repr(name))
    options: dict[str, Any] = {}
    if METHODS[name].needs_graph:
        if whole is None:
            raise InputError(
                f"a model and a node task on one graph for {name!r}",
                "neither" if not predictions else "other splits or predictions alone",
                "Pass the model with its Splits, or a fitted calibrator.",
            )
        options["graph"] = whole.graph
        if name == "gats":
            options["train_rows"] = whole.rows.get("train")
    if METHODS[name].needs_features:
        options["train"] = predictions.get("train")
    return METHODS[name](**options)


def _fit(
    calibrator: Calibrator,
    name: str,
    predictions: Mapping[str, Prediction],
    whole: Whole | None,
    fit_on: str,
) -> None:
    if fit_on not in predictions:
        raise InputError(
            f"a split {fit_on!r} to fit {name!r} on", ", ".join(predictions), "Pass fit_on=."
        )
    if whole is None:
        calibrator.fit(predictions[fit_on])
    else:
        calibrator.fit(whole.p, rows=whole.rows[fit_on])


def _case(
    name: str,
    calibrator: Calibrator | None,
    predictions: Mapping[str, Prediction],
    whole: Whole | None,
    settings: Settings,
    columns: Mapping[str, Mapping[str, Tensor]] | None,
) -> Case:
    if calibrator is None:
        return Case(name, predictions, settings, whole, columns)
    if whole is None:
        mapped = {split: calibrator(p) for split, p in predictions.items()}
        return Case(name, mapped, settings, None, columns)
    whole = replace(whole, p=calibrator(whole.p))
    mapped = {split: whole.p[rows] for split, rows in whole.rows.items()}
    return Case(name, mapped, settings, whole, columns)


def _columns(
    views: Mapping[str, View], predictions: Mapping[str, Prediction]
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
