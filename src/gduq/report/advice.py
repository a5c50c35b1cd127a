"""What to do about a verdict, by rules that stand in the documentation."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from gduq.errors import InputError
from gduq.evaluation.named_calibrators import make_calibrator
from gduq.metrics import Interval, nll
from gduq.report.comparing import change, clear, columns_of, difference
from gduq.report.subject import Subject, home_of
from gduq.report.wording import JudgedSplit

__all__ = ["CALIBRATED", "SMALL", "Advice", "advise"]

CALIBRATED = "calibrated"  # the bundle that the advised `gduq calibrate` writes
SMALL = 0.02  # a gap below two points is left alone, however clear it is
_LARGER = 1.5  # times the errors at home, from which on it is said
_FINDS = 0.7  # an AUROC from which on a score is called one that finds shifted rows
_TRIED = {"classes": "temperature", "labels": "per_label", "values": "deviation"}


@dataclass(frozen=True)
class Advice:
    """One of four things to do, why, and the command that does it."""

    action: Literal["keep", "calibrate", "collect", "switch"]
    text: str
    command: str = ""


def advise(subjects: Sequence[Subject], here: JudgedSplit) -> Advice:
    """What to do about the first subject; the first rule that applies.

    * switch: another one, judged on the same rows, has a clearly lower NLL, and no clearly lower
      balanced accuracy;
    * collect: it does no better than one answer for all rows would (where all of these rows have
      one truth: at home);
    * calibrate: it is clearly off, by two points or more, to the same side at home, and a
      calibrator fitted on validation rows clearly lowers its NLL here, and raises it nowhere;
    * collect: it promises clearly too much, by two points or more; or clearly too little, and is of
      little use beside (`JudgedSplit.fault`);
    * keep: anything else.
    """
    first, split, gap, words = here.subject, here.split, here.gap, here.words
    if (better := _better(subjects, split)) is not None:
        return better
    if not here.skill:
        return _without_skill(first)
    home = home_of(first, split)
    there = here if home is None else JudgedSplit(first, home)
    if first.kind != "values" and here.common_share == 1 and not there.skill:
        return _without_skill(first)
    off_at_home = home is not None and _off(there.gap)
    shifted = not split.startswith(("id", "test"))
    tried = _tried(first.first, split) if _off(gap) or off_at_home else None
    worse = "" if tried is None else tried.warning
    if not _off(gap):
        small = "the gap between what it promises and what it holds is small."
        none = "there is no clear gap between what it promises and what it holds."
        text = f"Keep it: {small if clear(gap) else none}"
        if off_at_home:  # what is off at home is said, and no more
            text += f" On {home}, {words.who} {there.state}.{worse}"
        text += _larger_errors(here, there) + (f" But {here.fault}." if here.fault else "")
        return Advice("keep", text, _command(first, "predict"))
    same = _off(there.gap) and there.gap.value * gap.value > 0  # under shift only: no calibrator's
    why = tried.helps if tried is not None and same else ""
    if tried is None and not shifted:
        why = f"{words.who} {here.state} on data like its training data"
    if why:
        command = _command(first, "calibrate", _TRIED[first.kind])
        text = f"Calibrate it: {why}."
        if command:
            text += f" Then use “{CALIBRATED}”, which that writes, in place of the run."
        return Advice("calibrate", text, command)
    if gap.value > 0:
        where = f"{'under shift' if shifted else 'here'}{'' if home is None or same else ' only'}"
        return _collect(first, split, where, worse)
    where = "under shift " if shifted else ""
    if here.fault:  # promising too little is no virtue then
        text = f"Collect rows like these, and do not rely on it yet: {here.fault}.{worse}"
        return Advice("collect", text)
    text = f"Keep it: {where}{words.who} {words.under}, which is on the safe side.{worse}"
    return Advice("keep", text, _command(first, "predict"))


def _larger_errors(here: JudgedSplit, there: JudgedSplit) -> str:
    """How much larger errors of values are than at home, if that is much."""
    if here.subject.kind != "values" or len(here.subject.names) > 1:
        return ""
    ratio = here.value("rmse").value / max(there.value("rmse").value, 1e-12)
    if not _LARGER <= ratio < float("inf"):
        return ""
    return f" But its errors (RMSE) are {ratio:.1f} times those on {there.split}."


def _off(gap: Interval) -> bool:
    return clear(gap) and abs(gap.value) >= SMALL


def _better(subjects: Sequence[Subject], split: str) -> Advice | None:
    """Switch to the one with the clearly lowest NLL, if it loses no class for it."""
    first, found = subjects[0], list[tuple[Interval, Subject]]()
    for other in subjects[1:]:
        lower = change("nll", first, other, split)
        if lower is None or not clear(lower) or lower.value > 0:
            continue
        fair = None if first.kind == "values" else change("balanced_accuracy", first, other, split)
        if fair is None or not clear(fair) or fair.value > 0:
            found.append((lower, other))
    if not found:
        return None
    lower, other = min(found, key=lambda pair: (pair[0].value, pair[1].name))
    by = f"{-lower.value:.2g}, {-lower.high:.2g} to {-lower.low:.2g}"
    text = f"Switch to {other.name}: its answers fit the truth better (NLL lower by {by})."
    return Advice("switch", text, _command(other, "predict"))


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
    return Advice("collect", text, _command(subject, "train", "training.class_weights=balanced"))


def _collect(subject: Subject, split: str, where: str, worse: str) -> Advice:
    text = f"Collect labels of rows like these: it promises too much {where}; until then"
    found = subject.value(split, "auroc", variant="novelty").value
    if found >= _FINDS:
        text += f" its novelty finds them (AUROC {found:.2f}).{worse}"
        return Advice("collect", text, _command(subject, "predict", "--max-novelty", "0.95"))
    text += f" pass rows of this kind on to a person.{worse}"
    return Advice("collect", text, _command(subject, "predict"))


class _Tried(NamedTuple):
    """Why to calibrate, or why not: a sentence, or nothing where it does no good, or no harm."""

    helps: str
    warning: str


def _tried(run: Subject, split: str) -> _Tried | None:
    """The usual calibrator, fitted on validation rows and judged here and at home."""
    fit_on, method = str(run.result.settings.get("fit_on", "id_val")), _TRIED[run.kind]
    known = run.labelled(fit_on)
    if known is None or split == fit_on:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # labels without a yes or no stay as they are
            calibrator = make_calibrator(method).fit(known)
            judged = {name: run.labelled(name) for name in (split, home_of(run, split)) if name}
            answers = {name: calibrator(p) for name, p in judged.items()}
    except InputError:  # too few rows to fit on
        return None
    changes, told = [], []
    for name, p in judged.items():
        found = difference("nll", p, answers[name], **run.sampling)
        assert found is not None
        before = fmean(map(nll, columns_of(p)))
        told.append(f"NLL {before + found.value:.3g} instead of {before:.3g} on {name}")
        changes.append(found)
    here, *others = changes
    lower = clear(here) and here.value < 0 and not any(clear(o) and o.value > 0 for o in others)
    helps = f"{method!r}, fitted on {fit_on}, makes it fit the truth better ({', '.join(told)})"
    harms = f" Do not calibrate it on {fit_on}: {method!r} would make it worse ({told[0]})."
    return _Tried(helps if lower else "", harms if clear(here) and here.value > 0 else "")


def _command(subject: Subject, do: str, *more: str) -> str:
    """What to type next; empty without a run folder."""
    run, config = subject.first.folder, subject.config or {}
    if not run:
        return ""
    if do == "calibrate":
        words = ["--method", *more, "-o", CALIBRATED]
    elif do == "train":  # once more, all options kept but one
        root = str(Path(run).parent)
        words = [*([] if root == "runs" else ["--root", root]), "--set", *more]
    elif subject.splits is not None and subject.splits.train.task != "graph":
        return ""  # files of new rows hold graphs
    else:
        data = config.get("data")
        table = isinstance(data, Mapping) and data.get("smiles")
        words = ["new.csv" if table else "new.safetensors", "-o", "answers.csv", *more]
    return shlex.join(["gduq", do, run, *words])
