"""The verdict: what the numbers say, never more, and what to do; the words are in words.j2."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from gduq import calibration
from gduq.errors import InputError
from gduq.metrics import Interval
from gduq.report.results import compared, in_words, result_of
from gduq.report.seeds import change, difference
from gduq.report.subject import Subject, main_split, situation

__all__ = ["CALIBRATED", "RULES", "Advice", "Statement", "Verdict", "verdict"]

CALIBRATED = "calibrated"  # the bundle that the advised `gduq calibrate` writes
LARGE = 0.05  # a gap of more is bad
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
    facts = _Facts(subjects, split)
    name, here = facts.first.name, facts.here
    points = [] if facts.home is None else [Statement(name, in_words("home", facts))]
    for about, text, bad in here.details():
        points.append(
            Statement(f"{name}: {about}" if about else name, text, "bad" if bad else "neutral")
        )
    points += [_changed(facts, other) for other in subjects[1:]]
    rule = next(rule for rule in RULES if rule.applies(facts))
    advice = Advice(rule.action, in_words(rule.words, facts), _command(facts, rule.command))
    headline, note = in_words("headline", facts), in_words("note", facts)
    return Verdict(headline, facts.tone, tuple(points), note, advice)


class _Calibrated(NamedTuple):
    """A calibrator, the rows it was fitted on, and whether the NLL is clearly higher or lower."""

    name: str
    fit_on: str
    harms: bool  # here
    helps: bool  # here, and harms not at home


class _Facts:
    """What the rules and the sentences ask for."""

    bundle = CALIBRATED

    def __init__(self, subjects: Sequence[Subject], split: str) -> None:
        self.subjects, self.first = subjects, subjects[0]
        self.here = result_of(self.first, split)
        at_home = split != "id_test" and self.first.labelled("id_test") is not None
        self.home = result_of(self.first, "id_test") if at_home else None
        self.situation = situation(self.first, split)
        self.is_shifted = not split.startswith(("id", "test"))
        # with which AUROC novelty tells these rows from those of known kind
        self.novelty = self.first.value(split, "auroc", variant="novelty").value
        self.finds_shift = self.novelty >= _FINDS
        self.no_shift = (  # neither novelty nor errors show one
            self.is_shifted
            and self.home is not None
            and self.novelty < _NO_SHIFT
            and self.here.value("nll").low <= self.home.value("nll").high
        )
        self.home_is_off = self.home is not None and self.home.is_off
        usual, gap = self.home or self.here, self.here.gap.value
        self.same_at_home = usual.is_off and usual.gap.value * gap > 0
        self.is_too_sure = self.here.is_off and gap > 0
        self.tone: Tone = "neutral"  # promising too much is worse than too little
        if not self.here.has_skill or (self.here.is_clear and gap >= LARGE):
            self.tone = "bad"
        elif self.here.faults or self.here.too_few or (self.here.is_off and not -LARGE < gap < 0):
            self.tone = "care"

    @cached_property
    def better(self) -> tuple[Interval, Subject] | None:
        """The subject of a clearly lower NLL that loses no class for it."""
        found = list[tuple[Interval, Subject]]()
        names = [n for n in ("nll", "balanced_accuracy") if n in self.here.p.summary]
        for other in self.subjects[1:]:
            lower, *fair = (change(name, self.first, other, self.here.split) for name in names)
            unfair = any(c is not None and c.high < 0 for c in fair)
            if lower is not None and lower.high < 0 and not unfair:
                found.append((lower, other))
        return min(found, key=lambda pair: (pair[0].value, pair[1].name), default=None)

    @cached_property
    def calibrated(self) -> _Calibrated | None:
        """What the usual calibrator, fitted on validation rows, changes here and at home."""
        run, split = self.first.each_run[0], self.here.split
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
        if here is None:
            return None
        helps = here.high < 0 and not (home is not None and home.low > 0)
        return _Calibrated(name, fit_on, here.low > 0, helps)

    @property
    def can_calibrate(self) -> bool:
        """Whether calibration is of use here; without validation rows nobody can try it."""
        if self.calibrated is None:
            return self.here.is_off and not self.is_shifted
        return self.here.is_off and self.same_at_home and self.calibrated.helps


# -- rules


class Rule(NamedTuple):
    """When it applies, what it advises, the macro of words.j2 that says why, and what to type."""

    applies: Callable[[_Facts], object]
    action: Action
    words: str
    command: str = ""


_PREDICT = "predict RUN NEW -o answers.csv"
RULES: tuple[Rule, ...] = (
    Rule(lambda f: f.better, "switch", "switch", _PREDICT),
    Rule(lambda f: f.here.too_few, "collect", "too_few", _PREDICT),
    Rule(lambda f: not f.here.has_skill, "collect", "no_skill"),
    Rule(lambda f: f.can_calibrate, "calibrate", "calibrate",
         f"calibrate RUN --method METHOD -o {CALIBRATED}"),
    Rule(lambda f: f.here.faults and f.here.is_ranked, "rank", "rank", _PREDICT),
    Rule(lambda f: f.is_too_sure and f.finds_shift, "collect", "too_sure",
         f"{_PREDICT} --max-novelty 0.95"),
    Rule(lambda f: f.is_too_sure, "collect", "too_sure", _PREDICT),
    Rule(lambda f: f.here.faults, "collect", "of_little_use"),
    Rule(lambda f: True, "keep", "keep", _PREDICT),
)  # fmt: skip


def _command(facts: _Facts, command: str) -> str:
    """What to type next; empty without a run folder."""
    subject = facts.better[1] if facts.better else facts.first
    run, data = subject.each_run[0].folder, (subject.config or {}).get("data")
    nodes = subject.splits is not None and subject.splits.train.task != "graph"
    if not run or not command or (nodes and "NEW" in command):  # files of new rows hold graphs
        return ""
    table = isinstance(data, Mapping) and data.get("smiles")
    words = {"RUN": run, "NEW": "new.csv" if table else "new.safetensors"}
    words["METHOD"] = subject.example.calibrator
    return shlex.join(["gduq", *(words.get(word, word) for word in command.split())])


def _changed(facts: _Facts, other: Subject) -> Statement:
    """What another subject changes; good only where nothing is worse."""
    first, split = facts.first, facts.here.split
    if other.labelled(split) is None:
        return Statement(other.name, f"It has no labelled predictions on {split}.")
    result = result_of(other, split)
    marks = compared(first, result, facts.here.columns)
    if marks is None:
        text = f"It was judged on other rows of {split}, so no difference is claimed."
        return Statement(other.name, text)
    named = {c.title.partition(",")[0].partition("{")[0]: mark for c, mark in marks.items()}
    better, worse = ([n for n, m in named.items() if m == mark] for mark in ("better", "worse"))
    base, cost = first.cost or {}, other.cost or {}
    costs = [f"{cost[key] / base[key]:.2g}× the {name}" for key, name in _COSTS.items()
             if key in cost and base.get(key)]  # fmt: skip
    text = in_words("changes", facts, result, better, worse, costs)
    tone: Tone = "neutral" if bool(better) == bool(worse) else "good" if better else "bad"
    return Statement(other.name, text, tone)
