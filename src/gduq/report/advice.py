"""What to do about a verdict, by rules that stand in the documentation."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from gduq.errors import InputError
from gduq.evaluation.calibrated import Calibrated
from gduq.metrics import Interval, nll
from gduq.report import rare
from gduq.report.differences import change, clear, difference
from gduq.report.split_names import home_of
from gduq.report.subject import Subject
from gduq.report.wording import state, words_of

__all__ = ["SMALL", "Advice", "advise"]

Action = Literal["keep", "calibrate", "collect", "switch"]
SMALL = 0.02  # a gap below two points is left alone, however clear it is
_FINDS = 0.7  # an AUROC from which on a score is called one that finds shifted rows
_TRIED = {"classes": "temperature", "labels": "per_label", "values": "deviation"}


@dataclass(frozen=True)
class Advice:
    """One of four things to do, why, and the command that does it."""

    action: Action
    text: str
    command: str = ""


def advise(subjects: Sequence[Subject], split: str) -> Advice:
    """What to do about the first subject; the first rule that applies.

    * switch: another one, judged on the same rows, has a clearly lower NLL, and no clearly lower
      balanced accuracy;
    * collect: it does no better than one answer for all rows would;
    * calibrate: it is clearly off, by two points or more, to the same side at home, and a
      calibrator fitted on validation rows clearly lowers its NLL here, and raises it nowhere;
    * collect: it promises clearly too much, by two points or more;
    * keep: anything else.
    """
    first = subjects[0]
    better = _better(subjects, split)
    if better is not None:
        return better
    if not rare.skill(first, split):
        return _without_skill(first)
    gap = first.number("gap", split)
    if not _off(gap):
        return _kept(first, split, gap)
    tried = _tried(first.first, split)
    if tried is not None and tried.helps and _same_at_home(first, split, gap):
        return Advice("calibrate", f"Calibrate: {tried.words}.", _calibrate(first, tried.method))
    if tried is None and not _shifted(split):
        text = f"Calibrate: it is {state(gap, words_of(first))} on data like its training data."
        return Advice("calibrate", text, _calibrate(first, _TRIED[first.kind]))
    worse = "" if tried is None else tried.warning
    if gap.value > 0:
        return _collect(first, split, worse)
    said = words_of(first).under
    text = f"Keep it: {'under shift ' if _shifted(split) else ''}it is {said}, which is on the safe"
    return Advice("keep", f"{text} side.{worse}", _predict(first))


def _off(gap: Interval) -> bool:
    return clear(gap) and abs(gap.value) >= SMALL


def _same_at_home(subject: Subject, split: str, gap: Interval) -> bool:
    """Whether it is off to the same side at home; a gap under shift only is no calibrator's."""
    home = home_of(subject, split)
    at_home = gap if home is None else subject.number("gap", home)
    return _off(at_home) and at_home.value * gap.value > 0


def _shifted(split: str) -> bool:
    return not split.startswith(("id", "test"))


# -- keep, switch, collect -----------------------------------------------------------------------


def _kept(first: Subject, split: str, gap: Interval) -> Advice:
    """No clear gap where the verdict looks; what is off at home is said, and no more."""
    text = "Keep it: there is no clear gap between what it promises and what it holds."
    if clear(gap):
        text = "Keep it: the gap between what it promises and what it holds is small."
    home = home_of(first, split)
    at_home = None if home is None else first.number("gap", home)
    if at_home is not None and _off(at_home):
        who = "its intervals are" if first.kind == "values" else "it is"
        text += f" On {home}, {who} {state(at_home, words_of(first))}."
        tried = _tried(first.first, split)
        text += "" if tried is None else tried.warning
    return Advice("keep", text, _predict(first))


def _better(subjects: Sequence[Subject], split: str) -> Advice | None:
    """The other subject with the clearly lowest NLL, if it loses no class for it."""
    first, found = subjects[0], []
    for other in subjects[1:]:
        lower = change("nll", first, other, split) if other.labelled(split) is not None else None
        if lower is None or not clear(lower) or lower.value > 0:
            continue
        fair = None
        if first.kind != "values":
            fair = change("balanced_accuracy", first, other, split)
        if fair is None or not clear(fair) or fair.value > 0:
            found.append((lower.value, other.name, lower, other))
    if not found:
        return None
    _, name, lower, other = min(found, key=lambda entry: entry[:2])
    ends = f"{-lower.high:.2g} to {-lower.low:.2g}"
    text = f"Switch to {name}: its NLL is lower by {-lower.value:.2g} ({ends})."
    return Advice("switch", text, _predict(other))


