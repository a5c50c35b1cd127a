"""What is judged, and what the measurements of every kind of prediction share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gduq import conformal, metrics
from gduq.evaluation.calibrated import Whole
from gduq.evaluation.gap import gap
from gduq.metrics import Interval
from gduq.metrics.resampling import share_interval
from gduq.novelty import ood_scores as ood
from gduq.prediction import Hypotheses

__all__ = [
    "RANKED",
    "Case",
    "Metric",
    "Record",
    "Settings",
    "called",
    "detection",
    "mean",
    "measured",
    "names_of",
    "record",
    "share",
    "shift",
    "subgroups",
]

Record = dict[str, Any]
Metric = Callable[..., float]
RANKED = ("balanced_accuracy", "roc_auc", "average_precision")  # as good as their rarest class
_FROM_FEATURES = ("mahalanobis", "knn")


@dataclass(frozen=True)
class Settings:
    """What an evaluation is made with; see `gduq.evaluate`."""

    fit_on: str
    negatives: str
    ood: tuple[str, ...]
    alpha: float
    bins: int
    abstain: Mapping[str, float]
    resamples: int
    level: float
    seed: int

    @property
    def sampling(self) -> dict[str, Any]:
        """The bootstrap's arguments."""
        return {"resamples": self.resamples, "level": self.level, "seed": self.seed}


@dataclass(frozen=True, eq=False)
class Case:
    """The predictions of one calibrator (or none) on all splits.

    Args:
        calibrator: Its name.
        predictions: By split.
        settings: What the evaluation is made with.
        whole: The graph of a node task.
        columns: What rows are grouped by, by split.
        held: What thresholds are fitted and judged on, if not this.
    """

    calibrator: str
    predictions: Mapping[str, Any]
    settings: Settings
    whole: Whole | None = None
    columns: Mapping[str, Mapping[str, Tensor]] | None = None
    held: Case | None = None

    @property
    def validation(self) -> Any:
        """Labelled predictions that thresholds are chosen on, or ``None``."""
        p = self.predictions.get(self.settings.fit_on)
        return None if p is None or p.target is None else p

    @property
    def thresholds(self) -> Case:
        """What thresholds are fitted and judged on."""
        return self.held or self

    def judged(self) -> Iterator[tuple[str, Any]]:
        """Splits that nothing was trained or fitted on."""
        for split, p in self.predictions.items():
            if split not in ("train", self.settings.fit_on):
                yield split, p

    def column(self, t: int) -> Case:
        """Label or value number ``t`` alone, on the splits where it is known of some row."""
        parts = {split: p.column(t) for split, p in self.predictions.items()}
        held = None if self.held is None else self.held.column(t)
        known = {split: p for split, p in parts.items() if len(p)}
        return replace(self, predictions=known, whole=None, held=held)


def names_of(case: Case) -> list[str]:
    """What the labels or values of a case are called; one alone needs no name."""
    p: Any = next(iter(case.predictions.values()))
    number = p.num_labels if p.kind == "labels" else p.num_values
    if number == 1:
        return [""]
    return list(p.names or map(str, range(number)))


def called(rows: Iterable[Record], name: str) -> Iterator[Record]:
    """Rows of the table with the name of a label or value before their variant."""
    for row in rows:
        variant = row.get("variant", "")
        joined = f"{name}: {variant}" if name and variant else name or variant
        yield row | {"variant": joined}


# -- numbers of the table ------------------------------------------------------------------------


def record(split: str, p: Hypotheses, measure: str, value: Any, **more: str) -> Record:
    """One row of the table; ``value`` is a triple of value, low, high."""
    low_high = dict(zip(("value", "low", "high"), map(float, value), strict=True))
    return {"split": split, "measure": measure, "rows": len(p), **low_high, **more}


def share(hits: Tensor, case: Case) -> Interval:
    """A share of rows with its Wilson interval."""
    return share_interval(float(hits.double().mean()), hits.numel(), case.settings.level)


