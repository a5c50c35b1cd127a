"""Which rows calibrators are fitted on, and the predictions that come out of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gduq.calibration import METHODS, Calibrator, method_name
from gduq.errors import InputError
from gduq.evaluation.measuring import Case, Settings, Whole
from gduq.evaluation.shifted_copies import VARIANTS
from gduq.prediction import Hypotheses

__all__ = ["Data", "Pair", "case_of", "check_name", "fit_all", "make_calibrator"]


@dataclass(frozen=True, eq=False)
class Data:
    """All that is judged, before calibration."""

    predictions: Mapping[str, Any]
    whole: Whole | None
    settings: Settings
    columns: Mapping[str, Mapping[str, Tensor]] | None = None
    make_copies: Callable[[], Sequence[Any]] | None = None

    @cached_property
    def copies(self) -> list[Any]:
        """Corrupted copies of the rows of ``fit_on``, made when first asked for."""
        if self.make_copies is None:
            raise InputError(
                "corrupted copies of the rows to fit on",
                "predictions alone",
                "Pass corrupted=, or the model with its Splits.",
            )
        return list(self.make_copies())

    def make(self, name: str) -> Calibrator:
        """A calibrator for these predictions, not yet fitted."""
        return make_calibrator(name, self.whole, self.predictions.get("train"))

    def halves(self) -> tuple[Tensor, Tensor]:
        """Row numbers of ``fit_on``: for calibrators, and for thresholds on what they give."""
        rows = len(self.predictions[self.settings.fit_on])
        generator = torch.Generator().manual_seed(self.settings.seed)
        order = torch.randperm(rows, generator=generator)
        return order[: (rows + 1) // 2], order[(rows + 1) // 2 :]


@dataclass(frozen=True, eq=False)
class Pair:
    """A calibrator fitted on all of ``fit_on``, and one that thresholds may be put on.

    ``half`` saw the first half of the rows only; it is ``None`` where that was too little, and
    ``full`` itself where that came fitted.
    """

    full: Calibrator
    half: Calibrator | None


def fit_all(calibrators: Any, data: Data, skipped: dict[str, str]) -> dict[str, Pair]:
    """The calibrators by name, each fitted; reasons why not go to ``skipped``."""
    fitted: dict[str, Pair] = {}
    for name, given in _named(calibrators):
        if name in fitted or name in skipped or name == "none":
            raise InputError("calibrators with different names", f"{name!r} twice or 'none'")
        _check(name, given, data)
        try:
            calibrator = data.make(given) if isinstance(given, str) else given
            copies = data.copies if isinstance(given, str) and given in VARIANTS else []
            fitted[name] = _pair(name, calibrator, data, skipped, copies)
        except InputError as error:
            if not isinstance(given, str):  # who configures one wants to know that it fails
                raise
            skipped[name] = str(error)
    return fitted


def _named(calibrators: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(calibrators, (str, Calibrator)):
        calibrators = [calibrators]
    if isinstance(calibrators, Mapping):
        yield from calibrators.items()
        return
    known = {cls: name for name, cls in METHODS.items()}
    for given in calibrators:
        if isinstance(given, str):
            yield method_name(given), method_name(given)
        else:
            yield known.get(type(given), type(given).__name__), given


def _check(name: str, given: Any, data: Data) -> None:
    """Raise for mistakes in the call; these are no calibrator's fault."""
    if isinstance(given, str):
        check_name(given)
    if not isinstance(given, (str, Calibrator)):
        raise InputError("calibrators or their names", type(given).__name__)
    if isinstance(given, Calibrator) and given.fitted:
        return
    splits, fit_on = data.predictions, data.settings.fit_on
    if fit_on not in splits:
        raise InputError(
            f"a split {fit_on!r} to fit {name!r} on", ", ".join(splits), "Pass fit_on=."
        )
    splits[fit_on].require_target()


def check_name(name: str, more: Sequence[str] = ()) -> None:
    """Raise unless a calibrator is called that; ``more`` are further names that are fine."""
    known = [*METHODS, *VARIANTS, *more]
    if name in known:
        return
    near = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.5)
    do = f"Near: {', '.join(near)}." if near else f"There are {', '.join(known)}."
    raise InputError("the name of a calibrator", repr(name), do)


