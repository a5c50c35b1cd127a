"""`Calibrated`: predictions under any calibrator, each fitted once, when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gduq.calibration import FIXED, METHODS, Calibrator, Fixed, make, parse_name
from gduq.errors import InputError

__all__ = ["Calibrated", "Whole"]


@dataclass(frozen=True, eq=False)
class Whole:
    """A node task on one graph: predictions on all nodes, and which nodes each split has.

    The truth of nodes of no split is made up; only those of splits are ever read.
    """

    graph: Any
    p: Any
    rows: dict[str, Tensor]

    def numbers(self, split: str) -> Tensor:
        """The nodes of a split by number."""
        rows = self.rows[split]
        return rows.nonzero().flatten() if rows.dtype == torch.bool else rows


@dataclass(eq=False)
class Calibrated:
    """Predictions by split, and under any calibrator fitted on the labels of ``fit_on``."""

    raw: dict[str, Any]
    fit_on: str = "id_val"
    find_whole: Callable[[], Whole | None] = lambda: None  # for calibrators that read the graph
    find_copies: Callable[[], Sequence[Any]] | None = None  # for ``+corrupted`` ones
    _fitted: dict[str, Calibrator] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def whole(self) -> Whole | None:
        """The one graph of a node task; found when first asked for."""
        return self.find_whole()

    @cached_property
    def copies(self) -> list[Any]:
        """Predictions of shifted copies of the rows of ``fit_on``; made when first asked for."""
        if self.find_copies is None:
            raise InputError(
                "corrupted copies of the rows to fit on",
                "predictions alone",
                "Pass corrupted=, or the model with its Splits.",
            )
        return list(self.find_copies())

    @property
    def validation(self) -> Any:
        """The predictions that calibrators are fitted on, which must be there and have labels."""
        if self.fit_on not in self.raw:
            wanted = f"a split {self.fit_on!r} to fit calibrators on"
            raise InputError(wanted, ", ".join(self.raw), "Pass fit_on=.")
        self.raw[self.fit_on].require_target()
        return self.raw[self.fit_on]

    def predictions(self, name: str) -> dict[str, Any]:
        """By split, under the calibrator of that name; uncalibrated under ``"none"``."""
        return self.raw if name == "none" else self.under(self.fitted(name)).raw

    def under(self, calibrator: Calibrator) -> Calibrated:
        """The same under a fitted calibrator."""
        found = Calibrated({}, self.fit_on, lambda: self._mapped_whole(calibrator))
        whole = found.whole if calibrator.needs_graph else None
        for split, p in self.raw.items():
            found.raw[split] = calibrator(p) if whole is None else whole.p[whole.rows[split]]
        return found

    def _mapped_whole(self, calibrator: Calibrator) -> Whole | None:
        return None if self.whole is None else replace(self.whole, p=calibrator(self.whole.p))

    def fitted(self, name: str) -> Calibrator:
        """The calibrator of that name, fitted on all of ``fit_on``."""
        if name not in self._fitted:
            self._fitted[name] = self.fit(self.make(name), name)
        return self._fitted[name]

    def make(self, name: str) -> Calibrator:
        """A calibrator by name for these predictions; fitted only if nothing is to be learned."""
        p, method = next(iter(self.raw.values())), parse_name(name)[0]
        if method in FIXED and p.kind != Fixed.kind:
            raise InputError(f"predictions about {Fixed.kind} for {name!r}", p.kind)
        if method in FIXED or not METHODS[method].needs_graph:
            return make(name, p)
        if self.whole is None:
            raise InputError(
                f"a model and a node task on one graph for {name!r}",
                "other splits or predictions alone",
                "Pass the model with its Splits, or a fitted calibrator.",
            )
        return make(name, p, self.whole.graph, self.whole.rows.get("train"))

    def fit(self, calibrator: Calibrator, name: str = "", part: Tensor | None = None) -> Calibrator:
        """Fit on ``fit_on``, or on some of its rows; by ``name``, also on copies of these."""
        if calibrator.fitted:
            return calibrator
        p, whole = self.validation, self.whole if calibrator.needs_graph else None
        if whole is not None:
            rows = whole.numbers(self.fit_on)
            return calibrator.fit(whole.p, rows=rows if part is None else rows[part])
        copies = self.copies if name and parse_name(name)[1] else []
        copies = copies if part is None else [copy[part] for copy in copies]
        return calibrator.fit(p, rows=part, **({"corrupted": copies} if copies else {}))

    def held_out(self, calibrator: Calibrator, name: str, seed: int) -> Calibrated:
        """The same under a calibrator fitted on a random half of ``fit_on``.

        Only the other half is left of ``fit_on``, to put thresholds on: no row may serve both a
        calibrator and a threshold on what it gives.
        """
        size = len(self.validation)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
        first, rest = order[: (size + 1) // 2], order[(size + 1) // 2 :]
        if not len(rest):
            raise InputError("at least two rows to fit on", size)
        half = self.fit(calibrator, name, first)
        raw, whole = {**self.raw, self.fit_on: self.raw[self.fit_on][rest]}, self.whole
        if whole is not None:
            left = {**whole.rows, self.fit_on: whole.numbers(self.fit_on)[rest]}
            whole = replace(whole, rows=left)
        return Calibrated(raw, self.fit_on, lambda: whole).under(half)
