"""`evaluate`: one call that says how far to trust a model.

The kinds of `Prediction` say what is measured: their metrics, scores, conformal methods and parts.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.utils import degree, remove_self_loops, to_undirected

from gduq import conformal, metrics
from gduq import ood as ood_scores
from gduq.calibration import FIXED, METHODS, Calibrator, parse_name
from gduq.errors import InputError
from gduq.evaluation.calibrated import Calibrated, answers_of, ood_names, views_of
from gduq.evaluation.evaluation import COLUMNS, Evaluation
from gduq.graphs.splits import Splits
from gduq.graphs.view import View
from gduq.metrics import Interval
from gduq.metrics.resampling import share_interval
from gduq.ood import FITTED, Abstention, generalization
from gduq.prediction import ClassPrediction, Prediction

__all__ = ["Case", "EvaluationSettings", "evaluate"]

Record = dict[str, Any]
_RANKED = ("balanced_accuracy", "roc_auc", "average_precision")  # as good as their rarest class
_NEED_NO_TRUTH = ("sharpness", "width")
_OF_ROWS = ("novelty", *FITTED)  # scores of representations, which no calibrator changes


@dataclass(frozen=True)
class EvaluationSettings:
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


def evaluate(
    model_or_predictions: nn.Module | Prediction | Mapping[str, Prediction] | Calibrated,
    splits: Splits | Mapping[str, View] | None = None,
    calibrators: Iterable[str | Calibrator] | Mapping[str, str | Calibrator] = (),
    *,
    corrupted: Sequence[Prediction] | None = None,
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

    On every split: metrics of its kind with intervals. Of several labels or values each has rows
    under its name (``variant``), and the mean over labels has rows without one. On splits other
    than ``train`` and ``fit_on``: conformal sets or intervals, abstention and, of classes and
    labels, predicted accuracy, all fitted on ``fit_on``. On OOD splits: detection by every score
    that applies. What cannot be measured is not in the table; which named calibrators could not be
    fitted, and why, is in ``settings["skipped"]``.

    No row serves both a calibrator and a threshold: thresholds on rows that a flexible calibrator
    has seen promise too much. So for thresholds a calibrator is fitted anew on a random half of
    ``fit_on``, and they on the other half. A calibrator that comes fitted is used as it is: fit it
    on other rows than ``fit_on``.

    Args:
        model_or_predictions: A model (then with ``splits``), predictions by split name, one
            prediction, which is called ``test``, or a `gduq.evaluation.calibrated.Calibrated`.
        splits: A `gduq.data.Splits`, or views by name.
        calibrators: Names of `gduq.calibration.METHODS`, or calibrators; those that are not yet
            fitted are fitted on ``fit_on``, by name with ``missing="keep"``. A name that ends in
            ``+corrupted`` is fitted on shifted copies of ``fit_on`` too.
        corrupted: Those copies: predictions of the rows of ``fit_on``, in order, with labels. A
            model makes its own by default, see `gduq.shifts.corruptions`.
        fit_on: The split with labels that calibrators and thresholds are fitted on.
        negatives: The ID split that OOD rows are told from: ``id_test``, or else ``id_val``.
        ood: The OOD splits; by default the severities, and those that begin with "ood".
        alpha: Accepted share of misses of conformal sets.
        bins: Bins of ECE, adaptive and classwise ECE (``ece100`` always has 100).
        abstain: Wished ``coverage`` and ``accuracy`` of answers; 0.8 and 0.9 by default.
        subgroups: Also measure groups by degree and size; needs ``splits``.
        resamples: Bootstrap resamples of every interval.
        level: Coverage of the intervals.
        seed: Seed of everything random.
        batch_size: Graphs at a time, when a model predicts.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.randint(3, (300,), generator=g)
        >>> z = 4 * (torch.nn.functional.one_hot(y, 3) + torch.randn(300, 3, generator=g))
        >>> val, test = (ClassPrediction(z[i::2], y[i::2]) for i in (0, 1))
        >>> p = {"id_val": val, "id_test": test}
        >>> found = evaluate(p, calibrators=["temperature"], resamples=100)
        >>> found.value("id_test", "nll", "temperature").value < found.value("id_test", "nll").value
        True
    """
    views = views_of(splits)
    answers = model_or_predictions
    if not isinstance(answers, Calibrated):
        answers = answers_of(answers, views, fit_on, corrupted, batch_size, seed)
    raw = answers.raw
    settings = EvaluationSettings(
        fit_on=answers.fit_on,
        negatives=negatives or ("id_test" if "id_test" in raw else "id_val"),
        ood=ood_names(ood, raw, splits),
        alpha=alpha,
        bins=bins,
        abstain={"coverage": 0.8, "accuracy": 0.9} if abstain is None else dict(abstain),
        resamples=resamples,
        level=level,
        seed=seed,
    )
    _check_settings(settings, raw, negatives)
    columns = {}
    if subgroups:
        if not views:
            raise InputError("splits for subgroups=True", "none", "Pass splits=.")
        columns = {name: _graph_columns(views[name]) for name in raw if name in views}
    return _evaluated(Case("none", answers, settings, columns), _named(calibrators))