def make_calibrator(
    name: str, whole: Whole | None = None, train: Hypotheses | None = None
) -> Calibrator:
    """A calibrator by name, not yet fitted; classes it sees no rows of stay as they are.

    Args:
        name: Of `gduq.calibration.METHODS`, or such a name with ``+corrupted``.
        whole: The graph of a node task, for calibrators that read it.
        train: Predictions on training rows, for calibrators that read representations.

    Example:
        >>> make_calibrator("vector+corrupted").missing
        'keep'
    """
    kind, options = METHODS[VARIANTS.get(name, name)], dict[str, Any]()
    known = {field.name for field in fields(kind)}
    if "missing" in known:
        options["missing"] = "keep"
    if kind.needs_graph:
        if whole is None:
            raise InputError(
                f"a model and a node task on one graph for {name!r}",
                "other splits or predictions alone",
                "Pass the model with its Splits, or a fitted calibrator.",
            )
        options["graph"] = whole.graph
        if "train_rows" in known:
            options["train_rows"] = whole.rows.get("train")
    if kind.needs_features:
        options["train"] = train
    return kind(**options)


def _pair(
    name: str,
    calibrator: Calibrator,
    data: Data,
    skipped: dict[str, str],
    copies: Sequence[Any],
) -> Pair:
    if calibrator.fitted:
        return Pair(calibrator, calibrator)
    half = copy(calibrator)
    _fit(calibrator, data, copies)
    first, second = data.halves()
    try:
        if not len(second):
            raise InputError("at least two rows to fit on", len(first))
        return Pair(calibrator, _fit(half, data, [p[first] for p in copies], first))
    except InputError as error:
        skipped[f"{name}: thresholds"] = f"on half of the rows: {error}"
        return Pair(calibrator, None)


def _fit(
    calibrator: Calibrator, data: Data, copies: Sequence[Any], part: Tensor | None = None
) -> Calibrator:
    """Fit on ``fit_on``, or some of its rows, and on copies of these."""
    fit_on = data.settings.fit_on
    more: dict[str, Any] = {"corrupted": copies} if copies else {}
    if data.whole is None:
        return calibrator.fit(data.predictions[fit_on], rows=part, **more)
    rows = _numbers(data.whole.rows[fit_on])
    return calibrator.fit(data.whole.p, rows=rows if part is None else rows[part], **more)


def _numbers(rows: Tensor) -> Tensor:
    return rows.nonzero().flatten() if rows.dtype == torch.bool else rows


# -- cases ---------------------------------------------------------------------------------------


def case_of(name: str, pair: Pair | None, data: Data) -> Case:
    """What is judged under the name of a calibrator, or under "none"."""
    if pair is None:
        return Case(name, data.predictions, data.settings, data.whole, data.columns)
    case = _mapped(name, pair.full, data)
    if pair.half is pair.full:
        return case
    held = Case(name, {}, data.settings) if pair.half is None else _held(name, pair.half, data)
    return replace(case, held=held)


def _mapped(name: str, calibrator: Calibrator, data: Data) -> Case:
    if data.whole is None:
        mapped = {split: calibrator(p) for split, p in data.predictions.items()}
        return Case(name, mapped, data.settings, None, data.columns)
    whole = replace(data.whole, p=calibrator(data.whole.p))
    mapped = {split: whole.p[rows] for split, rows in whole.rows.items()}
    return Case(name, mapped, data.settings, whole, data.columns)


def _held(name: str, calibrator: Calibrator, data: Data) -> Case:
    """Predictions of the half's calibrator, with only the other half of ``fit_on`` left."""
    case, fit_on = _mapped(name, calibrator, data), data.settings.fit_on
    rest = data.halves()[1]
    predictions = {**case.predictions, fit_on: case.predictions[fit_on][rest]}
    whole = case.whole
    if whole is not None:
        rows = {**whole.rows, fit_on: _numbers(whole.rows[fit_on])[rest]}
        whole = replace(whole, rows=rows)
    return replace(case, predictions=predictions, whole=whole)
