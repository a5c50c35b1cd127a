"""A model on a split, in words: the one place of a report that depends on the kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gduq import metrics
from gduq.metrics import Interval
from gduq.prediction import (
    ClassPrediction,
    LabelPrediction,
    Prediction,
    Target,
    ValuePrediction,
    infer_target,
)
from gduq.report.comparing import change, is_clear
from gduq.report.subject import Subject

__all__ = ["Mark", "ScoreColumn", "SplitResult", "compared", "result_of"]

PROMISED = 0.9  # the level of the intervals that are judged
_MIN_ROWS, _MIN_POSITIVES = 30, 10  # fewer say nothing about a model
_WIDE = 0.5  # of the spread of the measured values: wider 90 % intervals say too little
_R2 = 0.1  # a model of values that explains less is of little use
_RECALL = 1 / 3  # who finds less of a class or label misses most of it
_UNEVEN = 1.5  # times its fair share of the rows make a class so common that others are rare
_FIRST = 30  # rows at the top of a ranking whose hits are counted
_NAMED = 3  # classes, labels or values that a sentence names


Mark = Literal["", "better", "worse"]


class ScoreColumn(NamedTuple):
    """A column of a scorecard; ``better`` says whether more or less is better, or nearer to 0."""

    measure: str
    title: str
    style: Literal["number", "share", "points"] = "number"
    better: Literal["up", "down", "near", ""] = "down"


ACCURACY = ScoreColumn("accuracy", "Accuracy,\u00a0%", "share", "up")
BALANCED = ScoreColumn("balanced_accuracy", "Balanced accuracy,\u00a0%", "share", "up")
ECE = ScoreColumn("ece", "ECE")
ROC_AUC = ScoreColumn("roc_auc", "ROC-AUC", better="up")
AVERAGE_PRECISION = ScoreColumn("average_precision", "Average precision", better="up")
_GAP = ScoreColumn("gap", "Gap,\u00a0points", "points", "near")
_NLL, _BRIER = ScoreColumn("nll", "NLL"), ScoreColumn("brier", "Brier score")
_RMSE = ScoreColumn("rmse", "RMSE{unit}")
_COVERAGE = ScoreColumn("coverage_90", "90\u00a0% intervals hold,\u00a0%", "share", "")
_OF_VALUES = (
    *(_RMSE, _COVERAGE, _GAP, ScoreColumn("width_90", "Their width{unit}", better=""), _NLL),
    *(ScoreColumn("crps", "CRPS{unit}"), ScoreColumn("miscalibration_area", "Miscalibration area")),
)


class SplitResult(ABC):
    """A subject on a split: what its numbers say of all rows, and what it says of single ones."""

    over: ClassVar[str] = "over-confident"
    under: ClassVar[str] = "under-confident"
    neither: ClassVar[str] = "neither clearly over- nor under-confident"
    who: ClassVar[str] = "it is"
    in_parts: ClassVar[bool] = False  # whether every label or value has tables of its own
    growing: ClassVar[Mapping[str, str]] = {"ece": "ECE", "accuracy": "accuracy"}

    def __init__(self, subject: Subject, split: str) -> None:
        self.subject, self.split = subject, split
        self.p: Any = subject.predictions[split]

    def value(self, measure: str) -> Interval:
        """A number of its evaluation here."""
        return self.subject.value(self.split, measure)

    @cached_property
    def gap(self) -> Interval:
        """What it promises minus what it holds."""
        return self.value("gap")

    @property
    def state(self) -> str:
        """What its gap means: ``over-confident by 12 points``."""
        if not is_clear(self.gap):
            return self.neither
        size = abs(self.gap.value)
        points = f"{100 * size:.{0 if size >= 0.1 else 1}f} points"
        return f"{self.over if self.gap.value > 0 else self.under} by {points}"

    @property
    def parts(self) -> list[tuple[str, SplitResult]]:
        """Every label or value that has rows with a truth here, by name."""
        pairs = zip(self.subject.names, self.subject.parts, strict=True)
        return [(n, result_of(s, self.split)) for n, s in pairs if s.labelled(self.split)]

    @property
    def too_few(self) -> str:
        """What these rows are too few to show; else empty."""
        return f"{len(self.p)} rows are too few to judge it" if len(self.p) < _MIN_ROWS else ""

    @property
    def is_ranked(self) -> bool:
        """Whether its answers are ranked clearly better than by chance."""
        return self.value("roc_auc").low > 0.5

    @property
    @abstractmethod
    def columns(self) -> tuple[ScoreColumn, ...]:
        """The columns of its scorecard."""

    @property
    @abstractmethod
    def error(self) -> str:
        """The error that matters."""

    @property
    @abstractmethod
    def has_skill(self) -> bool:
        """Whether it does more than one answer for all rows would."""

    @property
    @abstractmethod
    def baseline(self) -> str:
        """The best such answer, and how good it is."""

    @property
    def promise(self) -> tuple[float, float]:
        """What it promises and what it holds: confidence and accuracy."""
        right = self.value("accuracy").value
        return right + self.gap.value, right

    @property
    def held(self) -> str:
        """How much of what it promises it holds."""
        (sure, right), many = self.promise, len(self.subject.names)
        over = f" over {many} labels" if many > 1 else ""
        return f"on average{over} it is {100 * sure:.0f} % sure and {100 * right:.0f} % right"

    @abstractmethod
    def faults(self) -> Iterator[str]:
        """Why it is of little use, which low confidence does not excuse."""

    def details(self) -> Iterator[tuple[str, str, bool]]:
        """What the average hides: about what, in words, and whether that is bad."""
        return iter(())

    # -- single rows -----------------------------------------------------------------------------

    @property
    def score(self) -> str:
        """What uncertainty means: disagreement if there is any, else entropy."""
        return "epistemic" if self.p.num_samples > 1 else "entropy"

    @property
    def uncertainty(self) -> Tensor:
        """Per row ``[m]``."""
        found: Tensor = getattr(self.p, self.score)
        return found.reshape(len(self.p), -1).mean(dim=1)

    @property
    @abstractmethod
    def missed(self) -> Tensor:
        """Which answers are wrong ``[m, T]``."""

    @property
    def sureness(self) -> Tensor:
        """How sure it was of each answer ``[m, T]``, to rank its errors by."""
        sure: Tensor = self.p.confidence
        return sure.reshape(len(self.p), -1)

    @abstractmethod
    def in_words(self, y: Tensor) -> str:
        """An answer or a truth ``[T]``, as far as it is known."""

    def answer(self, row: int) -> str:
        """What it says of a row."""
        return self.in_words(self.p.label[row].flatten())

    @cached_property
    def target(self) -> Target | None:
        """What numbers the truth of graphs as the predictions do; ``None`` where it stays."""
        return None

    def certainty(self, row: int) -> str:
        """How sure it is of a row."""
        sure = f"{100 * float(self.p.confidence[row].mean()):.0f} % sure"
        return f"{sure}, {self.score} {float(self.uncertainty[row]):.2f}"


class _Discrete(SplitResult):
    @cached_property
    def common_share(self) -> float:
        """How often always giving the most common answer would be right; of labels on average."""
        return float(metrics.majority(self.p).accuracy)

    @property
    def has_skill(self) -> bool:
        better = self.value("accuracy").value > self.common_share
        return self.common_share == 1 or better or self.is_ranked

    @property
    def _right(self) -> str:
        return f"right {100 * self.common_share:.1f} % of the time"


class _Classes(_Discrete):
    @cached_property
    def recalls(self) -> list[tuple[str, float, int]]:
        """Name, found share and rows of every class with rows, rarest first."""
        y = self.p.require_target()
        counts, found = y.bincount().tolist(), []
        for c in sorted((c for c, rows in enumerate(counts) if rows), key=counts.__getitem__):
            share = float(self.p.correct[y == c].double().mean())
            found.append((self.subject.class_name(c, self.split), share, counts[c]))
        return found

    @property
    def is_uneven(self) -> bool:
        """Whether the most common class makes others rare."""
        return self.common_share >= _UNEVEN / len(self.recalls)

    @property
    def columns(self) -> tuple[ScoreColumn, ...]:
        if self.p.num_classes == 2 or self.is_uneven:
            ranked = (ROC_AUC, AVERAGE_PRECISION)
            return (ACCURACY, BALANCED, *ranked, _GAP, ECE, _NLL, _BRIER)
        return (ACCURACY, BALANCED, _GAP, ECE, _NLL, _BRIER, ScoreColumn("aurc", "AURC"))

    @property
    def error(self) -> str:
        right = f"is right in {100 * self.value('accuracy').value:.0f} % of the rows"
        auc = self.value("roc_auc").value
        if not self.is_uneven or math.isnan(auc):
            return right
        ranked = f"ranks with a ROC-AUC of {auc:.2f}"
        if self.p.num_classes != 2:
            return f"{right} and {ranked}"
        first = min(_FIRST, len(self.p))
        hits = int((self.p.target[self.p.probs[:, 1].topk(first).indices] == 1).sum())
        name = self.subject.class_name(1, self.split)
        return f"{ranked}: {hits} of the first {first} are “{name}”"

    @property
    def baseline(self) -> str:
        name = max(self.recalls, key=lambda recall: recall[2])[0]
        return f"always answering “{name}”, {self._right}"

    def faults(self) -> Iterator[str]:
        for name, share, rows in self.recalls if len(self.recalls) > 1 else ():
            if share < _RECALL:
                yield f"it finds {100 * share:.0f} % of “{name}” ({rows:,} rows)"

    @property
    def too_few(self) -> str:
        name, _, rows = self.recalls[0]
        if len(self.recalls) == 1:
            return f"all of these rows are “{name}”, so they cannot show whether others are found"
        if self.p.num_classes == 2 and rows < _MIN_POSITIVES:
            return f"{rows} rows of “{name}” are too few to judge it"
        return super().too_few

    def details(self) -> Iterator[tuple[str, str, bool]]:
        found, fair = self.recalls, self.value("balanced_accuracy").value
        lost = min(share for _, share, _ in found) < self.value("accuracy").value / 2
        if self.is_uneven or lost:
            weak = sorted(found, key=lambda recall: recall[1])[:_NAMED]
            parts = [f"{100 * share:.0f} % of “{name}” ({n:,} rows)" for name, share, n in weak]
            text = f"Balanced accuracy is {100 * fair:.0f} %: it finds {', '.join(parts)}"
            more = ", its weakest classes" if len(found) > _NAMED else ""
            yield "", f"{text}{more}.", lost

    @cached_property
    def target(self) -> Target | None:
        splits = self.subject.splits
        if splits is None or splits.train.graphs[0].get("y") is None:
            return None
        known = [view for _, view in splits if view.graphs[0].get("y") is not None]
        y = torch.cat([view.target for view in known])  # train may lack a class
        return infer_target(y, self.p.num_classes, "classes")

    @property
    def missed(self) -> Tensor:
        wrong: Tensor = ~self.p.correct
        return wrong.unsqueeze(1)

    def in_words(self, y: Tensor) -> str:
        return self.subject.class_name(int(y[0]), self.split)


class _Labels(_Discrete):
    columns = (ROC_AUC, AVERAGE_PRECISION, ACCURACY, BALANCED, _GAP, ECE, _NLL)
    growing: ClassVar[Mapping[str, str]] = {"ece": "ECE", "roc_auc": "ROC-AUC"}

    @cached_property
    def positives(self) -> list[tuple[str, float, int]]:
        """Name, found share and number of the positives of every label that has some."""
        found = []
        for name, part in self.parts:
            yes = part.p.target == 1
            if rows := int(yes.sum()):
                found.append((name, float(part.p.correct[yes].double().mean()), rows))
        return found

    @property
    def error(self) -> str:
        ranked = f"ranks with a ROC-AUC of {self.value('roc_auc').value:.2f}"
        if not self.positives:
            return ranked
        mean = " on average" if len(self.positives) > 1 else ""
        recall = fmean(share for _, share, _ in self.positives)
        return f"{ranked} and finds {100 * recall:.0f} % of the positives{mean}"

    @property
    def baseline(self) -> str:
        return f"giving each label's more common answer, {self._right}"

    def faults(self) -> Iterator[str]:
        for name, share, rows in self.positives:
            if share < _RECALL:
                about = f" of “{name}”" if name else ""
                yield f"it finds {100 * share:.0f} % of the positives{about} ({rows:,} rows)"

    @property
    def too_few(self) -> str:
        most = max((rows for _, _, rows in self.positives), default=0)
        return f"{most} positives are too few to judge it" if most < _MIN_POSITIVES else ""

    def details(self) -> Iterator[tuple[str, str, bool]]:
        values = [(name, part.value("roc_auc")) for name, part in self.parts]
        known = [(name, auc) for name, auc in values if not math.isnan(auc.value)]
        weak = sorted((auc.value, name) for name, auc in known if auc.low <= 0.5)
        if weak and len(known) > 1:
            names = ", ".join(f"“{name}” ({value:.2f})" for value, name in weak[:_NAMED])
            more = f" and {len(weak) - _NAMED} more" if len(weak) > _NAMED else ""
            text = f"Of {len(known)} labels, {len(weak)} may be ranked by chance: {names}{more}."
            yield "", text, len(weak) == len(known)

    @property
    def missed(self) -> Tensor:
        wrong: Tensor = (self.p.label != (self.p.target == 1)) & self.p.known
        return wrong.reshape(len(self.p), -1)

    def in_words(self, y: Tensor) -> str:
        if len(y) == 1:
            return {1.0: "yes", 0.0: "no"}.get(float(y[0]), "unknown")
        named = list(zip(self.subject.names, y.tolist(), strict=True))
        gaps = [name for name, value in named if value not in (0, 1)]
        if len(gaps) == len(named):
            return "unknown"
        found = ", ".join(name for name, value in named if value == 1) or "none"
        return f"{found} (unknown: {', '.join(gaps)})" if gaps else found


class _Values(SplitResult):
    over, under = "too narrow", "too wide"
    neither, who = "neither clearly too narrow nor too wide", "its intervals are"
    in_parts, columns = True, _OF_VALUES
    growing: ClassVar[Mapping[str, str]] = {"coverage_90": "share in 90 % intervals",
                                            "rmse": "RMSE"}  # fmt: skip

    @cached_property
    def spread(self) -> float:
        """From the 5 to the 95 % quantile of the measured values."""
        low, high = np.nanquantile(self.p.require_target().double().cpu().numpy(), (0.05, 0.95))
        return float(high - low)

    @property
    def _width(self) -> tuple[float, float]:
        """Of its 90 % intervals, and as a share of the spread."""
        width = self.value("width_90").value
        return width, width / self.spread if self.spread else math.nan

    @property
    def error(self) -> str:
        if len(self.parts) > 1:
            return f"has an R² of {self.value('r2').value:.2f} on average"
        unit = next(filter(None, self.p.units or ()), "")
        unit, (width, share) = f" {unit}" if unit else "", self._width
        wide = "" if math.isnan(share) else f" ({100 * share:.0f} % of the spread of the values)"
        error = f"has an RMSE of {self.value('rmse').value:.3g}{unit}"
        return f"{error} and 90 % intervals {width:.3g}{unit} wide{wide}"

    @property
    def has_skill(self) -> bool:
        return not self.value("r2").value <= 0

    @property
    def baseline(self) -> str:
        return "predicting the mean (R² ≤ 0)"

    @property
    def promise(self) -> tuple[float, float]:
        return PROMISED, PROMISED - self.gap.value

    @property
    def held(self) -> str:
        mean = f" (mean of {len(self.parts)} values)" if len(self.parts) > 1 else ""
        return f"its 90 % intervals hold {100 * self.promise[1]:.0f} % of the truth{mean}"

    def faults(self) -> Iterator[str]:
        for name, one in self.parts:
            assert isinstance(one, _Values)
            about, (width, share) = f" of “{name}”" if name else "", one._width
            if (explained := one.value("r2").value) < _R2:
                yield f"it explains {100 * explained:.0f} % of the variance{about} (R²)"
            if share > _WIDE:
                spread = f"{100 * share:.0f} % of the 5–95 % range of the values ({one.spread:.3g})"
                yield f"its 90 % intervals{about} are {width:.3g} wide, {spread}"

    def details(self) -> Iterator[tuple[str, str, bool]]:
        for name, one in self.parts if len(self.parts) > 1 else ():
            bad = is_clear(one.gap) and one.gap.value >= 0.05
            yield name, f"It {one.error}; {one.held}: {one.state}.", bad

    @property
    def score(self) -> str:
        return "deviation"

    @property
    def uncertainty(self) -> Tensor:
        """In units of the typical deviation of each value."""
        found: Tensor = self.p.std / self.p.std.mean(dim=0)
        return found.reshape(len(self.p), -1).mean(dim=1)

    @property
    def missed(self) -> Tensor:
        """Outside the 90 % interval."""
        low, high = self.p.interval(PROMISED)
        outside: Tensor = (self.p.target < low) | (self.p.target > high)
        return outside.reshape(len(self.p), -1)

    @property
    def sureness(self) -> Tensor:
        errors: Tensor = (self.p.target - self.p.mean).abs() / self.p.std
        return errors.reshape(len(self.p), -1)

    def in_words(self, y: Tensor) -> str:
        words = ["unknown" if math.isnan(v) else f"{v:.3g}" for v in y.tolist()]
        return self._named(words)

    def _named(self, words: list[str]) -> str:
        named = zip(self.subject.names, words, strict=True)  # one alone has an empty name
        return ", ".join(f"{name} {word}".strip() for name, word in named)

    def answer(self, row: int) -> str:
        return self.in_words(self.p.mean[row].flatten())

    def certainty(self, row: int) -> str:
        ends = (end.flatten().tolist() for end in self.p[row].interval(PROMISED))
        words = [f"{low:.3g} to {high:.3g}" for low, high in zip(*ends, strict=True)]
        return f"90 % interval {self._named(words)}"


_RESULTS: dict[type[Prediction], Callable[[Subject, str], SplitResult]] = {
    ClassPrediction: _Classes,
    LabelPrediction: _Labels,
    ValuePrediction: _Values,
}


def result_of(subject: Subject, split: str) -> SplitResult:
    """A subject on a split."""
    return _RESULTS[type(subject.predictions[split])](subject, split)


def compared(
    first: Subject, other: Subject, split: str, columns: Sequence[ScoreColumn]
) -> dict[ScoreColumn, Mark] | None:
    """Where another subject is better or worse, beyond the interval of the paired difference;
    ``None`` if they were not judged on the same rows."""
    marks: dict[ScoreColumn, Mark] = {}
    many = len(first.names) > 1
    for column in columns:
        if not column.better or (many and "{unit}" in column.title):
            continue
        name = "distance" if column.better == "near" else column.measure
        found = change(name, first, other, split)
        if found is None:
            return None
        if is_clear(found):
            marks[column] = "better" if (found.value > 0) == (column.better == "up") else "worse"
    if marks.get(BALANCED) == "worse" and marks.get(ACCURACY) == "better":
        del marks[ACCURACY]  # gained by leaving a class out: no praise for that
    return marks
