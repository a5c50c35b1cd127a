"""What is measured, kind by kind: each function yields rows of the table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gduq import conformal, generalization, metrics, ood
from gduq.abstention import Abstention
from gduq.errors import InputError
from gduq.metrics.binned import wilson
from gduq.prediction import Prediction

__all__ = ["Case", "Settings", "Whole", "records"]

Record = dict[str, Any]
Metric = Callable[..., float]


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
class Whole:
    """A node task on one graph: predictions on all nodes, and which nodes each split has."""

    graph: Any
    p: Prediction
    rows: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """The predictions of one calibrator (or none) on all splits."""

    calibrator: str
    predictions: Mapping[str, Prediction]
    settings: Settings
    whole: Whole | None = None
    columns: Mapping[str, Mapping[str, Tensor]] | None = None  # of subgroups, by split
    held: Case | None = None  # what thresholds are fitted and judged on, if not this

    @property
    def validation(self) -> Prediction | None:
        """Labelled predictions that thresholds are chosen on."""
        p = self.predictions.get(self.settings.fit_on)
        return None if p is None or p.target is None else p

    def judged(self) -> Iterator[tuple[str, Prediction]]:
        """Splits that nothing was trained or fitted on."""
        for split, p in self.predictions.items():
            if split not in ("train", self.settings.fit_on):
                yield split, p


def records(case: Case) -> Iterator[Record]:
    """All rows of the table for one calibrator."""
    held = case.held or case
    for kind, rows in (
        ("metrics", _metrics(case)),
        ("ood", _ood(case)),
        ("error prediction", _error_prediction(held)),
        ("conformal", _conformal(held)),
        ("abstention", _abstention(held)),
        ("subgroups", _subgroups(case)),
    ):
        for row in rows:
            yield {"kind": kind, "calibrator": case.calibrator, "variant": "", "against": ""} | row


def _record(split: str, p: Prediction, measure: str, value: Any, **more: str) -> Record:
    """``value`` is a triple of value, low, high."""
    low_high = dict(zip(("value", "low", "high"), map(float, value), strict=True))
    return {"split": split, "measure": measure, "rows": len(p), **low_high, **more}


def _metrics(case: Case) -> Iterator[Record]:
    bins = case.settings.bins
    unlabelled: dict[str, Metric] = {"sharpness": metrics.sharpness}
    measures: dict[str, Metric] = {
        "accuracy": metrics.accuracy,
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
        **unlabelled,
    }
    for split, p in case.predictions.items():
        wanted = unlabelled if p.target is None else measures
        found = metrics.bootstrap_all(wanted, metrics.read(p, labelled=False),
                                      **case.settings.sampling)  # fmt: skip
        for measure, value in found.items():
            yield _record(split, p, measure, value)


def _ood(case: Case) -> Iterator[Record]:
    against = case.settings.negatives
    negative, train = case.predictions.get(against), case.predictions.get("train")
    if negative is None:
        return
    for name in _ood_scores(case, negative, train):
        score: Any = name
        if name in ("mahalanobis", "knn"):
            assert train is not None
            k = min(10, len(train))
            score = (ood.Mahalanobis() if name == "mahalanobis" else ood.KNN(k)).fit(train)
        for split in case.settings.ood:
            p = case.predictions[split]
            found = ood.detection(negative, p, score, **case.settings.sampling)
            for measure, value in found._asdict().items():
                yield _record(split, p, measure, value, variant=name, against=against)


def _ood_scores(case: Case, p: Prediction, train: Prediction | None) -> list[str]:
    """Those that apply; what a calibrator does not change is measured once, without one."""
    told_apart = [p, *(case.predictions[name] for name in case.settings.ood)]
    once = case.calibrator == "none"
    scores = ["novelty"] if once and all(q.novelty is not None for q in told_apart) else []
    scores += ["msp", "entropy", "energy"]
    if p.num_samples > 1:
        scores += ["epistemic", "spread"]
    if once and all(q is not None and q.features is not None for q in (train, *told_apart)):
        scores += ["mahalanobis", "knn"]
    return scores


def _error_prediction(case: Case) -> Iterator[Record]:
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
            yield _record(split, p, "predicted_accuracy", predicted, **more)
            if error is not None:
                yield _record(split, p, "error", error, **more)


def _conformal(case: Case) -> Iterator[Record]:
    if case.validation is None:
        return
    for name, method in conformal.METHODS.items():
        if name == "daps" and case.whole is None:
            continue
        for split, sets in _sets(case, name, method):
            p = case.predictions[split]
            more = {"variant": name, "against": case.settings.fit_on}
            if p.target is not None:
                yield _record(split, p, "coverage", _share(sets.covered, case), **more)
            yield _record(split, p, "set_size", _mean(sets.size, case), **more)
            if sets.shift is not None:
                value = (sets.shift.pvalue, math.nan, math.nan)
                yield _record(split, p, "shift_pvalue", value, **more)


def _sets(
    case: Case, name: str, method: type[conformal.SplitConformal]
) -> Iterator[tuple[str, conformal.PredictionSets]]:
    """The sets of every judged split; the shift is in the table, so no warning is needed."""
    options: dict[str, Any] = {"alpha": case.settings.alpha, "seed": case.settings.seed}
    assert case.validation is not None
    if name == "raps" and len(case.validation) < 10:
        return  # too few rows to choose its penalty on
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", conformal.ShiftWarning)
        if name != "daps":
            fitted = method(**options).fit(case.validation)
            for split, p in case.judged():
                yield split, fitted(p)
            return
        assert case.whole is not None
        daps = conformal.DAPS(case.whole.graph, **options)
        daps.fit(case.whole.p, rows=case.whole.rows[case.settings.fit_on])
        for split, _ in case.judged():
            yield split, daps(case.whole.p, rows=case.whole.rows[split])


def _abstention(case: Case) -> Iterator[Record]:
    if case.validation is None:
        return
    for wish, share in case.settings.abstain.items():
        more = {"variant": f"{wish}={share:g}", "against": case.settings.fit_on}
        rule = Abstention(**{wish: share})  # type: ignore[arg-type]
        try:
            rule.fit(case.validation)
        except InputError:  # no threshold reaches that accuracy: nothing is answered
            rule.threshold = -math.inf
        for split, p in case.judged():
            decision = rule(p)
            yield _record(split, p, "coverage", _share(decision.kept, case), **more)
            if p.target is not None:
                right = p.correct[decision.kept]
                yield _record(split, p, "accuracy", _share(right, case), **more)


def _subgroups(case: Case) -> Iterator[Record]:
    for split, columns in (case.columns or {}).items():
        p = case.predictions[split]
        if p.target is None:
            continue
        table = metrics.subgroups(p, columns, **case.settings.sampling)
        for row in table.to_dict(orient="records"):
            for measure in ("accuracy", "ece", "nll", "brier"):
                value = (row[measure], row[f"{measure}_low"], row[f"{measure}_high"])
                variant = f"{row['column']}: {row['group']}"
                record = _record(split, p, measure, value, variant=variant)
                yield record | {"rows": row["rows"]}


def _share(hits: Tensor, case: Case) -> tuple[float, float, float]:
    """A share of rows with its Wilson interval."""
    count = torch.tensor(float(hits.numel()), dtype=torch.float64)
    rate = hits.double().mean().cpu()
    low, high = wilson(rate, count, case.settings.level)
    return float(rate), float(low), float(high)


def _mean(values: Tensor, case: Case) -> tuple[float, float, float]:
    """A mean with its normal interval."""
    values = values.double()
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(case.settings.level, dtype=torch.float64)))
    half = z * float(values.std(correction=0)) / math.sqrt(values.numel())
    mean = float(values.mean())
    return mean, mean - half, mean + half
