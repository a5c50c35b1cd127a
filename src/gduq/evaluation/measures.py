"""What is measured without fitting: metrics on splits and in groups, and detection of shift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from gduq import metrics, ood
from gduq.evaluation.case import Case, Record
from gduq.evaluation.gap import gap
from gduq.metrics import Interval

__all__ = ["class_measures", "detection", "group_measures", "measured", "subgroups"]

Metric = Callable[..., float]
_LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals whose coverage and width are measured
_FROM_FEATURES = ("mahalanobis", "knn")  # scores of rows
_NEED_NO_TRUTH = ("sharpness", "width")
_RANKED: dict[str, Metric] = {  # as good as their rarest class
    "balanced_accuracy": metrics.balanced_accuracy,
    "roc_auc": metrics.roc_auc,
    "average_precision": metrics.average_precision,
}
_OF_LABELS = ("accuracy", *_RANKED, "ece", "nll", "brier", "sharpness")
_OF_GROUPS = {
    "classes": ("accuracy", "ece", "nll", "brier"),
    "labels": _OF_LABELS,
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


def _measures(kind: str, bins: int, rows: int) -> dict[str, Metric]:
    if kind != "values":
        known = class_measures(bins)
        return known if kind == "classes" else {name: known[name] for name in _OF_LABELS}
    return {
        "rmse": metrics.rmse,
        "mae": metrics.mae,
        "r2": metrics.r2,
        "nll": metrics.nll,
        "crps": metrics.crps,
        **{f"coverage_{100 * q:.0f}": partial(metrics.coverage, level=q) for q in _LEVELS},
        **{f"width_{100 * q:.0f}": partial(metrics.width, level=q) for q in _LEVELS},
        "miscalibration_area": metrics.miscalibration_area,
        "ence": partial(metrics.ence, bins=min(10, rows)),
        "spearman": metrics.spearman,
        "aurc": metrics.aurc,
        "sharpness": metrics.sharpness,
    }


def group_measures(kind: str, bins: int) -> dict[str, Metric]:
    """What is measured of groups of rows, by name."""
    known = _measures(kind, bins, rows=1)
    return {name: known[name] for name in _OF_GROUPS[kind]}


def measured(case: Case) -> Iterator[Record]:
    """Metrics with intervals on every split; of labels their means, and each by its name."""
    part = partial(_measured, kind=case.kind)
    if case.kind != "values":
        yield from part(case)
    if case.kind == "values" or (case.kind == "labels" and len(case.names) > 1):
        yield from case.each(part)


def _measured(case: Case, kind: str) -> Iterator[Record]:
    sampling = case.settings.sampling
    for split, p in case.predictions.items():
        record = partial(case.record, "metrics", split)
        wanted = _measures(kind, case.settings.bins, len(p))
        if p.target is None:
            wanted = {n: f for n, f in wanted.items() if n.startswith(_NEED_NO_TRUTH)}
        elif p.kind == "labels" and not p.known.any():
            continue
        found = metrics.bootstrap_all(wanted, p, **sampling)
        few = "roc_auc" in found and not found["roc_auc"].low < found["roc_auc"].high
        for measure, value in found.items():
            # what a rare class decides has no interval where resamples hardly differ
            bare = few and measure in _RANKED
            yield record(measure, value.value if bare else value)
        if p.target is not None:
            yield record("gap", gap(p, **sampling))
            if p.kind != "values":
                yield record("majority", metrics.majority(p).accuracy)


def subgroups(case: Case) -> Iterator[Record]:
    """Measures of groups of rows; of several values each by its name."""
    yield from case.each(_grouped) if case.kind == "values" else _grouped(case)


def _grouped(case: Case) -> Iterator[Record]:
    for split, columns in (case.columns or {}).items():
        p = case.predictions[split]
        if p.target is None:
            continue
        wanted = group_measures(case.kind, case.settings.bins)
        table = metrics.subgroups(p, columns, metrics=wanted, **case.settings.sampling)
        for row in table.to_dict(orient="records"):
            variant = f"{row['column']}: {row['group']}"
            for name in wanted:
                value = Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
                more = {"variant": variant, "rows": row["rows"]}
                yield case.record("subgroups", split, name, value, **more)


def detection(case: Case) -> Iterator[Record]:
    """All scores that apply; of several values, deviations are those of each."""
    names = next(iter(case.predictions.values())).ood_scores
    if case.kind == "values":
        yield from _detected(case, ("novelty", *_FROM_FEATURES))
        own = [name for name in names if name != "novelty"]
        yield from case.each(lambda one: _detected(one, own))
    else:
        yield from _detected(case, (*names, *_FROM_FEATURES))


def _detected(case: Case, names: Iterable[str]) -> Iterator[Record]:
    against, train = case.settings.negatives, cast(Any, case.predictions.get("train"))
    negative = case.predictions.get(against)
    if negative is None:
        return
    shifted = {s: case.predictions[s] for s in case.settings.ood if s in case.predictions}
    for name in names:
        if not _applies(name, case.calibrator, [negative, *shifted.values()], train):
            continue
        score: Any = name
        if name in _FROM_FEATURES:
            score = ood.Mahalanobis() if name == "mahalanobis" else ood.KNN(min(10, len(train)))
            score.fit(train)
        for split, p in shifted.items():
            found = ood.detection(negative, p, score, **case.settings.sampling)
            for measure, value in found._asdict().items():
                yield case.record("ood", split, measure, value, variant=name, against=against)


def _applies(name: str, calibrator: str, told_apart: list[Any], train: Any) -> bool:
    """What no calibrator changes is measured without one only."""
    if name == "novelty":
        return calibrator == "none" and all(p.novelty is not None for p in told_apart)
    if name in _FROM_FEATURES:
        known = all(p is not None and p.features is not None for p in (train, *told_apart))
        return calibrator == "none" and known
    return name not in ("epistemic", "spread") or told_apart[0].num_samples > 1
