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
from gduq.report.subject import Subject, change, difference, main_split

__all__ = ["CALIBRATED", "RULES", "Advice", "Statement", "Verdict", "verdict"]

CALIBRATED = "calibrated"  # the bundle that the advised `gduq calibrate` writes
LARGE = 0.05  # a gap of more is bad
_FINDS = 0.7  # an AUROC from which on novelty is said to find shifted rows
_NO_SHIFT = 0.6  # an AUROC of novelty below which a cut may be none

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
    """Judge the first subject, and what each other one changes, which is only called a change if
    the interval of the paired difference leaves out 0."""
    split = main_split(subjects)
    if split is None:
        text = "The true labels are not known, so nothing can be said about right and wrong."
        return Verdict(text, "neutral", (), "Predict on labelled data to get a verdict.")
    facts = _Facts(subjects, split)
    name, here = facts.first.name, facts.here
    points = [] if facts.home is None else [Statement(name, in_words("home", facts))]
    for about, text, bad in here.details():
        whom = f"{name}: {about}" if about else name
        points.append(Statement(whom, text, "bad" if bad else "neutral"))
    points += [_changed(facts, other) for other in subjects[1:]]
    rule = next(rule for rule in RULES if rule.applies(facts))
    advice = Advice(rule.action, in_words(rule.words, facts), _command(facts, rule.command))
    headline, note = in_words("headline", facts), in_words("note", facts)
    return Verdict(headline, facts.tone, tuple(points), note, advice)


class _Facts:
    """What the rules and the sentences ask for."""

    bundle = CALIBRATED

    def __init__(self, subjects: Sequence[Subject], split: str) -> None:
        self.subjects, self.first = subjects, subjects[0]
        self.here = result_of(self.first, split)
        at_home = split != "id_test" and self.first.labelled("id_test") is not None
        self.home = result_of(self.first, "id_test") if at_home else None
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

    @property
    def situation(self) -> str:
        """How a sentence calls the situation: ``Under size shift``."""
        split = self.here.split
        if "=" in split:
            return f"At {split}"
        if not self.is_shifted:
            return "On data like its training data" if split.startswith("id") else f"On {split}"
        data = self.first.splits.name if self.first.splits else ""
        parts = [p for p in data.split("/")[1:] if p not in ("covariate", "concept")]
        return f"Under {parts[-1]} shift" if parts else "Under shift"

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
    def calibrated(self) -> list[Interval]:
        """What the usual calibrator, fitted on validation rows, changes of the NLL here and, where
        it is known, at home; nothing where it cannot be fitted."""
        run, split = self.first.each_run[0], self.here.split
        fit_rows = run.labelled(run.settings.fit_on)
        if fit_rows is None or split == run.settings.fit_on:
            return []
        known = [p for s in (split, "id_test") if (p := run.labelled(s)) is not None]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # labels without a yes or no stay as they are
                calibrator = calibration.make(run.example.calibrator).fit(fit_rows)
                found = [difference("nll", p, calibrator(p), run.settings) for p in known]
        except InputError:  # too few rows to fit on
            return []
        return [change for change in found if change is not None]

    @property
    def harms(self) -> bool:
        """Whether that calibrator clearly raises the NLL here."""
        return bool(self.calibrated) and self.calibrated[0].low > 0

    @property
    def can_calibrate(self) -> bool:
        """Whether calibration is of use here; without validation rows nobody can try it."""
        if not self.calibrated:
            return self.here.is_off and not self.is_shifted
        helps = self.calibrated[0].high < 0 and not any(one.low > 0 for one in self.calibrated)
        return self.here.is_off and self.same_at_home and helps


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
    tone: Tone = "neutral" if bool(better) == bool(worse) else "good" if better else "bad"
    return Statement(other.name, in_words("changes", result, better, worse), tone)
