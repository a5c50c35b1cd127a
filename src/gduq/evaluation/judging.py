"""`evaluate`: one call that says how far to trust a model; its predictions say what is measured."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from gduq import conformal, metrics
from gduq.calibration import METHODS, Calibrator, parse_name
from gduq.errors import InputError, first_flaw
from gduq.evaluation.calibrated import Calibrated, answers_of, views_of
from gduq.evaluation.evaluation import COLUMNS, Evaluation, EvaluationSettings
from gduq.graphs import structure_of
from gduq.graphs.view import Splits, View
from gduq.metrics import Interval
from gduq.metrics.resampling import share_interval
from gduq.ood import FITTED, Abstention, generalization, score
from gduq.prediction import ClassPrediction, Prediction

__all__ = ["Case", "evaluate"]

Record = dict[str, object]
_RANKED = ("balanced_accuracy", "roc_auc", "average_precision")  # as good as their rarest class
_NEED_NO_TRUTH = ("sharpness", "width")
_OF_ROWS = ("novelty", *FITTED)  # scores of representations, which no calibrator changes


def evaluate(
    model_or_predictions: nn.Module | Prediction | Mapping[str, Prediction] | Calibrated,
    splits: Splits | Mapping[str, View] | None = None,
    calibrators: Iterable[str | Calibrator] = (),
    *,
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

    On every split: metrics with intervals, of several labels or values under their names
    (``variant``), and the mean over labels. On splits other than ``train`` and ``fit_on``:
    conformal sets or intervals, abstention and, of classes and labels, predicted accuracy. On OOD
    splits: detection by every score that applies. What cannot be measured is not in the table; why
    a named calibrator could not be fitted is in ``settings["skipped"]``.

    No row serves both a calibrator and a threshold: for thresholds a calibrator is fitted anew on a
    random half of ``fit_on``, and they on the other half. One that comes fitted is used as it is.

    Args:
        model_or_predictions: A model (then with ``splits``), predictions by split name, one
            prediction, which is called ``test``, or a `gduq.evaluation.calibrated.Calibrated`.
        splits: A `gduq.data.Splits`, or views by name.
        calibrators: Names of `gduq.calibration.METHODS`, or calibrators; those that are not yet
            fitted are fitted on ``fit_on``, by a name that ends in ``+corrupted`` on shifted copies
            of ``fit_on`` too (`gduq.shifts.corruptions`).
        fit_on: The split with labels that calibrators and thresholds are fitted on.
        negatives: The ID split that OOD rows are told from: ``id_test``, or else ``id_val``.
        ood: The OOD splits; by default the severities, and those that begin with "ood".
        alpha: Accepted share of misses of conformal sets.
        bins: Bins of ECE, adaptive and classwise ECE (``ece100`` always has 100).
        abstain: Wished ``coverage`` and ``accuracy`` of answers; 0.8 and 0.9 by default.
        subgroups: Also measure groups by degree and size; needs ``splits``.
        resamples, level, seed: Of the bootstrap's intervals, and the seed of everything random.
        batch_size: Graphs at a time, when a model predicts.

    Example:
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> found = evaluate({"id_val": p, "id_test": p}, calibrators=["temperature"])
        >>> found.value("id_test", "nll", "temperature").value < found.value("id_test", "nll").value
        True
    """
    import pandas as pd

    views, answers = views_of(splits), model_or_predictions
    if not isinstance(answers, Calibrated):
        answers = answers_of(answers, views, fit_on, batch_size, seed)
    raw, severe = answers.raw, splits.severities if isinstance(splits, Splits) else {}
    shifted = [n for n in raw if n.startswith("ood") or n in severe] if ood is None else list(ood)
    against = negatives or ("id_test" if "id_test" in raw else "id_val")
    if unknown := {*shifted, *filter(None, [negatives])} - raw.keys():
        raise InputError(f"splits from {', '.join(raw)}", ", ".join(sorted(unknown)))
    if len(sizes := {(p.kind, p.num_samples, p.samples.size(2)) for p in raw.values()}) > 1:
        raise InputError("splits of one kind with equal K and C", sorted(sizes))
    if subgroups and not views:
        raise InputError("splits for subgroups=True", "none", "Pass splits=.")
    wishes: Any = {} if abstain is None else {"abstain": dict(abstain)}
    try:
        settings = EvaluationSettings(
            about=next(iter(raw.values())).kind, fit_on=answers.fit_on, negatives=against,
            ood=shifted, alpha=alpha, bins=bins, resamples=resamples, level=level, seed=seed,
            **wishes,
        )  # fmt: skip
    except ValidationError as error:
        raise InputError("settings of an evaluation", first_flaw(error)) from None
    columns = {name: _graph_columns(views[name]) for name in raw if subgroups and name in views}
    plain = Case("none", answers, settings, columns)
    rows, fitted, skipped = list(_rows(plain, plain)), dict[str, Calibrator](), dict[str, str]()
    for name, given in _named(calibrators):
        if name in fitted or name in skipped or name == "none":
            raise InputError("calibrators with different names", f"{name!r} twice or 'none'")
        method = given if isinstance(given, str) else ""
        if isinstance(given, str) or not given.fitted:
            _ = answers.validation  # or a mistake in the call, which is no calibrator's fault
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
                held = replace(case, answers=answers.held_out(anew, method, seed))
        except InputError as error:
            skipped[f"{name}: thresholds"], held = f"on half of the rows: {error}", None
        rows += _rows(case, held)
    kept = settings.model_dump() | {"skipped": skipped}
    return Evaluation(pd.DataFrame(rows, columns=list(COLUMNS)), kept, raw, fitted)


