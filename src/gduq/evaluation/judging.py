"""`evaluate`: one call that says how far to trust a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from gduq.calibration import METHODS, Calibrator, method_name
from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.errors import InputError
from gduq.evaluation import measures, thresholds
from gduq.evaluation.calibrated import Calibrated
from gduq.evaluation.case import Case, Record, Settings
from gduq.evaluation.detection import detection
from gduq.evaluation.evaluation import COLUMNS, Evaluation
from gduq.evaluation.inputs import (
    check_copies,
    check_settings,
    copies_of,
    group_columns,
    ood_names,
    predictions_of,
    views_of,
)
from gduq.evaluation.named_calibrators import FIXED, check_name
from gduq.prediction import Hypotheses

__all__ = ["evaluate"]


def evaluate(
    model_or_predictions: nn.Module | Hypotheses | Mapping[str, Hypotheses] | Calibrated,
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
        model_or_predictions: A model (then with ``splits``), predictions by split name, one
            prediction, which is called ``test``, or a `gduq.evaluation.calibrated.Calibrated`.
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
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.randint(3, (300,), generator=g)
        >>> z = 4 * (torch.nn.functional.one_hot(y, 3) + torch.randn(300, 3, generator=g))
        >>> p = {"id_val": Prediction(z[:150], y[:150]), "id_test": Prediction(z[150:], y[150:])}
        >>> found = evaluate(p, calibrators=["temperature"], resamples=100)
        >>> found.value("id_test", "nll", "temperature").value < found.value("id_test", "nll").value
        True
    """
    views = views_of(splits)
    if isinstance(model_or_predictions, Calibrated):
        calibrated = model_or_predictions
    else:
        predictions, whole = predictions_of(model_or_predictions, views, batch_size)
        check_copies(corrupted, predictions.get(fit_on))
        copies = copies_of(model_or_predictions, views.get(fit_on), corrupted, batch_size, seed)
        calibrated = Calibrated(predictions, fit_on, lambda: whole, copies)
    raw = calibrated.raw
    settings = Settings(
        fit_on=calibrated.fit_on,
        negatives=negatives or ("id_test" if "id_test" in raw else "id_val"),
        ood=ood_names(ood, raw, splits),
        alpha=alpha,
        bins=bins,
        abstain={"coverage": 0.8, "accuracy": 0.9} if abstain is None else dict(abstain),
        resamples=resamples,
        level=level,
        seed=seed,
    )
    check_settings(settings, raw, negatives)
    columns = group_columns(views, raw) if subgroups else None
    return _judged(calibrated, calibrators, settings, columns)


def _judged(
    calibrated: Calibrated,
    calibrators: Any,
    settings: Settings,
    columns: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> Evaluation:
    """Everything measured, without and with every calibrator; see `evaluate`."""
    import pandas as pd

    fitted: dict[str, Calibrator] = {}
    skipped: dict[str, str] = {}
    rows = list(_records(Case("none", calibrated.raw, settings, calibrated.whole, columns)))
    for name, given in _named(calibrators):
        if name in fitted or name in skipped or name == "none":
            raise InputError("calibrators with different names", f"{name!r} twice or 'none'")
        _check_calibrator(name, given, calibrated)
        method = given if isinstance(given, str) else ""
        try:
            calibrator = calibrated.make(method) if method else given
            unfitted = None if calibrator.fitted else copy(calibrator)
            fitted[name] = calibrated.fit(calibrator, method)
        except InputError as error:
            if not method:  # who configures one wants to know that it fails
                raise
            skipped[name] = str(error)
            continue
        case = _case(name, fitted[name], calibrated, settings, columns)
        if unfitted is not None:
            held = _held(name, method, unfitted, calibrated, settings, skipped)
            case = replace(case, held=held)
        rows += _records(case)
    kept = asdict(settings) | {"ood": list(settings.ood), "skipped": skipped}
    kept["about"] = next(iter(calibrated.raw.values())).kind
    return Evaluation(pd.DataFrame(rows, columns=list(COLUMNS)), kept, calibrated.raw, fitted)


def _records(case: Case) -> Iterator[Record]:
    """All rows of the table for one calibrator."""
    for part, rows in _parts(case):
        for row in rows:
            yield {"kind": part, "calibrator": case.calibrator, "variant": "", "against": ""} | row


def _parts(case: Case) -> Iterator[tuple[str, Iterable[Record]]]:
    held, values = case.held or case, case.kind == "values"
    answers = partial(thresholds.conformal_answers, names=thresholds.ANSWERS[case.kind])
    yield "metrics", measures.measured(case)
    yield "ood", detection(case)
    if not values:
        yield "error prediction", held.each(thresholds.error_prediction)
    yield "conformal", held.each(answers)
    yield "abstention", held.each(thresholds.abstention)
    yield "subgroups", case.each(measures.subgroups) if values else measures.subgroups(case)


def _case(
    name: str,
    calibrator: Calibrator,
    calibrated: Calibrated,
    settings: Settings,
    columns: Any = None,
) -> Case:
    whole = calibrated.whole
    if whole is not None:
        whole = replace(whole, p=calibrator(whole.p))
    return Case(name, calibrated.mapped(calibrator), settings, whole, columns)


def _held(
    name: str,
    method: str,
    calibrator: Calibrator,
    calibrated: Calibrated,
    settings: Settings,
    skipped: dict[str, str],
) -> Case:
    """Predictions of a calibrator that saw half of ``fit_on``, with the other half left of it."""
    try:
        half, rest = calibrated.held_out(calibrator, method, settings.seed)
    except InputError as error:
        skipped[f"{name}: thresholds"] = f"on half of the rows: {error}"
        return Case(name, {}, settings)
    return _case(name, half, calibrated.without(rest), settings)


def _named(calibrators: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(calibrators, (str, Calibrator)):
        calibrators = [calibrators]
    if isinstance(calibrators, Mapping):
        yield from calibrators.items()
        return
    known = {cls: name for name, cls in METHODS.items()}
    for given in calibrators:
        if isinstance(given, str):
            yield method_name(given), method_name(given)
        else:
            yield known.get(type(given), type(given).__name__), given


def _check_calibrator(name: str, given: Any, calibrated: Calibrated) -> None:
    """Raise for mistakes in the call; these are no calibrator's fault."""
    if isinstance(given, str):
        check_name(given)
        if given in FIXED:
            return
    if not isinstance(given, (str, Calibrator)):
        raise InputError("calibrators or their names", type(given).__name__)
    if isinstance(given, Calibrator) and given.fitted:
        return
    splits, fit_on = calibrated.raw, calibrated.fit_on
    if fit_on not in splits:
        raise InputError(
            f"a split {fit_on!r} to fit {name!r} on", ", ".join(splits), "Pass fit_on=."
        )
    splits[fit_on].require_target()
