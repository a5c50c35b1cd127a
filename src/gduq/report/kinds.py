"""A model on a split: what depends on the kind, as numbers; words.j2 has the words."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gduq import metrics
from gduq.metrics import Interval
from gduq.metrics.rows import PROMISED
from gduq.prediction import Target, infer_target
from gduq.report.subject import Subject, change, is_clear

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["Mark", "ScoreColumn", "SplitResult", "compared", "in_words", "result_of", "templates"]

_MIN_ROWS, _MIN_POSITIVES = 30, 10  # fewer say nothing about a model
_WIDE = 0.5  # of the spread of the measured values: wider 90 % intervals say too little
_R2 = 0.1  # a model of values that explains less is of little use
_RECALL = 1 / 3  # who finds less of a class or label misses most of it
_UNEVEN = 1.5  # times its fair share of the rows make a class so common that others are rare
_FIRST = 30  # rows at the top of a ranking whose hits are counted

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


class SplitResult(ABC):
    """A subject on a split: what its numbers say of all rows, and what it says of single ones."""

    in_parts: ClassVar[bool] = False  # whether every label or value has tables of its own
    growing: ClassVar[dict[str, str]]  # measures that are shown against a growing shift
    columns: tuple[ScoreColumn, ...]  # of its scorecard

    def __init__(self, subject: Subject, split: str) -> None:
        self.subject, self.split, self.kind = subject, split, subject.kind
        self.p: Any = subject.predictions[split]

    def value(self, measure: str) -> Interval:
        """A number of its evaluation here."""
        return self.subject.value(self.split, measure)

    @cached_property
    def gap(self) -> Interval:
        """What it promises minus what it holds."""
        return self.value("gap")

    @property
    def is_clear(self) -> bool:
        """Whether the gap is."""
        return is_clear(self.gap)

    @cached_property
    def parts(self) -> list[tuple[str, SplitResult]]:
        """Every label or value that has rows with a truth here, by name."""
        pairs = zip(self.subject.names, self.subject.parts, strict=True)
        return [(n, result_of(s, self.split)) for n, s in pairs if s.labelled(self.split)]

    @property
    def is_ranked(self) -> bool:
        """Whether its answers are ranked clearly better than by chance."""
        return self.value("roc_auc").low > 0.5

    @property
    def too_few(self) -> str:
        """What these rows are too few to show; else empty."""
        return f"{len(self.p)} rows are too few to judge it" if len(self.p) < _MIN_ROWS else ""

    @property
    @abstractmethod
    def has_skill(self) -> bool:
        """Whether it does more than one answer for all rows would."""

    @property
    @abstractmethod
    def promise(self) -> tuple[float, float]:
        """What it promises and what it holds."""

    @property
    @abstractmethod
    def faults(self) -> Sequence[Any]:
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
        found: Tensor = self.p.row_mean(getattr(self.p, self.score))
        return found

    @property
    @abstractmethod
    def errors(self) -> Tensor:
        """How surely it is wrong ``[m]``; 0 where it is right, or nothing is known."""

    @abstractmethod
    def name(self, y: Tensor) -> str:
        """An answer or a truth ``[T]``, as far as it is known."""

    def answer(self, row: int) -> str:
        """What it says of a row."""
        return self.name(self.p.label[row].flatten())

    def encode(self, y: Tensor) -> Tensor:
        """The truth of a graph, numbered as the predictions are."""
        return y

    def certainty(self, row: int) -> str:
        """How sure it is of a row."""
        sure = f"{100 * self.p.confidence[row].mean():.0f} % sure"
        return f"{sure}, {self.score} {self.uncertainty[row]:.2f}"


class _Discrete(SplitResult):
    recalls: list[tuple[str, float, int]]  # name, found share and rows of each class or label

    @cached_property
    def common_share(self) -> float:
        """How often always giving the most common answer would be right; of labels on average."""
        return metrics.majority(self.p)

    @property
    def has_skill(self) -> bool:
        better = self.value("accuracy").value > self.common_share
        return self.common_share == 1 or better or self.is_ranked

    @property
    def promise(self) -> tuple[float, float]:
        right = self.value("accuracy").value
        return right + self.gap.value, right

    @property
    def faults(self) -> Sequence[Any]:
        return [recall for recall in self.recalls if recall[1] < _RECALL]


class _Classes(_Discrete):
    growing: ClassVar[dict[str, str]] = {"ece": "ECE", "accuracy": "accuracy"}

    @cached_property
    def recalls(self) -> list[tuple[str, float, int]]:  # type: ignore[override]
        """Rarest first."""
        y = self.p.require_target()
        counts, found = y.bincount().tolist(), []
        for c in sorted((c for c, rows in enumerate(counts) if rows), key=counts.__getitem__):
            share = float(self.p.correct[y == c].double().mean())
            found.append((self.subject.class_name(c, self.split), share, counts[c]))
        return found

    @property
    def faults(self) -> Sequence[Any]:
        return super().faults if len(self.recalls) > 1 else []

    @property
    def is_uneven(self) -> bool:
        """Whether the most common class makes others rare."""
        return self.common_share >= _UNEVEN / len(self.recalls)

    def details(self) -> Iterator[tuple[str, str, bool]]:
        lost = min(recall[1] for recall in self.recalls) < self.value("accuracy").value / 2
        if self.is_uneven or lost:
            yield "", in_words("classes_found", self), lost

    @property
    def columns(self) -> tuple[ScoreColumn, ...]:  # type: ignore[override]
        if self.p.num_classes == 2 or self.is_uneven:
            ranked = (ROC_AUC, AVERAGE_PRECISION)
            return (ACCURACY, BALANCED, *ranked, _GAP, ECE, _NLL, _BRIER)
        return (ACCURACY, BALANCED, _GAP, ECE, _NLL, _BRIER, ScoreColumn("aurc", "AURC"))

    @property
    def hits(self) -> tuple[int, int, str]:
        """How many of the rows ranked first are of the second class, of how many; its name."""
        first = self.p.probs[:, 1].topk(min(_FIRST, len(self.p))).indices
        name = self.subject.class_name(1, self.split)
        return int((self.p.target[first] == 1).sum()), len(first), name

    @property
    def too_few(self) -> str:
        name, _, rows = self.recalls[0]
        if len(self.recalls) == 1:
            return f"all of these rows are “{name}”, so they cannot show whether others are found"
        if self.p.num_classes == 2 and rows < _MIN_POSITIVES:
            return f"{rows} rows of “{name}” are too few to judge it"
        return super().too_few

    @cached_property
    def _target(self) -> Target:
        assert self.subject.splits is not None
        views = [view for _, view in self.subject.splits if view.graphs[0].get("y") is not None]
        y = torch.cat([view.target for view in views])  # train may lack a class
        return infer_target(y, self.p.num_classes, "classes")

    def encode(self, y: Tensor) -> Tensor:
        return self._target.encode(y)

    @property
    def errors(self) -> Tensor:
        found: Tensor = self.p.confidence * ~self.p.correct
        return found

    def name(self, y: Tensor) -> str:
        return self.subject.class_name(int(y[0]), self.split)


class _Labels(_Discrete):
    columns = (ROC_AUC, AVERAGE_PRECISION, ACCURACY, BALANCED, _GAP, ECE, _NLL)
    growing: ClassVar[dict[str, str]] = {"ece": "ECE", "roc_auc": "ROC-AUC"}

    @cached_property
    def recalls(self) -> list[tuple[str, float, int]]:  # type: ignore[override]
        """Of the positives of every label that has some."""
        yes = [(name, part.p, part.p.target == 1) for name, part in self.parts]
        return [(name, float(p.correct[rows].double().mean()), int(rows.sum()))
                for name, p, rows in yes if rows.any()]  # fmt: skip

    def details(self) -> Iterator[tuple[str, str, bool]]:
        found = [(name, part.value("roc_auc")) for name, part in self.parts]
        known = sorted((f for f in found if f[1].value >= 0), key=lambda f: f[1].value)
        weak = [(name, auc) for name, auc in known if auc.low <= 0.5]
        if weak and len(known) > 1:
            text = in_words("labels_by_chance", weak, len(known))
            yield "", text, len(weak) == len(known)

    @property
    def too_few(self) -> str:
        most = max((rows for _, _, rows in self.recalls), default=0)
        return f"{most} positives are too few to judge it" if most < _MIN_POSITIVES else ""

    @property
    def errors(self) -> Tensor:
        missed = (self.p.label != (self.p.target == 1)) & self.p.known
        found: Tensor = (self.p.confidence * missed).reshape(len(self.p), -1).amax(dim=1)
        return found

    def name(self, y: Tensor) -> str:
        if len(y) == 1:
            return {1.0: "yes", 0.0: "no"}.get(float(y[0]), "unknown")
        named = list(zip(self.subject.names, y.tolist(), strict=True))
        gaps = [name for name, value in named if value not in (0, 1)]
        if len(gaps) == len(named):
            return "unknown"
        found = ", ".join(name for name, value in named if value == 1) or "none"
        return f"{found} (unknown: {', '.join(gaps)})" if gaps else found


class _Values(SplitResult):
    in_parts, score = True, "std"
    columns = (
        ScoreColumn("rmse", "RMSE{unit}"),
        ScoreColumn("coverage_90", "90\u00a0% intervals hold,\u00a0%", "share", ""),
        _GAP,
        ScoreColumn("width_90", "Their width{unit}", better=""),
        _NLL,
        ScoreColumn("crps", "CRPS{unit}"),
        ScoreColumn("miscalibration_area", "Miscalibration area"),
    )
    growing: ClassVar[dict[str, str]] = {"coverage_90": "share in 90 % intervals", "rmse": "RMSE"}

    @cached_property
    def spread(self) -> float:
        """From the 5 to the 95 % quantile of the measured values."""
        low, high = np.nanquantile(self.p.require_target().double().cpu().numpy(), (0.05, 0.95))
        return float(high - low)

    @property
    def wide(self) -> float:
        """The width of its 90 % intervals as a share of the spread."""
        return self.value("width_90").value / self.spread if self.spread else math.nan

    @property
    def unit(self) -> str:
        """With a space before it."""
        unit = next(filter(None, self.p.units or ()), "")
        return f" {unit}" if unit else ""

    @property
    def has_skill(self) -> bool:
        return not self.value("r2").value <= 0

    @property
    def promise(self) -> tuple[float, float]:
        return PROMISED, PROMISED - self.gap.value

    @property
    def faults(self) -> Sequence[Any]:
        """Name, result and what is wrong with it: its R² or its width."""
        each = [(name, one) for name, one in self.parts if isinstance(one, _Values)]
        poor = [(name, one, "r2") for name, one in each if one.value("r2").value < _R2]
        return poor + [(name, one, "width") for name, one in each if one.wide > _WIDE]

    def details(self) -> Iterator[tuple[str, str, bool]]:
        for name, one in self.parts if len(self.parts) > 1 else ():
            yield name, in_words("result", one), one.is_clear and one.gap.value >= 0.05

    @property
    def uncertainty(self) -> Tensor:
        """In units of the typical deviation of each value."""
        found: Tensor = self.p.std / self.p.std.mean(dim=0)
        return found.reshape(len(self.p), -1).mean(dim=1)

    @property
    def errors(self) -> Tensor:
        """In deviations, where the truth is outside the 90 % interval."""
        low, high = self.p.interval(PROMISED)
        outside = (self.p.target < low) | (self.p.target > high)
        found: Tensor = ((self.p.target - self.p.mean).abs() / self.p.std).nan_to_num(0.0) * outside
        return found.reshape(len(self.p), -1).amax(dim=1)

    def name(self, y: Tensor) -> str:
        return self._named("unknown" if math.isnan(v) else f"{v:.3g}" for v in y.tolist())

    def _named(self, words: Any) -> str:
        named = zip(self.subject.names, words, strict=True)  # one alone has an empty name
        return ", ".join(f"{name} {word}".strip() for name, word in named)

    def answer(self, row: int) -> str:
        return self.name(self.p.mean[row].flatten())

    def certainty(self, row: int) -> str:
        ends = zip(*(end.flatten().tolist() for end in self.p[row].interval(PROMISED)), strict=True)
        return f"90 % interval {self._named(f'{low:.3g} to {high:.3g}' for low, high in ends)}"


_RESULTS: dict[str, type[SplitResult]] = {
    "classes": _Classes, "labels": _Labels, "values": _Values,
}  # fmt: skip


def result_of(subject: Subject, split: str) -> SplitResult:
    """A subject on a split."""
    return _RESULTS[subject.kind](subject, split)


def compared(
    first: Subject, other: Subject, split: str, columns: Sequence[ScoreColumn]
) -> dict[ScoreColumn, Mark] | None:
    """Where another subject is better or worse, beyond the interval of the paired difference;
    ``None`` if they were not judged on the same rows."""
    marks: dict[ScoreColumn, Mark] = {}
    for column in columns:
        if not column.better or (len(first.names) > 1 and "{unit}" in column.title):
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


@cache
def templates() -> Environment:
    """The page, which escapes what it shows, and the sentences, which are plain text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader("gduq.report", ""), autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def in_words(macro: str, *about: object) -> str:
    """A sentence of words.j2."""
    found = getattr(templates().get_template("words.j2").module, macro)(*about)
    return " ".join(str(found).split())