def _without_skill(subject: Subject) -> Advice:
    if subject.kind == "values":
        text = "Collect rows like these: it does no better than one number for all of them."
        return Advice("collect", text)
    none = "it does no better than the most common answer"
    if subject.kind == "labels":
        return Advice("collect", f"Collect rows of the rare labels: {none}.")
    training = (subject.config or {}).get("training")
    if isinstance(training, Mapping) and training.get("class_weights") is not None:
        text = f"Collect rows of the rare classes: {none}, though they had weight in training."
        return Advice("collect", text)
    text = f"Collect rows of the rare classes, or give them weight in training: {none}."
    return Advice("collect", text, _train_again(subject, "training.class_weights=balanced"))


def _collect(subject: Subject, split: str, worse: str) -> Advice:
    only = home_of(subject, split) and not _same_at_home(
        subject, split, subject.number("gap", split)
    )
    when = f" {'under shift' if _shifted(split) else 'here'}{' only' if only else ''}"
    text = f"Collect labels of rows like these: it promises too much{when}"
    found = subject.value(split, "auroc", variant="novelty").value
    if found >= _FINDS:
        text += f"; until then its novelty finds them (AUROC {found:.2f})."
        return Advice("collect", text + worse, _predict(subject, "--max-novelty", "0.95"))
    text += "; until then pass rows of this kind on to a person."
    return Advice("collect", text + worse, _predict(subject))


# -- calibrate -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tried:
    """What a calibrator fitted on validation rows does to the NLL, by split: before, and change."""

    method: str
    fit_on: str
    changes: Mapping[str, tuple[float, Interval]]

    @property
    def helps(self) -> bool:
        """Whether NLL is clearly lower where the verdict looks, and clearly higher nowhere."""
        here, *others = (found for _, found in self.changes.values())
        return clear(here) and here.value < 0 and not any(clear(o) and o.value > 0 for o in others)

    @property
    def words(self) -> str:
        told = [f"{before + found.value:.3g} on {split} ({before:.3g} before)"
                for split, (before, found) in self.changes.items()]  # fmt: skip
        return f"with {self.method!r}, fitted on {self.fit_on}, its NLL is {', '.join(told)}"

    @property
    def warning(self) -> str:
        """A sentence for those who would calibrate it all the same; empty if it does no harm."""
        split, (before, found) = next(iter(self.changes.items()))
        if not clear(found) or found.value < 0:
            return ""
        return (
            f" Do not calibrate it on {self.fit_on}: {self.method!r} would raise its NLL on "
            f"{split} from {before:.3g} to {before + found.value:.3g}."
        )


def _tried(run: Subject, split: str) -> _Tried | None:
    """The usual calibrator, fitted on validation rows and judged where the verdict looks."""
    fit_on = str(run.result.settings.get("fit_on", "id_val"))
    known = run.labelled(fit_on)
    if known is None or split == fit_on:
        return None
    method, changes = _TRIED[run.kind], dict[str, tuple[float, Interval]]()
    calibrated = Calibrated({fit_on: known}, fit_on)
    for name in filter(None, (split, home_of(run, split))):
        p = run.labelled(name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # labels without a yes or no stay as they are
                found = difference("nll", p, calibrated.fitted(method)(p), **run.sampling)
        except InputError:  # too few rows to fit on
            return None
        assert found is not None
        changes[name] = _mean_nll(p), found
    return _Tried(method, fit_on, changes)


def _mean_nll(p: Any) -> float:
    columns = [p.column(t) for t in range(p.num_values)] if p.kind == "values" else [p]
    return fmean(nll(column) for column in columns)


# -- commands ------------------------------------------------------------------------------------


def _command(*words: Any) -> str:
    return " ".join(shlex.quote(str(word)) for word in words)


def _calibrate(subject: Subject, method: str) -> str:
    run = subject.first.folder
    return _command("gduq", "calibrate", run, "--method", method, "-o", "calibrated") if run else ""


def _train_again(subject: Subject, change: str) -> str:
    """The training of a run once more, all its options kept but one."""
    run = subject.first.folder
    if not run:
        return ""
    root = str(Path(run).parent)
    other = () if root == "runs" else ("--root", root)
    return _command("gduq", "train", run, *other, "--set", change)


def _predict(subject: Subject, *more: str) -> str:
    run, config = subject.first.folder, subject.config or {}
    if subject.splits is not None and subject.splits.train.task != "graph":
        return ""  # files of new rows hold graphs
    data = config.get("data")
    table = isinstance(data, Mapping) and data.get("smiles")
    new = "new.csv" if table else "new.safetensors"
    return _command("gduq", "predict", run, new, "-o", "answers.csv", *more) if run else ""
