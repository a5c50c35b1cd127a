"""Which metrics are measured of classes, labels and values: on splits, and in groups of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gduq import metrics
from gduq.evaluation.case import Case, Record, record
from gduq.evaluation.gap import gap
from gduq.metrics import Interval

__all__ = ["class_measures", "measured", "subgroups"]

Metric = Callable[..., float]
Measures = Mapping[str, Metric]
_LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals whose coverage and width are measured
_NEED_NO_TRUTH = ("sharpness", "width")
_RANKED: dict[str, Metric] = {  # as good as their rarest class
    "balanced_accuracy": metrics.balanced_accuracy,
    "roc_auc": metrics.roc_auc,
    "average_precision": metrics.average_precision,
}
_OF_GROUPS = {
    "classes": ("accuracy", "ece", "nll", "brier"),
    "values": ("rmse", "coverage_90", "nll"),
}


def class_measures(bins: int) -> dict[str, Metric]:
    """Everything that is measured of classes, by name."""
    binned: dict[str, Any] = {"bins": bins, "strict": False}
    terms = metrics.BrierDecomposition._fields
    return {
        "accuracy": metrics.accuracy,
        **_RANKED,
        "ece": partial(metrics.ece, **binned),
        "ece_debiased": partial(metrics.ece, debias=True, **binned),
        "ece100": partial(metrics.ece, bins=100, strict=False),
        "adaptive_ece": partial(metrics.adaptive_ece, **binned),
        "classwise_ece": partial(metrics.classwise_ece, **binned),
        "smooth_ece": metrics.smooth_ece,
        "nll": metrics.nll,
        "brier": metrics.brier,
        **{f"brier_{t}": partial(metrics.brier_term, term=t, **binned) for t in terms},
        "aurc": metrics.aurc,
        "excess_aurc": metrics.excess_aurc,
        "sharpness": metrics.sharpness,
    }


def _label_measures(bins: int) -> dict[str, Metric]:
    names, known = ("accuracy", *_RANKED, "ece", "nll", "brier", "sharpness"), class_measures(bins)
    return {name: known[name] for name in names}


def _value_measures(rows: int) -> dict[str, Metric]:
    return {
        "rmse": metrics.rmse,
        "mae": metrics.mae,
        "r2": metrics.r2,
        "nll": metrics.nll,
        "crps": metrics.crps,
        **_at_levels("coverage"),
        **_at_levels("width"),
        "miscalibration_area": metrics.miscalibration_area,
        "ence": partial(metrics.ence, bins=min(10, rows)),
        "spearman": metrics.spearman,
        "aurc": metrics.aurc,
        "sharpness": metrics.sharpness,
    }


def _at_levels(which: str) -> dict[str, Metric]:
    metric = getattr(metrics, which)
    return {f"{which}_{100 * level:.0f}": partial(metric, level=level) for level in _LEVELS}


def measured(case: Case) -> Iterator[Record]:
    """Metrics with intervals on every split; of labels their means, and each by its name."""
    bins = case.settings.bins
    if case.kind == "classes":
        yield from _measured(case, class_measures(bins))
    elif case.kind == "values":
        yield from case.each(_measured)
    else:
        known = {s: p for s, p in case.predictions.items() if p.target is None or p.known.any()}
        wanted = _label_measures(bins)
        yield from _measured(replace(case, predictions=known), wanted)
        if len(case.names) > 1:  # the mean over one label is its own
            yield from case.each(partial(_measured, measures=wanted))


def _measured(case: Case, measures: Measures | None = None) -> Iterator[Record]:
    sampling = case.settings.sampling
    for split, p in case.predictions.items():
        wanted = _value_measures(len(p)) if measures is None else measures
        if p.target is None:
            wanted = {n: f for n, f in wanted.items() if n.startswith(_NEED_NO_TRUTH)}
        found = _without_rare(metrics.bootstrap_all(wanted, p, **sampling))
        for measure, value in found.items():
            yield record(split, p, measure, value)
        if p.target is not None:
            yield record(split, p, "gap", gap(p, **sampling))
            if p.kind != "values":
                yield record(split, p, "majority", metrics.majority(p).accuracy)


def _without_rare(found: Mapping[str, Interval]) -> dict[str, Interval]:
    """Without intervals of what a rare class decides, where resamples hardly differ."""
    few = "roc_auc" in found and not found["roc_auc"].low < found["roc_auc"].high
    bare = {name: Interval(found[name].value, math.nan, math.nan) for name in _RANKED if few}
    return {**found, **bare}


def subgroups(case: Case) -> Iterator[Record]:
    """Measures of groups of rows."""
    bins = case.settings.bins
    for split, columns in (case.columns or {}).items():
        p = case.predictions[split]
        if p.target is None:
            continue
        wanted = _label_measures(bins)
        if case.kind != "labels":
            known = class_measures(bins) if case.kind == "classes" else _value_measures(len(p))
            wanted = {name: known[name] for name in _OF_GROUPS[case.kind]}
        table = metrics.subgroups(p, columns, metrics=wanted, **case.settings.sampling)
        for row in table.to_dict(orient="records"):
            variant = f"{row['column']}: {row['group']}"
            for name in wanted:
                value = row[name], row[f"{name}_low"], row[f"{name}_high"]
                yield record(split, p, name, value, variant=variant) | {"rows": row["rows"]}
