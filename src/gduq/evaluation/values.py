"""What is measured of predictions about values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from gduq import conformal, metrics
from gduq.abstention import Abstention
from gduq.conformal.values import SCORES
from gduq.evaluation import measuring
from gduq.evaluation.measuring import Case, Metric, Record, called, record
from gduq.novelty import ood_scores as ood

__all__ = ["LEVELS", "parts_of"]

LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals whose coverage and width are measured


def parts_of(case: Case) -> Iterator[tuple[str, Iterable[Record]]]:
    """Rows of the table by kind; of several values each by its name."""
    yield "metrics", _metrics(case)
    yield "ood", _detection(case)
    yield "conformal", _each(case.thresholds, _conformal)
    yield "abstention", _each(case.thresholds, _abstention)
    yield "subgroups", _each(case, _subgroups)


def _each(case: Case, part: Callable[[Case], Iterable[Record]]) -> Iterator[Record]:
    """The same part for one value after the other."""
    if not case.predictions:  # too few rows to hold any back for thresholds
        return
    for t, name in enumerate(measuring.names_of(case)):
        yield from called(part(case.column(t)), name)


def _level_measures(which: str) -> dict[str, Metric]:
    metric = getattr(metrics, which)
    return {f"{which}_{100 * level:.0f}": partial(metric, level=level) for level in LEVELS}


def _measures(p: Any) -> dict[str, Metric]:
    return {
        "rmse": metrics.rmse,
        "mae": metrics.mae,
        "r2": metrics.r2,
        "nll": metrics.nll,
        "crps": metrics.crps,
        **_level_measures("coverage"),
        **_level_measures("width"),
        "miscalibration_area": metrics.miscalibration_area,
        "ence": partial(metrics.ence, bins=min(10, len(p))),
        "spearman": metrics.spearman,
        "aurc": metrics.aurc,
        "sharpness": metrics.sharpness,
    }


def _metrics(case: Case) -> Iterator[Record]:
    bare = {"sharpness": metrics.sharpness, **_level_measures("width")}
    yield from _each(case, lambda one: measuring.measured(one, _measures, bare))


def _detection(case: Case) -> Iterator[Record]:
    """Rows are strange or not, whatever value they are about; deviations are those of a value."""
    whole = [s for s in ood.scores_for("values") if s == "novelty"]
    yield from measuring.detection(case, (*whole, "mahalanobis", "knn"))
    own = [s for s in ood.scores_for("values") if s not in whole]
    yield from _each(case, lambda one: measuring.detection(one, own))


def _conformal(case: Case) -> Iterator[Record]:
    if case.validation is None:
        return
    for name in SCORES:
        intervals = conformal.ConformalIntervals(
            case.settings.alpha, score=name, seed=case.settings.seed
        ).fit(case.validation)
        more = {"variant": name, "against": case.settings.fit_on}
        for split, p in case.judged():
            with warnings.catch_warnings():  # the shift is in the table
                warnings.simplefilter("ignore", conformal.ShiftWarning)
                found = intervals(p)
            if p.target is not None:
                yield record(split, p, "coverage", measuring.share(found.covered, case), **more)
            yield record(split, p, "width", measuring.mean(found.width, case), **more)
            yield from measuring.shift(split, p, found.shift, more)


def _abstention(case: Case) -> Iterator[Record]:
    """Share and error of the answers when it answers only where its deviation is small."""
    wished = case.settings.abstain.get("coverage")
    if case.validation is None or wished is None:
        return
    rule = Abstention(coverage=wished).fit(case.validation)
    more: dict[str, Any] = {"variant": f"coverage={wished:g}", "against": case.settings.fit_on}
    for split, p in case.judged():
        decision = rule(p)
        yield record(split, p, "coverage", measuring.share(decision.kept, case), **more)
        if p.target is None:
            continue
        kept = p[decision.kept]
        found: Any = (math.nan, math.nan, math.nan)
        if len(kept):
            found = metrics.bootstrap(metrics.rmse, kept, **case.settings.sampling)
        yield record(split, p, "rmse", found, **more)


def _subgroups(case: Case) -> Iterator[Record]:
    measures: dict[str, Metric] = {
        "rmse": metrics.rmse,
        "coverage_90": partial(metrics.coverage, level=0.9),
        "nll": metrics.nll,
    }
    return measuring.subgroups(case, measures)