def mean(values: Tensor, case: Case) -> tuple[float, float, float]:
    """A mean with its normal interval."""
    values = values.double()
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(case.settings.level, dtype=torch.float64)))
    half = z * float(values.std(correction=0)) / math.sqrt(values.numel())
    middle = float(values.mean())
    return middle, middle - half, middle + half


def shift(split: str, p: Hypotheses, test: conformal.ShiftTest | None, more: Any) -> list[Record]:
    """The p-value of a shift test, if one was made."""
    if test is None:
        return []
    return [record(split, p, "shift_pvalue", (test.pvalue, math.nan, math.nan), **more)]


# -- what all kinds measure alike ----------------------------------------------------------------


def measured(
    case: Case, measures: Callable[[Any], Mapping[str, Metric]], bare: Mapping[str, Metric]
) -> Iterator[Record]:
    """Metrics of a prediction with bootstrap intervals on every split; ``bare`` need no labels."""
    sampling = case.settings.sampling
    for split, p in case.predictions.items():
        wanted = bare if p.target is None else measures(p)
        found = _told(metrics.bootstrap_all(wanted, p, **sampling))
        for measure, value in found.items():
            yield record(split, p, measure, value)
        if p.target is None:
            continue
        yield record(split, p, "gap", gap(p, **sampling))
        if p.kind != "values":
            always = metrics.majority(p).accuracy
            yield record(split, p, "majority", (always, math.nan, math.nan))


def _told(found: Mapping[str, Interval]) -> dict[str, Interval]:
    """Without intervals of what a rare class decides, where resamples hardly differ."""
    few = "roc_auc" in found and not found["roc_auc"].low < found["roc_auc"].high
    kept = dict(found)
    for measure in RANKED if few else ():
        kept[measure] = Interval(found[measure].value, math.nan, math.nan)
    return kept


def detection(case: Case, names: Iterable[str]) -> Iterator[Record]:
    """How well OOD rows are told apart, by the scores among ``names`` that apply.

    What a calibrator does not change is measured once, without one.
    """
    against = case.settings.negatives
    negative, train = case.predictions.get(against), case.predictions.get("train")
    if negative is None:
        return
    for name in names:
        if not _applies(name, case, negative, train):
            continue
        score: Any = name
        if name in _FROM_FEATURES:
            assert train is not None
            k = min(10, len(train))
            score = (ood.Mahalanobis() if name == "mahalanobis" else ood.KNN(k)).fit(train)
        for split in case.settings.ood:
            p = case.predictions.get(split)
            if p is None:
                continue
            found = ood.detection(negative, p, score, **case.settings.sampling)
            for measure, value in found._asdict().items():
                yield record(split, p, measure, value, variant=name, against=against)


def _applies(name: str, case: Case, negative: Any, train: Any) -> bool:
    told_apart = [negative, *(case.predictions[s] for s in case.settings.ood
                              if s in case.predictions)]  # fmt: skip
    once = case.calibrator == "none"
    if name == "novelty":
        return once and all(p.novelty is not None for p in told_apart)
    if name in _FROM_FEATURES:
        known = [train, *told_apart]
        return once and all(p is not None and p.features is not None for p in known)
    return name not in ("epistemic", "spread") or negative.num_samples > 1


def subgroups(case: Case, measures: Mapping[str, Metric]) -> Iterator[Record]:
    """Measures of groups of rows."""
    for split, columns in (case.columns or {}).items():
        p = case.predictions[split]
        if p.target is None:
            continue
        table = metrics.subgroups(p, columns, metrics=measures, **case.settings.sampling)
        wanted = [c.removesuffix("_low") for c in table.columns if str(c).endswith("_low")]
        for row in table.to_dict(orient="records"):
            for measure in wanted:
                value = (row[measure], row[f"{measure}_low"], row[f"{measure}_high"])
                variant = f"{row['column']}: {row['group']}"
                yield record(split, p, measure, value, variant=variant) | {"rows": row["rows"]}
