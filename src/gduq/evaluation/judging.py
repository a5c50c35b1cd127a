"""`evaluate`: one call that says how far to trust a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from gduq.calibration import FIXED, METHODS, Calibrator, parse_name
from gduq.errors import InputError
from gduq.evaluation import measures
from gduq.evaluation.calibrated import Calibrated
from gduq.evaluation.case import Case, EvaluationSettings, Record
from gduq.evaluation.evaluation import COLUMNS, Evaluation
from gduq.evaluation.inputs import answers_of, check_settings, group_columns, ood_names, views_of
from gduq.evaluation.thresholds import thresholds
from gduq.graphs.splits import Splits
from gduq.graphs.view import View
from gduq.prediction import Prediction

__all__ = ["evaluate"]


def evaluate(
    model_or_predictions: nn.Module | Prediction | Mapping[str, Prediction] | Calibrated,
    splits: Splits | Mapping[str, View] | None = None,
    calibrators: Iterable[str | Calibrator] | Mapping[str, str | Calibrator] = (),
    *,
    corrupted: Sequence[Prediction] | None = None,
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

    On every split: metrics of its kind with intervals. Of several labels or values each has rows
    under its name (``variant``), and the mean over labels has rows without one. On splits other
    than ``train`` and ``fit_on``: conformal sets or intervals, abstention and, of classes and
    labels, predicted accuracy, all fitted on ``fit_on``. On OOD splits: detection by every score
    that applies. What cannot be measured is not in the table; which named calibrators could not be
    fitted, and why, is in ``settings["skipped"]``.

    No row serves both a calibrator and a threshold: thresholds on rows that a flexible calibrator
    has seen promise too much. So for thresholds a calibrator is fitted anew on a random half of
    ``fit_on``, and they on the other half. A calibrator that comes fitted is used as it is: fit it
    on other rows than ``fit_on``.

    Args:
        model_or_predictions: A model (then with ``splits``), predictions by split name, one
            prediction, which is called ``test``, or a `gduq.evaluation.calibrated.Calibrated`.
        splits: A `gduq.data.Splits`, or views by name.
        calibrators: Names of `gduq.calibration.METHODS`, or calibrators; those that are not yet
            fitted are fitted on ``fit_on``, by name with ``missing="keep"``. A name that ends in
            ``+corrupted`` is fitted on shifted copies of ``fit_on`` too.
        corrupted: Those copies: predictions of the rows of ``fit_on``, in order, with labels. A
            model makes its own by default, see `gduq.shifts.corruptions`.
        fit_on: The split with labels that calibrators and thresholds are fitted on.
        negatives: The ID split that OOD rows are told from: ``id_test``, or else ``id_val``.
        ood: The OOD splits; by default the severities, and those that begin with "ood".
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
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.randint(3, (300,), generator=g)
        >>> z = 4 * (torch.nn.functional.one_hot(y, 3) + torch.randn(300, 3, generator=g))
        >>> val, test = (ClassPrediction(z[i::2], y[i::2]) for i in (0, 1))
        >>> p = {"id_val": val, "id_test": test}
        >>> found = evaluate(p, calibrators=["temperature"], resamples=100)
        >>> found.value("id_test", "nll", "temperature").value < found.value("id_test", "nll").value
        True
    """
    views = views_of(splits)
    answers = model_or_predictions
    if not isinstance(answers, Calibrated):
        answers = answers_of(answers, views, fit_on, corrupted, batch_size, seed)
    raw = answers.raw
    settings = EvaluationSettings(
        fit_on=answers.fit_on,
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
    case = Case("none", answers, settings, group_columns(views, raw) if subgroups else None)
    return _judged(case, _named(calibrators))


def _judged(plain: Case, calibrators: Iterable[tuple[str, str | Calibrator]]) -> Evaluation:
    """Everything measured, without and with every calibrator; see `evaluate`."""
    import pandas as pd

    answers, settings = plain.answers, plain.settings
    fitted, skipped = dict[str, Calibrator](), dict[str, str]()
    rows = list(_rows(plain, plain))
    for name, given in calibrators:
        if name in fitted or name in skipped or name == "none":
            raise InputError("calibrators with different names", f"{name!r} twice or 'none'")
        method = given if isinstance(given, str) else ""
        _check(given, answers)
        try:
            calibrator = answers.make(given) if isinstance(given, str) else given
            anew = None if calibrator.fitted else copy(calibrator)
            fitted[name] = answers.fit(calibrator, method)
        except InputError as error:
            if not method:  # who configures one wants to know that it fails
                raise
            skipped[name] = str(error)
            continue
        case = replace(plain, calibrator=name, answers=answers.under(fitted[name]))
        held: Case | None = case
        try:
            if anew is not None:
                held = replace(case, answers=answers.held_out(anew, method, settings.seed))
        except InputError as error:
            skipped[f"{name}: thresholds"] = f"on half of the rows: {error}"
            held = None
        rows += _rows(case, held)
    kept = asdict(settings) | {"ood": list(settings.ood), "skipped": skipped, "about": plain.kind}
    return Evaluation(pd.DataFrame(rows, columns=list(COLUMNS)), kept, answers.raw, fitted)


def _rows(case: Case, held: Case | None) -> Iterator[Record]:
    """All rows of the table for one calibrator; ``held`` is what thresholds are put on."""
    yield from measures.measured(case)
    yield from measures.detection(case)
    if held is not None:
        yield from thresholds(held)
    yield from measures.subgroups(case)


def _named(calibrators: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(calibrators, Mapping):
        yield from calibrators.items()
        return
    known = {cls: name for name, cls in METHODS.items()}
    for given in [calibrators] if isinstance(calibrators, (str, Calibrator)) else calibrators:
        if isinstance(given, str):
            method, copies = parse_name(given)
            name = f"{method}+corrupted" if copies else method
            yield name, name
        else:
            yield known.get(type(given), type(given).__name__), given


def _check(given: Any, answers: Calibrated) -> None:
    """Raise for mistakes in the call; these are no calibrator's fault."""
    if isinstance(given, str):
        ready = parse_name(given)[0] in FIXED
    elif isinstance(given, Calibrator):
        ready = given.fitted
    else:
        raise InputError("calibrators or their names", type(given).__name__)
    if not ready:
        _ = answers.validation
