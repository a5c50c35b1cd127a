"""The verdict: what the numbers say in plain words, never more than they say, and what to do."""

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
from gduq.report.comparing import change, difference, is_clear
from gduq.report.kinds import SplitResult, compared, result_of
from gduq.report.subject import Subject, home_split, main_split, situation

__all__ = ["CALIBRATED", "RULES", "Advice", "Statement", "Verdict", "cost_ratios", "verdict"]

CALIBRATED = "calibrated"  # the bundle that the advised `gduq calibrate` writes
SMALL, LARGE = 0.02, 0.05  # a gap of less is left alone; of more it is bad
_FINDS = 0.7  # an AUROC from which on a score is said to find shifted rows
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
    points = [*_home(facts), *_details(facts), *(_changed(facts, s) for s in subjects[1:])]
    rule = next(rule for rule in RULES if rule.applies(facts))
    advice = Advice(rule.action, rule.text(facts), rule.command(facts))
    return Verdict(facts.headline, facts.tone, tuple(points), _note(facts), advice)


# -- facts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Facts:
    """What the rules ask for, each found out when it is."""

    subjects: Sequence[Subject]
    here: SplitResult

    @property
    def first(self) -> Subject:
        """The subject that is judged."""
        return self.here.subject

    @cached_property
    def home(self) -> SplitResult | None:
        """The same on data like the training data, if there are such rows."""
        split = home_split(self.first, self.here.split)
        return None if split is None else result_of(self.first, split)

    @property
    def is_shifted(self) -> bool:
        """Whether the rows are said to be unlike the training data."""
        return not self.here.split.startswith(("id", "test"))

    @cached_property
    def no_shift(self) -> bool:
        """Whether neither novelty nor errors tell these rows from those of known kind."""
        novelty = self.first.value(self.here.split, "auroc", variant="novelty")
        if not self.is_shifted or self.home is None or not novelty.value < _NO_SHIFT:
            return False
        now, before = (result.value("nll") for result in (self.here, self.home))
        return now.low <= before.high

    @cached_property
    def fault(self) -> str:
        """Why it is of little use, in words; else empty."""
        found = list(self.here.faults())
        return ", ".join(found[:3]) + (f", and {len(found) - 3} more" if len(found) > 3 else "")

    @property
    def is_off(self) -> bool:
        """Whether its gap is clear, and not small."""
        return _is_off(self.here.gap)

    @property
    def promises_too_much(self) -> bool:
        """Whether it is clearly over-confident, or its intervals too narrow."""
        return self.is_off and self.here.gap.value > 0

    @cached_property
    def better(self) -> tuple[Interval, Subject] | None:
        """The subject of a clearly lower NLL that loses no class for it."""
        found = list[tuple[Interval, Subject]]()
        for other in self.subjects[1:]:
            lower = change("nll", self.first, other, self.here.split)
            if lower is None or not is_clear(lower) or lower.value > 0:
                continue
            fair = None
            if "balanced_accuracy" in self.first.example.metrics:
                fair = change("balanced_accuracy", self.first, other, self.here.split)
            if fair is None or not is_clear(fair) or fair.value > 0:
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
                rows = {s: run.labelled(s) for s in (split, home_split(run, split)) if s}
                changes = {
                    s: difference("nll", p, calibrator(p), **run.sampling)
                    for s, p in rows.items() if p is not None
                }  # fmt: skip
        except InputError:  # too few rows to fit on
            return None
        return TriedCalibrator(
            name, fit_on, {s: c for s, c in changes.items() if c is not None}, split
        )

    # -- in words --------------------------------------------------------------------------------

    @property
    def headline(self) -> str:
        """What it gets wrong and how far its promises hold."""
        here, name = self.here, self.first.name
        where = situation(self.first, here.split)
        if self.no_shift:
            where = f"On {here.split}, where neither novelty nor errors show a shift"
        skill = here.error if self.here.has_skill else f"is no better than {here.baseline}"
        state = f"{here.held}: {here.state}"
        few = f" But {self.here.too_few}." if self.here.too_few else ""
        return f"{where}, {name} {skill}; {state}.{few}"

    @property
    def tone(self) -> Tone:
        """How bad it is: promising too much is worse than too little."""
        gap = self.here.gap
        if not self.here.has_skill or (is_clear(gap) and gap.value >= LARGE):
            return "bad"
        if self.fault or self.here.too_few or (is_clear(gap) and not -LARGE < gap.value < SMALL):
            return "care"
        return "neutral"


