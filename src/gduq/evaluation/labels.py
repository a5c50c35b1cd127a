"""What is measured of predictions about labels: one by one as classes are, and on average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from gduq import metrics
from gduq.evaluation import classes, measuring
from gduq.evaluation.measuring import Case, Metric, Record, called
from gduq.novelty import ood_scores as ood

__all__ = ["parts_of"]

_SETS = ("lac", "class_conditional")  # of yes and no; others differ for more classes only


def parts_of(case: Case) -> Iterator[tuple[str, Iterable[Record]]]:
    """Rows of the table by kind; each label by its name, the mean over labels without."""
    held = case.thresholds
    yield "metrics", _metrics(case)
    yield "ood", measuring.detection(case, (*ood.scores_for("labels"), "mahalanobis", "knn"))
    yield "error prediction", _each(held, classes.error_prediction)
    yield "conformal", _each(held, partial(classes.conformal_sets, names=_SETS))
    yield "abstention", _each(held, classes.abstention)
    yield "subgroups", measuring.subgroups(case, _measures(case))


def _each(case: Case, part: Callable[[Case], Iterable[Record]]) -> Iterator[Record]:
    """The same part for one label after the other, of the rows whose label is known."""
    if not case.predictions:  # too few rows to hold any back for thresholds
        return
    for t, name in enumerate(measuring.names_of(case)):
        one = case.column(t)
        if one.predictions:
            yield from called(part(one), name)


def _measures(case: Case) -> dict[str, Metric]:
    return {
        "accuracy": metrics.accuracy,
        **classes.rare(),
        "ece": partial(metrics.ece, bins=case.settings.bins, strict=False),
        "nll": metrics.nll,
        "brier": metrics.brier,
        "sharpness": metrics.sharpness,
    }


def _metrics(case: Case) -> Iterator[Record]:
    measures, bare = _measures(case), {"sharpness": metrics.sharpness}
    known = {s: p for s, p in case.predictions.items() if p.target is None or p.known.any()}
    yield from measuring.measured(replace(case, predictions=known), lambda p: measures, bare)
    if len(measuring.names_of(case)) > 1:  # the mean over one label is its own
        yield from _each(case, lambda one: measuring.measured(one, lambda p: measures, bare))