def _evaluated(plain: Case, calibrators: Iterable[tuple[str, str | Calibrator]]) -> Evaluation:
    """Everything measured, without and with every calibrator; see `evaluate`."""
    import pandas as pd

    answers, settings = plain.answers, plain.settings
    fitted, skipped = dict[str, Calibrator](), dict[str, str]()
    rows = list(_rows(plain, plain))
    for name, given in calibrators:
        if name in fitted or name in skipped or name == "none":
            raise InputError("calibrators with different names", f"{name!r} twice or 'none'")
        method = given if isinstance(given, str) else ""
        _check(given, answers)
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
                held = replace(case, answers=answers.held_out(anew, method, settings.seed))
        except InputError as error:
            skipped[f"{name}: thresholds"] = f"on half of the rows: {error}"
            held = None
        rows += _rows(case, held)
    kept = asdict(settings) | {"ood": list(settings.ood), "skipped": skipped, "about": plain.kind}
    return Evaluation(pd.DataFrame(rows, columns=list(COLUMNS)), kept, answers.raw, fitted)


@dataclass(frozen=True, eq=False)
class Case:
    """Predictions under one calibrator, or none, and what their rows are grouped by."""

    calibrator: str
    answers: Calibrated
    settings: EvaluationSettings
    columns: Mapping[str, Mapping[str, Tensor]]

    @property
    def predictions(self) -> dict[str, Prediction]:
        """By split."""
        return self.answers.raw

    @property
    def first(self) -> Prediction:
        """Of the first split; all are of one kind."""
        return next(iter(self.predictions.values()))

    @property
    def kind(self) -> str:
        """What the predictions are about."""
        return self.first.kind

    @property
    def validation(self) -> Prediction | None:
        """Labelled predictions that thresholds are chosen on, or ``None``."""
        p = self.predictions.get(self.settings.fit_on)
        return None if p is None or p.target is None else p

    def tested(self) -> Iterator[tuple[str, Prediction]]:
        """Splits that nothing was trained or fitted on."""
        for split, p in self.predictions.items():
            if split not in ("train", self.settings.fit_on):
                yield split, p

    def parts(self) -> Iterator[tuple[str, Case]]:
        """One label or value after the other, by name, where it is known; classes are one part."""
        if self.first.parts().get("") is self.first:
            yield "", self
            return
        parts = {split: p.parts() for split, p in self.predictions.items()}
        for name in self.first.parts():
            known = {split: found[name] for split, found in parts.items() if len(found[name])}
            if known:
                yield name, replace(self, answers=Calibrated(known, self.settings.fit_on))

    def record(
        self, kind: str, split: str, measure: str, value: float | Sequence[float], **more: Any
    ) -> Record:
        """One row of the table; ``value`` is a number, or a triple of value, low, high."""
        three = value if isinstance(value, tuple) else (value, math.nan, math.nan)
        numbers = dict(zip(("value", "low", "high"), map(float, three), strict=True))
        row = {"kind": kind, "split": split, "calibrator": self.calibrator, "measure": measure}
        rows = len(self.predictions[split])
        return {**row, **numbers, "rows": rows, "variant": "", "against": "", **more}