class TriedCalibrator(NamedTuple):
    """A calibrator that was tried: on which rows it was fitted, and how the NLL changes."""

    name: str
    fit_on: str
    changes: Mapping[str, Interval]
    split: str

    @property
    def helps(self) -> bool:
        """Whether the NLL is clearly lower, and clearly higher nowhere."""
        higher = any(is_clear(c) and c.value > 0 for c in self.changes.values())
        return not higher and is_clear(c := self.changes[self.split]) and c.value < 0

    @property
    def warning(self) -> str:
        """Where it harms."""
        found = self.changes[self.split]
        if not is_clear(found) or found.value < 0:
            return ""
        return f" Do not calibrate it on {self.fit_on}: {self.name!r} raises its NLL here."


def _is_off(gap: Interval) -> bool:
    return is_clear(gap) and abs(gap.value) >= SMALL


def _signed(share: float) -> str:
    shown = f"{100 * share:+.1f}"
    return "0.0" if shown in ("+0.0", "-0.0") else shown.replace("-", "−")


def _ends(found: Interval) -> str:
    return f"{_signed(found.low)} to {_signed(found.high)}"


# -- rules ---------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """When it applies, what it advises, and why."""

    applies: Callable[[Facts], bool]
    action: Action
    text: Callable[[Facts], str]
    command: Callable[[Facts], str] = lambda facts: _predict(facts.first)


def _why_switch(facts: Facts) -> str:
    assert facts.better is not None
    lower, other = facts.better
    by = f"{-lower.value:.2g}, {-lower.high:.2g} to {-lower.low:.2g}"
    return f"Switch to {other.name}: its answers fit the truth better (NLL lower by {by})."


def _same_at_home(facts: Facts) -> bool:
    """Whether it is off to the same side on data like the training data."""
    gap = facts.here.gap if facts.home is None else facts.home.gap
    return _is_off(gap) and gap.value * facts.here.gap.value > 0


def _can_calibrate(facts: Facts) -> bool:
    tried = facts.calibrated
    if tried is None:  # no validation rows to try it on
        return facts.is_off and not facts.is_shifted
    return facts.is_off and _same_at_home(facts) and tried.helps


def _why_calibrate(facts: Facts) -> str:
    tried = facts.calibrated
    why = f"{facts.here.who} {facts.here.state} on data like its training data"
    if tried is not None:
        why = f"{tried.name!r}, fitted on {tried.fit_on}, lowers its NLL here and harms nowhere"
    then = f" Then use “{CALIBRATED}” in place of the run." if facts.first.first.folder else ""
    return f"Calibrate it: {why}.{then}"


def _novelty(facts: Facts) -> float:
    return facts.first.value(facts.here.split, "auroc", variant="novelty").value


def _why_collect(facts: Facts) -> str:
    where = "under shift" if facts.is_shifted and not facts.no_shift else "here"
    only = "" if facts.home is None or _same_at_home(facts) else " only"
    until = "pass rows of this kind on to a person"
    if _novelty(facts) >= _FINDS:
        until = f"its novelty finds them (AUROC {_novelty(facts):.2f})"
    return (
        f"Collect labels of rows like these: it promises too much {where}{only}; until then "
        f"{until}.{_warning(facts)}"
    )


def _warning(facts: Facts) -> str:
    return "" if facts.calibrated is None else facts.calibrated.warning


def _why_keep(facts: Facts) -> str:
    here, home = facts.here, facts.home
    if facts.is_off:
        text = f"{here.who} {here.under}, which is on the safe side."
    elif is_clear(here.gap):
        text = "the gap between what it promises and what it holds is small."
    else:
        text = "there is no clear gap between what it promises and what it holds."
    if home is not None and _is_off(home.gap) and not facts.is_off:
        text += f" On {home.split}, {home.who} {home.state}."
    return f"Keep it: {text}{_warning(facts) if facts.is_off or home is not None else ''}"


