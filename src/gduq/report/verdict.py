"""The verdict: what the numbers say, never more, and what to do; the words are in words.j2."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from gduq import calibration
from gduq.errors import InputError
from gduq.metrics import Interval
from gduq.report.kinds import SplitResult, compared, in_words, result_of
from gduq.report.subject import Subject, change, difference, is_clear, main_split, situation

__all__ = ["CALIBRATED", "RULES", "Advice", "Statement", "Verdict", "cost_ratios", "verdict"]

CALIBRATED = "calibrated"  # the bundle that the advised `gduq calibrate` writes
SMALL, LARGE = 0.02, 0.05  # a gap of less is left alone; of more it is bad
_FINDS = 0.7  # an AUROC from which on novelty is said to find shifted rows
_NO_SHIFT = 0.6  # an AUROC of novelty below which a cut may be none
_COSTS = {"train_seconds": "training time", "predict_seconds": "prediction time"}

Tone = Literal["good", "bad", "care", "neutral"]
Action = Literal["keep", "rank", "calibrate", "collect", "switch"]


@dataclass(frozen=True)
class Statement:
    """One statement: about whom, what, and whether that is good."""

    about: str
    text: str
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Advice:
    """What to do, why, and the command that does it."""

    action: Action
    text: str
    command: str = ""


@dataclass(frozen=True)
class Verdict:
    """One sentence that says it all, what stands behind it, and what to do."""

    headline: str
    tone: Tone
    points: tuple[Statement, ...]
    note: str
    advice: Advice | None = None


def verdict(subjects: Sequence[Subject]) -> Verdict:
    """Judge the first subject, and what each other one changes.

    A change is only called one if the interval of the paired difference leaves out 0.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> y = torch.tensor([0, 1, 0, 1, 0, 1, 1, 0] * 5)
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1), y)
        >>> verdict([Subject("vanilla", {"ood_test": p})]).headline
        'Under shift, vanilla is right in 75 % of the rows; on average it is 73 % sure and 75 % right: neither clearly over- nor under-confident.'
    """  # noqa: E501
    split = main_split(subjects)
    if split is None:
        text = "The true labels are not known, so nothing can be said about right and wrong."
        return Verdict(text, "neutral", (), "Predict on labelled data to get a verdict.")
    facts = Facts(subjects, result_of(subjects[0], split))
    points = [*_details(facts), *(_changed(facts, s) for s in subjects[1:])]
    rule = next(rule for rule in RULES if rule.applies(facts))
    advice = Advice(rule.action, in_words(rule.words, facts), rule.command(facts))
    headline, note = in_words("headline", facts), in_words("note", facts)
    return Verdict(headline, facts.tone, tuple(points), note, advice)


def _is_off(gap: Interval) -> bool:
    return is_clear(gap) and abs(gap.value) >= SMALL


class TriedCalibrator(NamedTuple):
    """A calibrator, the rows it was fitted on, and how it changes the NLL here and at home."""

    name: str
    fit_on: str
    here: Interval
    home: Interval | None

    @property
    def harms(self) -> bool:
        """Whether the NLL is clearly higher here."""
        return is_clear(self.here) and self.here.value >= 0

    @property
    def helps(self) -> bool:
        """Whether the NLL is clearly lower, and clearly higher nowhere."""
        harmed = self.home is not None and is_clear(self.home) and self.home.value > 0
        return not harmed and is_clear(self.here) and self.here.value < 0


@dataclass(frozen=True, eq=False)
class Facts:
    """What the rules ask for, each found out when it is."""

    subjects: Sequence[Subject]
    here: SplitResult
    bundle = CALIBRATED

    @property
    def first(self) -> Subject:
        """The subject that is judged."""
        return self.here.subject

    @cached_property
    def home(self) -> SplitResult | None:
        """The same on data like the training data, if there are such rows."""
        known = self.here.split != "id_test" and self.first.labelled("id_test") is not None
        return result_of(self.first, "id_test") if known else None

    @property
    def situation(self) -> str:
        """What these rows are."""
        return situation(self.first, self.here.split)

    @property
    def is_shifted(self) -> bool:
        """Whether the rows are said to be unlike the training data."""
        return not self.here.split.startswith(("id", "test"))

    @property
    def novelty(self) -> float:
        """The AUROC with which novelty tells these rows from those of known kind."""
        return self.first.value(self.here.split, "auroc", variant="novelty").value

    @property
    def finds_shift(self) -> bool:
        """Whether that is high."""
        return self.novelty >= _FINDS

    @cached_property
    def no_shift(self) -> bool:
        """Whether neither novelty nor errors tell these rows from those of known kind."""
        if not self.is_shifted or self.home is None or not self.novelty < _NO_SHIFT:
            return False
        return self.here.value("nll").low <= self.home.value("nll").high

    @property
    def is_off(self) -> bool:
        """Whether its gap is clear, and not small."""
        return _is_off(self.here.gap)

    @property
    def home_is_off(self) -> bool:
        """The same on data like the training data."""
        return self.home is not None and _is_off(self.home.gap)

    @property
    def same_at_home(self) -> bool:
        """Whether it is off to the same side on data like the training data."""
        gap = self.here.gap if self.home is None else self.home.gap
        return _is_off(gap) and gap.value * self.here.gap.value > 0

    @property
    def tone(self) -> Tone:
        """How bad it is: promising too much is worse than too little."""
        here, gap = self.here, self.here.gap
        if not here.has_skill or (is_clear(gap) and gap.value >= LARGE):
            return "bad"
        off = is_clear(gap) and not -LARGE < gap.value < SMALL
        return "care" if here.faults or here.too_few or off else "neutral"

    @cached_property
    def better(self) -> tuple[Interval, Subject] | None:
        """The subject of a clearly lower NLL that loses no class for it."""
        found = list[tuple[Interval, Subject]]()
        for other in self.subjects[1:]:
            lower = change("nll", self.first, other, self.here.split)
            fair = None
            if lower is not None and "balanced_accuracy" in self.first.example.metrics:
                fair = change("balanced_accuracy", self.first, other, self.here.split)
            unfair = is_clear(fair) and fair is not None and fair.value < 0
            if lower is not None and is_clear(lower) and lower.value < 0 and not unfair:
                found.append((lower, other))
        return min(found, key=lambda pair: (pair[0].value, pair[1].name), default=None)

    @cached_property
    def calibrated(self) -> TriedCalibrator | None:
        """What the usual calibrator, fitted on validation rows, changes here and at home."""
        run, split = self.first.first, self.here.split
        fit_on, name = str(run.result.settings.get("fit_on", "id_val")), run.example.calibrator
        fit_rows = run.labelled(fit_on)
        if fit_rows is None or split == fit_on:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # labels without a yes or no stay as they are
                calibrator = calibration.make(name).fit(fit_rows)
                here, home = (
                    None if p is None else difference("nll", p, calibrator(p), **run.sampling)
                    for p in (run.labelled(split), run.labelled("id_test"))
                )
        except InputError:  # too few rows to fit on
            return None
        return None if here is None else TriedCalibrator(name, fit_on, here, home)

    @property
    def can_calibrate(self) -> bool:
        """Whether calibration is of use here."""
        if self.calibrated is None:  # no validation rows to try it on
            return self.is_off and not self.is_shifted
        return self.is_off and self.same_at_home and self.calibrated.helps


# -- rules ---------------------------------------------------------------------------------------


def _command(subject: Subject, command: str, *words: str) -> str:
    """What to type next; empty without a run folder."""
    run = subject.first.folder
    return shlex.join(["gduq", command, run, *words]) if run else ""


def _predict(subject: Subject, *more: str) -> str:
    if subject.splits is not None and subject.splits.train.task != "graph":
        return ""  # files of new rows hold graphs
    data = (subject.config or {}).get("data")
    table = isinstance(data, Mapping) and data.get("smiles")
    new = "new.csv" if table else "new.safetensors"
    return _command(subject, "predict", new, "-o", "answers.csv", *more)


def _calibrate(facts: Facts) -> str:
    method = facts.first.example.calibrator
    return _command(facts.first, "calibrate", "--method", method, "-o", CALIBRATED)


def _nothing(facts: Facts) -> str:
    return ""


class Rule(NamedTuple):
    """When it applies, what it advises, the macro of words.j2 that says why, and what to type."""

    applies: Callable[[Facts], object]
    action: Action
    words: str
    command: Callable[[Facts], str] = lambda f: _predict(f.first)


RULES: tuple[Rule, ...] = (
    Rule(lambda f: f.better, "switch", "switch", lambda f: _predict(f.better[1])),  # type: ignore[index]
    Rule(lambda f: f.here.too_few, "collect", "too_few"),
    Rule(lambda f: not f.here.has_skill, "collect", "no_skill", _nothing),
    Rule(lambda f: f.can_calibrate, "calibrate", "calibrate", _calibrate),
    Rule(lambda f: f.here.faults and f.here.is_ranked, "rank", "rank"),
    Rule(
        lambda f: f.is_off and f.here.gap.value > 0,
        "collect",
        "too_sure",
        lambda f: _predict(f.first, *["--max-novelty", "0.95"] * f.finds_shift),
    ),
    Rule(lambda f: f.here.faults, "collect", "of_little_use", _nothing),
    Rule(lambda f: True, "keep", "keep"),
)


# -- what stands behind it -----------------------------------------------------------------------


def _details(facts: Facts) -> Iterator[Statement]:
    """The same without shift, and what the average hides."""
    name, here = facts.first.name, facts.here
    if facts.home is not None:
        yield Statement(name, in_words("home", facts))
    for about, text, bad in here.details():
        yield Statement(f"{name}: {about}" if about else name, text, "bad" if bad else "neutral")


def _changed(facts: Facts, other: Subject) -> Statement:
    """What another subject changes; good only where nothing is worse."""
    first, split = facts.first, facts.here.split
    if other.labelled(split) is None:
        return Statement(other.name, f"It has no labelled predictions on {split}.")
    marks = compared(first, other, split, facts.here.columns)
    if marks is None:
        text = f"It was judged on other rows of {split}, so no difference is claimed."
        return Statement(other.name, text)
    named = {c.title.partition(",")[0].partition("{")[0]: mark for c, mark in marks.items()}
    better, worse = ([n for n, m in named.items() if m == mark] for mark in ("better", "worse"))
    ratios = cost_ratios(first, other)
    costs = [f"{ratios[key]:.2g}× the {name}" for key, name in _COSTS.items() if key in ratios]
    text = in_words("changes", facts, result_of(other, split), better, worse, costs)
    tone: Tone = "neutral" if bool(better) == bool(worse) else "good" if better else "bad"
    return Statement(other.name, text, tone)


def cost_ratios(first: Subject, other: Subject) -> dict[str, float]:
    """Each cost relative to the first subject, where both have it."""
    base, cost = first.cost or {}, other.cost or {}
    return {key: cost[key] / base[key] for key in base if key in cost and base[key] > 0}