def _rows(case: Case, held: Case | None) -> Iterator[Record]:
    """All rows of the table for one calibrator; ``held`` is what thresholds are put on."""
    kind, parts = case.kind, list(case.parts())
    together = case.first.mean_of_parts or len(parts) == 1  # values have units: no mean of several
    if together:
        yield from _measured(case, kind)
        yield from _subgroups(case)
        yield from _detected(case, (*case.first.ood_scores, *FITTED))
    else:
        yield from _detected(case, _OF_ROWS)
    for name, part in parts if len(parts) > 1 else ():
        yield from _named_rows(name, _measured(part, kind))
        if not together:
            yield from _named_rows(name, _subgroups(part))
            own = [score for score in part.first.ood_scores if score not in _OF_ROWS]
            yield from _named_rows(name, _detected(part, own))
    for name, part in held.parts() if held is not None else ():
        if part.validation is not None:
            for row in _named_rows(name, _thresholds(part, part.validation, kind)):
                yield row | {"against": case.settings.fit_on}


def _named_rows(name: str, rows: Iterable[Record]) -> Iterator[Record]:
    for row in rows:
        yield row | {"variant": ": ".join(filter(None, (name, row["variant"])))}


def _measured(case: Case, kind: str) -> Iterator[Record]:
    """Metrics with intervals on every split."""
    for split, p in case.predictions.items():
        wanted = metrics.measures(kind, case.settings.bins) | {"gap": metrics.gap}
        if p.target is None:
            wanted = {n: f for n, f in wanted.items() if n.startswith(_NEED_NO_TRUTH)}
        elif p.target.isnan().all():
            continue
        found = metrics.bootstrap_all(wanted, p, **case.settings.sampling)
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
        p = case.predictions[split]
        if p.target is None:
            continue
        wanted = metrics.measures(p.kind, case.settings.bins, p.summary)
        table = metrics.subgroups(p, columns, metrics=wanted, **case.settings.sampling)
        for row in table.to_dict(orient="records"):
            more = {"variant": f"{row['column']}: {row['group']}", "rows": row["rows"]}
            for name in wanted:
                value = Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
                yield case.record("subgroups", split, name, value, **more)


def _graph_columns(view: View) -> dict[str, Tensor]:
    """Degree and number of nodes, of each row or of its graph ``[m]``, where rows differ."""
    if view.task == "edge" or any(hasattr(graph, "node_types") for graph in view.graphs):
        raise InputError("graphs, or nodes of a homogeneous graph, for subgroups", view.task)
    degrees = []
    for graph in view.graphs:
        ends = to_undirected(remove_self_loops(graph.edge_index)[0], num_nodes=graph.num_nodes)[0]
        degrees.append(degree(ends, graph.num_nodes, dtype=torch.float64))
    sizes = torch.tensor([float(len(d)) for d in degrees], dtype=torch.float64)
    if view.rows is None:
        found = {"degree": torch.stack([d.mean() for d in degrees]), "size": sizes}
    else:
        every = {"degree": torch.cat(degrees), "size": sizes.repeat_interleave(sizes.long())}
        found = {name: column[view.rows] for name, column in every.items()}
    return {name: column for name, column in found.items() if column.unique().numel() > 1}


def _detected(case: Case, names: Iterable[str]) -> Iterator[Record]:
    """Detection of shift by every score that applies."""
    against, train = case.settings.negatives, case.predictions.get("train")
    negative = case.predictions.get(against)
    if negative is None:
        return
    shifted = {s: case.predictions[s] for s in case.settings.ood if s in case.predictions}
    both = [negative, *shifted.values()]
    for name in names:
        score: str | ood_scores.Score = name
        if name in _OF_ROWS and case.calibrator != "none":
            continue
        if name in FITTED:
            if train is None or any(p.features is None for p in (train, *both)):
                continue
            options = {"k": min(10, len(train))} if name == "knn" else {}
            score = FITTED[name](**options).fit(train)
        else:
            alone = name in ("epistemic", "spread") and negative.num_samples == 1
            if alone or any(getattr(p, name) is None for p in both):
                continue
        for split, p in shifted.items():
            found = ood_scores.detection(negative, p, score, **case.settings.sampling)
            for measure, value in found._asdict().items():
                yield case.record("ood", split, measure, value, variant=name, against=against)