RULES: tuple[Rule, ...] = (
    Rule(
        lambda f: f.better is not None,
        "switch",
        _why_switch,
        lambda f: _predict(f.better[1] if f.better else f.first),
    ),
    Rule(
        lambda f: bool(f.here.too_few), "collect", lambda f: f"Collect more rows: {f.here.too_few}."
    ),
    Rule(
        lambda f: not f.here.has_skill,
        "collect",
        lambda f: f"Collect labelled rows like these: no better than {f.here.baseline}.",
        lambda f: "",
    ),
    Rule(
        _can_calibrate,
        "calibrate",
        _why_calibrate,
        lambda f: _command(
            f.first, "calibrate", "--method", f.first.example.calibrator, "-o", CALIBRATED
        ),
    ),
    Rule(
        lambda f: bool(f.fault) and f.here.is_ranked,
        "rank",
        lambda f: f"Use its ranking, not its yes or no: it {f.here.error}, but {f.fault}.",
    ),
    Rule(
        lambda f: f.promises_too_much,
        "collect",
        _why_collect,
        lambda f: _predict(f.first, *(["--max-novelty", "0.95"] * (_novelty(f) >= _FINDS))),
    ),
    Rule(
        lambda f: bool(f.fault),
        "collect",
        lambda f: f"Collect rows like these, and do not rely on it yet: {f.fault}.{_warning(f)}",
        lambda f: "",
    ),
    Rule(lambda f: True, "keep", _why_keep),
)


def _command(subject: Subject, *words: str) -> str:
    """What to type next; empty without a run folder."""
    run = subject.first.folder
    return shlex.join(["gduq", words[0], run, *words[1:]]) if run else ""


def _predict(subject: Subject, *more: str) -> str:
    if subject.splits is not None and subject.splits.train.task != "graph":
        return ""  # files of new rows hold graphs
    data = (subject.config or {}).get("data")
    table = isinstance(data, Mapping) and data.get("smiles")
    new = "new.csv" if table else "new.safetensors"
    return _command(subject, "predict", new, "-o", "answers.csv", *more)


# -- what stands behind it -----------------------------------------------------------------------


def _home(facts: Facts) -> Iterator[Statement]:
    """The same without shift, if there is such a split."""
    if (home := facts.home) is not None:
        skill = home.error if home.has_skill else f"is no better than {home.baseline}"
        text = f"On data like its training data ({home.split}) it {skill}; {home.held}"
        state = f"{home.who} {home.state} ({_ends(home.gap)})"
        yield Statement(facts.first.name, f"{text}: {state}.")


def _details(facts: Facts) -> Iterator[Statement]:
    for part, text, bad in facts.here.details():
        about = f"{facts.first.name}: {part}" if part else facts.first.name
        yield Statement(about, text, "bad" if bad else "neutral")


def _note(facts: Facts) -> str:
    level, rows = 100 * facts.first.sampling["level"], len(facts.here.p)
    several = [bool(s.runs) for s in facts.subjects]
    seeds = ", with the spread over training seeds where there are several" if any(several) else ""
    more = " Training again with another seed can move the numbers further than that."
    return (
        f"Judged on {rows} rows of {facts.here.split}. Points are percentage points; in brackets "
        f"stands the {level:g} % interval from resampling these rows{seeds}."
        f"{'' if all(several) else more}"
    )


def _changed(facts: Facts, other: Subject) -> Statement:
    """What another subject changes; good only where nothing is worse."""
    first, split = facts.first, facts.here.split
    if other.labelled(split) is None:
        return Statement(other.name, f"It has no labelled predictions on {split}.")
    marks = compared(first, other, split, facts.here.columns)
    if marks is None:
        text = f"It was judged on other rows of {split}, so no difference is claimed."
        return Statement(other.name, text)
    there = result_of(other, split)
    texts = [f"It {there.error}; {there.held}: {there.state}."]
    for mark in ("better", "worse"):
        names = [c.title.partition(",")[0].partition("{")[0] for c, m in marks.items() if m == mark]
        texts += [f"Clearly {mark}: {', '.join(names)}."] if names else []
    texts += [] if marks else ["No clear difference."]
    kinds = set(marks.values())
    tone: Tone = "good" if kinds == {"better"} else "bad" if kinds == {"worse"} else "neutral"
    return Statement(other.name, " ".join([*texts, *_cost(first, other)]), tone)


def _cost(first: Subject, other: Subject) -> Iterator[str]:
    ratios = cost_ratios(first, other)
    parts = [f"{ratios[key]:.2g}× the {name}" for key, name in _COSTS.items() if key in ratios]
    if parts:
        yield f"It costs {' and '.join(parts)} of {first.name}."


def cost_ratios(first: Subject, other: Subject) -> dict[str, float]:
    """Each cost relative to the first subject, where both have it."""
    base, cost = first.cost or {}, other.cost or {}
    return {key: cost[key] / base[key] for key in base if key in cost and base[key] > 0}