def _named(calibrators: Iterable[str | Calibrator]) -> Iterator[tuple[str, str | Calibrator]]:
    """Calibrators and their names."""
    own = {cls: name for name, cls in METHODS.items()}
    for given in [calibrators] if isinstance(calibrators, str | Calibrator) else calibrators:
        if isinstance(given, str):
            method, copies = parse_name(given)
            name = f"{method}+corrupted" if copies else method
            yield name, name
        elif isinstance(given, Calibrator):
            yield own.get(type(given), type(given).__name__), given
        else:
            raise InputError("calibrators or their names", type(given).__name__)


@dataclass(frozen=True, eq=False)
class Case:
    """Predictions under one calibrator, or none, all of them or of one label or value."""

    calibrator: str
    answers: Calibrated
    settings: EvaluationSettings
    columns: Mapping[str, Mapping[str, Tensor]]
    part: str = ""

    @property
    def sampling(self) -> dict[str, Any]:
        """The bootstrap's arguments."""
        return self.settings.model_dump(include={"resamples", "level", "seed"})

    @property
    def tested(self) -> dict[str, Prediction]:
        """Splits that nothing was trained or fitted on."""
        seen = ("train", self.settings.fit_on)
        return {split: p for split, p in self.answers.raw.items() if split not in seen}

    def parts(self) -> Iterator[Case]:
        """One label or value after the other, where it is known; classes are one part."""
        parts = {split: p.parts() for split, p in self.answers.raw.items()}
        for name, first in next(iter(parts.values())).items():
            known = {split: found[name] for split, found in parts.items() if len(found[name])}
            if first in self.answers.raw.values():
                yield self
            elif known:
                yield replace(self, answers=Calibrated(known, self.settings.fit_on), part=name)

    def record(
        self, kind: str, split: str, measure: str, value: float | Interval, variant: str = "",
        **more: object,
    ) -> Record:  # fmt: skip
        """One row of the table."""
        numbers = value if isinstance(value, Interval) else Interval(value, math.nan, math.nan)
        row = {"kind": kind, "split": split, "calibrator": self.calibrator, "measure": measure}
        row["variant"] = ": ".join(filter(None, (self.part, variant)))
        return {**row, **numbers._asdict(), "rows": len(self.answers.raw[split]), "against": "",
                **more}  # fmt: skip


def _rows(case: Case, held: Case | None) -> Iterator[Record]:
    """All rows of the table for one calibrator; ``held`` is what thresholds are put on."""
    first, parts = next(iter(case.answers.raw.values())), list(case.parts())
    together = first.mean_of_parts or len(parts) == 1  # values have units: no mean of several
    blocks = [case] * together + parts * (len(parts) > 1)
    scores = (*first.ood_scores, *FITTED)
    for part in blocks:
        yield from _measured(part)
        if bool(part.part) != together:
            yield from _subgroups(part)
            yield from _detected(part, [s for s in scores if together or s not in _OF_ROWS])
    if not together:
        yield from _detected(case, _OF_ROWS)
    for part in held.parts() if held is not None else ():
        val = part.answers.raw.get(case.settings.fit_on)
        if val is not None and val.target is not None:
            for row in _thresholds(part, val):
                yield row | {"against": case.settings.fit_on}


def _measured(case: Case) -> Iterator[Record]:
    """Metrics with intervals on every split."""
    for split, p in case.answers.raw.items():
        wanted = metrics.measures(case.settings.about, case.settings.bins) | {"gap": metrics.gap}
        if p.trust is None:
            wanted = {n: f for n, f in wanted.items() if not n.startswith("trust")}
        if p.target is None:
            wanted = {n: f for n, f in wanted.items() if n.startswith(_NEED_NO_TRUTH)}
        elif p.target.isnan().all():
            continue
        found = metrics.bootstrap_all(wanted, p, **case.sampling)
        few = "roc_auc" in found and not found["roc_auc"].low < found["roc_auc"].high
        for measure, value in found.items():
            # what a rare class decides has no interval where resamples hardly differ
            bare = few and measure in _RANKED
            yield case.record("metrics", split, measure, value.value if bare else value)
        if "accuracy" in found:
            yield case.record("metrics", split, "majority", metrics.majority(p))


