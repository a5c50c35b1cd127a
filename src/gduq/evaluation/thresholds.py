"""What is fitted on validation rows: predicted accuracy, conformal answers, abstention."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from gduq import conformal, generalization, metrics
from gduq.abstention import Abstention
from gduq.conformal.values import SCORES
from gduq.errors import InputError
from gduq.evaluation.case import Case, Record, mean, record, share

__all__ = ["ANSWERS", "abstention", "conformal_answers", "error_prediction"]

ANSWERS: dict[str, tuple[str, ...]] = {  # conformal methods, by kind
    "classes": tuple(conformal.METHODS),
    "labels": ("lac", "class_conditional"),  # others differ for more than two classes only
    "values": SCORES,
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
                case.validation, p, method, **case.settings.sampling
            )
            more = {"variant": method, "against": case.settings.fit_on}
            yield record(split, p, "predicted_accuracy", predicted, **more)
            if error is not None:
                yield record(split, p, "error", error, **more)


def conformal_answers(case: Case, names: Iterable[str]) -> Iterator[Record]:
    """Coverage and size of conformal sets or intervals."""
    if case.validation is None:
        return
    for name in names:
        for split, found in _answers(case, name):
            p, more = case.predictions[split], {"variant": name, "against": case.settings.fit_on}
            if p.target is not None:
                yield record(split, p, "coverage", share(found.covered, case), **more)
            if case.kind == "values":
                yield record(split, p, "width", mean(found.width, case), **more)
            else:
                yield record(split, p, "set_size", mean(found.size, case), **more)
            yield record(split, p, "shift_pvalue", found.shift.pvalue, **more)


def _answers(case: Case, name: str) -> list[tuple[str, Any]]:
    """Sets or intervals of every judged split; the shift is in the table, so no warning."""
    options: dict[str, Any] = {"alpha": case.settings.alpha, "seed": case.settings.seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", conformal.ShiftWarning)
        if name == "daps":
            if (whole := case.whole) is None:
                return []
            nodes = conformal.DAPS(whole.graph, **options)
            nodes.fit(whole.p, rows=whole.rows[case.settings.fit_on])
            return [(split, nodes(whole.p, rows=whole.rows[split])) for split, _ in case.judged()]
        if name == "raps" and len(case.validation) < 10:
            return []  # too few rows to choose its penalty on
        if case.kind == "values":
            method: Any = conformal.ConformalIntervals(score=name, **options)  # type: ignore[arg-type]
        else:
            method = conformal.METHODS[name](**options)
        method.fit(case.validation)
        return [(split, method(p)) for split, p in case.judged()]


def abstention(case: Case) -> Iterator[Record]:
    """Share of answers, and their accuracy or error, when it answers only if sure enough."""
    if case.validation is None:
        return
    values = case.kind == "values"
    for wish, wished in case.settings.abstain.items():
        if values and wish != "coverage":
            continue
        more = {"variant": f"{wish}={wished:g}", "against": case.settings.fit_on}
        rule = Abstention(**{wish: wished})  # type: ignore[arg-type]
        try:
            rule.fit(case.validation)
        except InputError:  # no threshold reaches that accuracy: nothing is answered
            rule.threshold = -math.inf
        for split, p in case.judged():
            kept = rule(p).kept
            yield record(split, p, "coverage", share(kept, case), **more)
            if p.target is None:
                continue
            if not values:
                yield record(split, p, "accuracy", share(p.correct[kept], case), **more)
                continue
            error: Any = math.nan
            if kept.any():
                error = metrics.bootstrap(metrics.rmse, p[kept], **case.settings.sampling)
            yield record(split, p, "rmse", error, **more)
