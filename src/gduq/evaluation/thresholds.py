"""What is fitted on validation rows: predicted accuracy, conformal answers, abstention."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gduq import conformal, metrics
from gduq.errors import InputError
from gduq.evaluation.case import Case, Record
from gduq.metrics.resampling import share_interval
from gduq.ood import Abstention, generalization

__all__ = ["thresholds"]

Part = Callable[[Case], Iterable[Record]]


def thresholds(case: Case) -> Iterator[Record]:
    """All that is fitted on validation rows, of each label or value that has any."""
    parts: list[Part] = [partial(_conformal, kind=case.kind), _abstention]
    for part in parts if case.kind == "values" else [_error_prediction, *parts]:
        for row in case.each(partial(_where_validated, part)):
            yield row | {"against": case.settings.fit_on}


def _where_validated(part: Part, case: Case) -> Iterable[Record]:
    return () if case.validation is None else part(case)


def _error_prediction(case: Case) -> Iterator[Record]:
    """Accuracies predicted without labels, and how far they are off."""
    for split, p in case.judged():
        for method in generalization.METHODS:
            if method == "disagreement" and p.num_samples == 1:
                continue
            found = generalization.estimate_interval(
                case.validation, p, method, **case.settings.sampling
            )
            for measure, value in zip(("predicted_accuracy", "error"), found, strict=True):
                if value is not None:
                    yield case.record("error prediction", split, measure, value, variant=method)


def _conformal(case: Case, kind: str) -> Iterator[Record]:
    """Coverage and size of conformal sets or intervals."""
    for name in conformal.METHODS[kind]:
        for split, found in _answers(case, name):
            record = partial(case.record, "conformal", split, variant=name)
            if case.predictions[split].target is not None:
                yield record("coverage", _share(found.covered, case))
            yield record(found.size_name, _mean(found.size, case))
            yield record("shift_pvalue", found.shift.pvalue)


def _answers(case: Case, name: str) -> list[tuple[str, Any]]:
    """Sets or intervals of every judged split; the shift is in the table, so no warning."""
    options: dict[str, Any] = {"alpha": case.settings.alpha, "seed": case.settings.seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", conformal.ShiftWarning)
        if name == "daps":
            if (whole := case.answers.whole) is None:
                return []
            nodes = conformal.DAPS(whole.graph, **options)
            nodes.fit(whole.p, rows=whole.rows[case.settings.fit_on])
            return [(split, nodes(whole.p, rows=whole.rows[split])) for split, _ in case.judged()]
        method = conformal.make(case.validation, name, **options).fit(case.validation)
        return [(split, method(p)) for split, p in case.judged()]


def _abstention(case: Case) -> Iterator[Record]:
    """Share of answers, and their accuracy or error, when it answers only if sure enough."""
    values = case.kind == "values"
    for wish, wished in case.settings.abstain.items():
        if values and wish != "coverage":
            continue
        rule = Abstention(**{wish: wished})  # type: ignore[arg-type]
        try:
            rule.fit(case.validation)
        except InputError:  # no threshold reaches that accuracy: nothing is answered
            rule.threshold = -math.inf
        for split, p in case.judged():
            kept = rule(p).kept
            record = partial(case.record, "abstention", split, variant=f"{wish}={wished:g}")
            yield record("coverage", _share(kept, case))
            if p.target is not None and not values:
                yield record("accuracy", _share(p.correct[kept], case))
            elif p.target is not None:
                sampling = case.settings.sampling
                some = metrics.bootstrap(metrics.rmse, p[kept], **sampling) if kept.any() else None
                yield record("rmse", some or math.nan)


def _share(hits: Tensor, case: Case) -> tuple[float, float, float]:
    """A share of rows with its Wilson interval."""
    return share_interval(float(hits.double().mean()), hits.numel(), case.settings.level)


def _mean(values: Tensor, case: Case) -> tuple[float, float, float]:
    """A mean with its normal interval."""
    values = values.double()
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(case.settings.level, dtype=torch.float64)))
    half = z * float(values.std(correction=0)) / math.sqrt(values.numel())
    middle = float(values.mean())
    return middle, middle - half, middle + half