def _subgroups(case: Case) -> Iterator[Record]:
    """The first measures of groups of rows."""
    for split, columns in case.columns.items():
        p = case.answers.raw[split]
        if p.target is None:
            continue
        wanted = metrics.measures(p.kind, case.settings.bins, p.summary)
        table = metrics.subgroups(p, columns, metrics=wanted, **case.sampling)
        for row in table.to_dict(orient="records"):
            more = {"variant": f"{row['column']}: {row['group']}", "rows": row["rows"]}
            for name in wanted:
                value = Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
                yield case.record("subgroups", split, name, value, **more)


def _graph_columns(view: View) -> dict[str, Tensor]:
    """Degree and, of graphs, number of nodes, of each row ``[m]``, where rows differ."""
    counts = [structure_of(graph, view.task) for graph in view.graphs]
    if any(count is None for count in counts):
        raise InputError("graphs whose edges are known, for subgroups", view.task)
    found = torch.cat(counts)[view.numbers].expm1().round(decimals=6)  # type: ignore[arg-type]
    columns = dict(zip(("size", "degree")[-found.size(1) :], found.T, strict=True))
    return {name: column for name, column in columns.items() if column.unique().numel() > 1}


def _detected(case: Case, names: Iterable[str]) -> Iterator[Record]:
    """Detection of shift by every score that applies."""
    against, train = case.settings.negatives, case.answers.raw.get("train")
    if (negative := case.answers.raw.get(against)) is None:
        return
    for name in names:
        unchanged = name in _OF_ROWS and case.calibrator != "none"
        if unchanged or (name in ("epistemic", "spread") and negative.num_samples == 1):
            continue
        with suppress(InputError):  # no training rows or too few, no novelty, no features
            fitted = FITTED[name]().fit(train) if name in FITTED and train is not None else name
            for split in filter(case.answers.raw.__contains__, case.settings.ood):
                sets = score(negative, fitted), score(case.answers.raw[split], fitted)
                found = metrics.separation(*sets, **case.sampling)
                for measure, value in found._asdict().items():
                    more = {"variant": name, "against": against}
                    yield case.record("ood", split, measure, value, **more)


def _thresholds(case: Case, val: Prediction) -> Iterator[Record]:
    """All that is fitted on validation rows: predicted accuracy, conformal answers, abstention."""
    for split, p in case.tested.items() if isinstance(val, ClassPrediction) else ():
        guess = generalization.estimate_interval(val, p, **case.sampling)
        for measure, value in zip(("predicted_accuracy", "error"), guess, strict=True):
            if value is not None:
                yield case.record("error prediction", split, measure, value, variant="threshold")
    for name in conformal.METHODS[case.settings.about]:
        for split, found in _conformal_answers(case, val, name):
            record = partial(case.record, "conformal", split, variant=name)
            if case.answers.raw[split].target is not None:
                yield record("coverage", _share(found.covered, case))
            yield record(found.size_name, float(found.size.double().mean()))
            yield record("shift_pvalue", found.shift.pvalue)
    yield from _abstention(case, val)


def _conformal_answers(case: Case, val: Prediction, name: str) -> list[tuple[str, Any]]:
    """Sets or intervals of every tested split; the shift is in the table, so no warning."""
    options: dict[str, Any] = {"alpha": case.settings.alpha, "seed": case.settings.seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", conformal.ShiftWarning)
        if name == "daps":
            if (full := case.answers.full) is None:
                return []
            nodes = conformal.DAPS(full.graph, **options)
            nodes.fit(full.p, rows=full.rows[case.settings.fit_on])
            return [(split, nodes(full.p, rows=full.rows[split])) for split in case.tested]
        method = conformal.make(val, name, **options).fit(val)
        return [(split, method(p)) for split, p in case.tested.items()]


def _abstention(case: Case, val: Prediction) -> Iterator[Record]:
    """Share of answers, and their accuracy or error, when it answers only if sure enough."""
    of_classes = isinstance(val, ClassPrediction)
    for wish, wished in case.settings.abstain.items():
        if wish == "accuracy" and not of_classes:
            continue
        rule = Abstention(**{wish: wished})  # type: ignore[arg-type]
        try:
            rule.fit(val)
        except InputError:  # no threshold reaches that accuracy: nothing is answered
            rule.threshold = -math.inf
        for split, p in case.tested.items():
            kept = rule(p).kept
            record = partial(case.record, "abstention", split, variant=f"{wish}={wished:g}")
            yield record("coverage", _share(kept, case))
            if p.target is not None:
                measure = metrics.accuracy if of_classes else metrics.rmse
                some = kept.any() and metrics.bootstrap(measure, p[kept], **case.sampling)
                yield record(measure.__name__, some or math.nan)


def _share(hits: Tensor, case: Case) -> Interval:
    """A share of rows with its Wilson interval."""
    return share_interval(float(hits.double().mean()), hits.numel(), case.settings.level)
