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
from gduq.report.differences import change, clear, difference
from gduq.report.split_names import home_of
from gduq.report.subject import Subject
from gduq.report.wording import skill, state, words_of

__all__ = ["SMALL", "Advice", "advise"]

SMALL = 0.02  # a gap below two points is left alone, however clear it is
_FINDS = 0.7  # an AUROC from which on a score is called one that finds shifted rows
_TRIED = {"classes": "temperature", "labels": "per_label", "values": "deviation"}


@dataclass(frozen=True)
class Advice:
    """One of four things to do, why, and the command that does it."""

    action: Literal["keep", "calibrate", "collect", "switch"]
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
    if not skill(first, split):
        return _without_skill(first)
    gap, words = first.number("gap", split), words_of(first)
    if not _off(gap):
        return _kept(first, split, gap)
    tried, same = _tried(first.first, split), _same_at_home(first, split, gap)
    if tried is not None and tried.helps and same:
        text = f"Calibrate it: {tried.words}."
        return Advice("calibrate", text, _command(first, "calibrate", tried.method))
    if tried is None and not _shifted(split):
        text = f"Calibrate it: {words.who} {state(gap, words)} on data like its training data."
        return Advice("calibrate", text, _command(first, "calibrate", _TRIED[first.kind]))
    worse = "" if tried is None else tried.warning
    if gap.value > 0:
        return _collect(first, split, home_of(first, split) is not None and not same, worse)
    where = "under shift " if _shifted(split) else ""
    text = f"Keep it: {where}{words.who} {words.under}, which is on the safe side.{worse}"
    return Advice("keep", text, _command(first, "predict"))


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
    home, words = home_of(first, split), words_of(first)
    if home is not None and _off(at_home := first.number("gap", home)):
        tried = _tried(first.first, split)
        text += f" On {home}, {words.who} {state(at_home, words)}."
        text += "" if tried is None else tried.warning
    return Advice("keep", text, _command(first, "predict"))


def _better(subjects: Sequence[Subject], split: str) -> Advice | None:
    """The other subject with the clearly lowest NLL, if it loses no class for it."""
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


def _collect(subject: Subject, split: str, only: bool, worse: str) -> Advice:
    when = f" {'under shift' if _shifted(split) else 'here'}{' only' if only else ''}"
    text = f"Collect labels of rows like these: it promises too much{when}; until then"
    found = subject.value(split, "auroc", variant="novelty").value
    if found >= _FINDS:
        text += f" its novelty finds them (AUROC {found:.2f}).{worse}"
        return Advice("collect", text, _command(subject, "predict", "--max-novelty", "0.95"))
    text += f" pass rows of this kind on to a person.{worse}"
    return Advice("collect", text, _command(subject, "predict"))


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
        told = ", ".join(map(self._nll, self.changes))
        return f"{self.method!r}, fitted on {self.fit_on}, makes it fit the truth better ({told})"

    @property
    def warning(self) -> str:
        """A sentence for those who would calibrate it all the same; empty if it does no harm."""
        split, (_, found) = next(iter(self.changes.items()))
        if not clear(found) or found.value < 0:
            return ""
        worse = f"{self.method!r} would make it worse ({self._nll(split)})"
        return f" Do not calibrate it on {self.fit_on}: {worse}."

    def _nll(self, split: str) -> str:
        before, found = self.changes[split]
        return f"NLL {before + found.value:.3g} instead of {before:.3g} on {split}"


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
        columns = [p.column(t) for t in range(p.num_values)] if p.kind == "values" else [p]
        changes[name] = fmean(map(nll, columns)), found
    return _Tried(method, fit_on, changes)


def _command(subject: Subject, do: str, *more: str) -> str:
    """What to type next; empty without a run folder."""
    run, config = subject.first.folder, subject.config or {}
    if not run:
        return ""
    words: list[Any] = ["gduq", do, run]
    if do == "calibrate":
        words += ["--method", *more, "-o", "calibrated"]
    elif do == "train":  # once more, all options kept but one
        root = str(Path(run).parent)
        words += [*([] if root == "runs" else ["--root", root]), "--set", *more]
    elif subject.splits is not None and subject.splits.train.task != "graph":
        return ""  # files of new rows hold graphs
    else:
        data = config.get("data")
        table = isinstance(data, Mapping) and data.get("smiles")
        words += ["new.csv" if table else "new.safetensors", "-o", "answers.csv", *more]
    return shlex.join(words)