def _thresholds(case: Case, val: Prediction, kind: str) -> Iterator[Record]:
    """All that is fitted on validation rows: predicted accuracy, conformal answers, abstention."""
    if isinstance(val, ClassPrediction):
        yield from _error_prediction(case, val)
    for name in conformal.METHODS[kind]:
        for split, found in _conformal_answers(case, val, name):
            record = partial(case.record, "conformal", split, variant=name)
            if case.predictions[split].target is not None:
                yield record("coverage", _share(found.covered, case))
            yield record(found.size_name, _mean(found.size, case))
            yield record("shift_pvalue", found.shift.pvalue)
    yield from _abstention(case, val)


def _error_prediction(case: Case, val: ClassPrediction) -> Iterator[Record]:
    """Accuracies predicted without labels, and how far they are off."""
    for split, p in case.tested():
        for method in generalization.METHODS:
            if method == "disagreement" and p.num_samples == 1:
                continue
            found = generalization.estimate_interval(val, p, method, **case.settings.sampling)
            for measure, value in zip(("predicted_accuracy", "error"), found, strict=True):
                if value is not None:
                    yield case.record("error prediction", split, measure, value, variant=method)


def _conformal_answers(case: Case, val: Prediction, name: str) -> list[tuple[str, Any]]:
    """Sets or intervals of every tested split; the shift is in the table, so no warning."""
    options: dict[str, Any] = {"alpha": case.settings.alpha, "seed": case.settings.seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", conformal.ShiftWarning)
        if name == "daps":
            if (full := case.answers.full_graph) is None:
                return []
            nodes = conformal.DAPS(full.graph, **options)
            nodes.fit(full.p, rows=full.rows[case.settings.fit_on])
            return [(split, nodes(full.p, rows=full.rows[split])) for split, _ in case.tested()]
        method = conformal.make(val, name, **options).fit(val)
        return [(split, method(p)) for split, p in case.tested()]


def _abstention(case: Case, val: Prediction) -> Iterator[Record]:
    """Share of answers, and their accuracy or error, when it answers only if sure enough."""
    for wish, wished in case.settings.abstain.items():
        if wish == "accuracy" and not isinstance(val, ClassPrediction):
            continue
        rule = Abstention(**{wish: wished})  # type: ignore[arg-type]
        try:
            rule.fit(val)
        except InputError:  # no threshold reaches that accuracy: nothing is answered
            rule.threshold = -math.inf
        for split, p in case.tested():
            kept = rule(p).kept
            record = partial(case.record, "abstention", split, variant=f"{wish}={wished:g}")
            yield record("coverage", _share(kept, case))
            if p.target is not None and isinstance(p, ClassPrediction):
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


def _named(
    calibrators: Iterable[str | Calibrator] | Mapping[str, str | Calibrator],
) -> Iterator[tuple[str, str | Calibrator]]:
    if isinstance(calibrators, Mapping):
        yield from calibrators.items()
        return
    known = {cls: name for name, cls in METHODS.items()}
    for given in [calibrators] if isinstance(calibrators, (str, Calibrator)) else calibrators:
        if isinstance(given, str):
            method, copies = parse_name(given)
            name = f"{method}+corrupted" if copies else method
            yield name, name
        else:
            yield known.get(type(given), type(given).__name__), given


def _check(given: object, answers: Calibrated) -> None:
    """Raise for mistakes in the call; these are no calibrator's fault."""
    if isinstance(given, str):
        ready = parse_name(given)[0] in FIXED
    elif isinstance(given, Calibrator):
        ready = given.fitted
    else:
        raise InputError("calibrators or their names", type(given).__name__)
    if not ready:
        _ = answers.validation


def _check_settings(
    settings: EvaluationSettings, predictions: Mapping[str, Prediction], negatives: str | None
) -> None:
    """Raise for settings that fit no such predictions."""
    if len(kinds := {p.kind for p in predictions.values()}) > 1:
        raise InputError("splits of one kind", ", ".join(sorted(kinds)))
    if len(sizes := {(p.num_samples, p.samples.size(2)) for p in predictions.values()}) > 1:
        raise InputError("splits with equal K and C", f"(K, C) of {sorted(sizes)}")
    if negatives is not None and negatives not in predictions:
        raise InputError(f"negatives from {', '.join(predictions)}", repr(negatives))
    if not 0 < settings.alpha < 1:
        raise InputError("alpha between 0 and 1", settings.alpha)
    if unknown := set(settings.abstain) - {"coverage", "accuracy"}:
        raise InputError("abstain with 'coverage' and 'accuracy'", ", ".join(sorted(unknown)))
