"""What is measured of predictions about classes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from gduq import conformal, generalization, metrics
from gduq.abstention import Abstention
from gduq.errors import InputError
from gduq.evaluation import measuring
from gduq.evaluation.measuring import Case, Metric, Record, record
from gduq.novelty import ood_scores as ood

__all__ = ["abstention", "conformal_sets", "error_prediction", "measures", "parts_of", "rare"]

_OF_NODES = {"daps": conformal.DAPS}  # those that need the graph around the rows


def parts_of(case: Case) -> Iterator[tuple[str, Iterable[Record]]]:
    """Rows of the table by kind."""
    held = case.thresholds
    known = measures(case.settings.bins)
    yield "metrics", measuring.measured(case, lambda p: known, {"sharpness": metrics.sharpness})
    yield "ood", measuring.detection(case, (*ood.scores_for("classes"), "mahalanobis", "knn"))
    yield "error prediction", error_prediction(held)
    yield "conformal", conformal_sets(held)
    yield "abstention", abstention(held)
    few = {name: known[name] for name in ("accuracy", "ece", "nll", "brier")}
    yield "subgroups", measuring.subgroups(case, few)


def rare() -> dict[str, Metric]:
    """Measures that a class with few rows counts in as much as any other."""
    return {
        "balanced_accuracy": metrics.balanced_accuracy,
        "roc_auc": metrics.roc_auc,
        "average_precision": metrics.average_precision,
    }


def measures(bins: int) -> dict[str, Metric]:
    """Everything that is measured of classes, by name."""
    return {
        "accuracy": metrics.accuracy,
        **rare(),
        "ece": partial(metrics.ece, bins=bins, strict=False),
        "ece_debiased": partial(metrics.ece, bins=bins, debias=True, strict=False),
        "ece100": partial(metrics.ece, bins=100, strict=False),
        "adaptive_ece": partial(metrics.adaptive_ece, bins=bins, strict=False),
        "classwise_ece": partial(metrics.classwise_ece, bins=bins, strict=False),
        "smooth_ece": metrics.smooth_ece,
        "nll": metrics.nll,
        "brier": metrics.brier,
        **{
            f"brier_{term}": partial(metrics.brier_term, term=term, bins=bins, strict=False)
            for term in metrics.BrierDecomposition._fields
        },
        "aurc": metrics.aurc,
        "excess_aurc": metrics.excess_aurc,
        "sharpness": metrics.sharpness,
    }


def error_prediction(case: Case) -> Iterator[Record]:
    """Accuracies predicted without labels, and how far they are off."""
    if case.validation is None:
        return
    for split, p in case.judged():
        for method in generalization.METHODS:
            if method == "disagreement" and p.num_samples == 1:
                continue
            predicted, error = generalization.estimate_interval(
                case.validation,
                p,
                method,
                **case.settings.sampling,
            )
            more = {"variant": method, "against": case.settings.fit_on}
            yield record(split, p, "predicted_accuracy", predicted, **more)
            if error is not None:
                yield record(split, p, "error", error, **more)


def conformal_sets(case: Case, names: Iterable[str] = tuple(conformal.METHODS)) -> Iterator[Record]:
    """Coverage and size of conformal sets."""
    if case.validation is None:
        return
    for name in names:
        if name in _OF_NODES and case.whole is None:
            continue
        for split, sets in _sets(case, name, conformal.METHODS[name]):
            p = case.predictions[split]
            more = {"variant": name, "against": case.settings.fit_on}
            if p.target is not None:
                yield record(split, p, "coverage", measuring.share(sets.covered, case), **more)
            yield record(split, p, "set_size", measuring.mean(sets.size, case), **more)
            yield from measuring.shift(split, p, sets.shift, more)


def _sets(
    case: Case, name: str, method: type[conformal.SplitConformal]
) -> Iterator[tuple[str, conformal.PredictionSets]]:
    """The sets of every judged split; the shift is in the table, so no warning is needed."""
    options: dict[str, Any] = {"alpha": case.settings.alpha, "seed": case.settings.seed}
    if name == "raps" and len(case.validation) < 10:
        return  # too few rows to choose its penalty on
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", conformal.ShiftWarning)
        if name not in _OF_NODES:
            fitted = method(**options).fit(case.validation)
            for split, p in case.judged():
                yield split, fitted(p)
            return
        assert case.whole is not None
        nodes = _OF_NODES[name](case.whole.graph, **options)
        nodes.fit(case.whole.p, rows=case.whole.rows[case.settings.fit_on])
        for split, _ in case.judged():
            yield split, nodes(case.whole.p, rows=case.whole.rows[split])


def abstention(case: Case) -> Iterator[Record]:
    """Share and accuracy of the answers when it answers only if sure enough."""
    if case.validation is None:
        return
    for wish, wished in case.settings.abstain.items():
        more = {"variant": f"{wish}={wished:g}", "against": case.settings.fit_on}
        rule = Abstention(**{wish: wished})  # type: ignore[arg-type]
        try:
            rule.fit(case.validation)
        except InputError:  # no threshold reaches that accuracy: nothing is answered
            rule.threshold = -math.inf
        for split, p in case.judged():
            decision = rule(p)
            yield record(split, p, "coverage", measuring.share(decision.kept, case), **more)
            if p.target is not None:
                right = p.correct[decision.kept]
                yield record(split, p, "accuracy", measuring.share(right, case), **more)
