"""The best calibrator of a run, chosen on validation data alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError
from gduq.evaluation.copies import VARIANTS
from gduq.experiments.calibrated import Calibrated
from gduq.experiments.folder import RunFolder, write_json
from gduq.prediction import Prediction

_KEPT = "choice.json"


def choose(candidates: Sequence[str], scored: Callable[[str], float]) -> str:
    """The candidate with the lowest score; of equals the first.

    Example:
        >>> choose(["none", "temperature"], {"none": 0.7, "temperature": 0.7}.__getitem__)
        'none'
    """
    scores = {name: scored(name) for name in candidates}
    return min(scores, key=lambda name: scores[name])


def crossed_nll(rows: int, fit: Callable[[Tensor], Callable[[Tensor], Prediction]]) -> float:
    r"""NLL on validation rows that the calibrator has not seen, halves taking turns.

    .. math:: \frac{1}{n}\Big(\sum_{i \in B} -\log p_A(y_i) + \sum_{i \in A} -\log p_B(y_i)\Big)

    where :math:`p_A` is calibrated on half A. Infinite where a half is too little to fit on.

    Args:
        rows: Number n of validation rows.
        fit: From the rows to fit on to a function that predicts other rows.
    """
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    halves = order[: (rows + 1) // 2], order[(rows + 1) // 2 :]
    total = 0.0
    try:
        for seen, held in (halves, halves[::-1]):
            total += metrics.nll(fit(seen)(held)) * len(held)
    except InputError:
        return math.inf
    return total / rows


def chosen_calibrator(folder: RunFolder, candidates: Sequence[str]) -> str:
    """The calibrator of a run with the lowest `crossed_nll` on ``id_val``; kept in the folder.

    What then counts is that calibrator fitted on all of ``id_val``. No test row is looked at.

    Args:
        folder: A finished run.
        candidates: Names, ``"none"`` among them; what could not be fitted is left out.
    """
    scores = folder.scores
    names = [name for name in candidates if name in scores]
    kept = folder.path / _KEPT
    known: dict[str, float] = json.loads(kept.read_text()) if kept.is_file() else {}
    missing = [name for name in names if name not in known]
    if missing:
        calibrated = Calibrated(folder)
        known |= {name: _score(calibrated, name) for name in missing}
        write_json(kept, known)
    return choose(names, lambda name: math.inf if known[name] is None else known[name])


def _score(calibrated: Calibrated, name: str) -> float:
    p = calibrated.raw["id_val"]
    if name == "none":
        return metrics.nll(p)
    full = calibrated.fitted(name)  # with all it was built from; the halves are fitted on copies
    whole = calibrated.whole if full.needs_graph else None
    rows = None if whole is None else _numbers(whole.rows["id_val"])

    def fit(seen: Tensor) -> Callable[[Tensor], Prediction]:
        more: dict[str, Any] = {}
        if name in VARIANTS:
            more["corrupted"] = [spoilt[seen] for spoilt in calibrated.copies]
        half = copy(full)
        if whole is None or rows is None:
            half.fit(p, rows=seen, **more)
            return lambda held: half(p[held])
        half.fit(whole.p, rows=rows[seen], **more)
        return lambda held: half(whole.p, rows=rows[held])

    return crossed_nll(len(p), fit)


def _numbers(rows: Tensor) -> Tensor:
    return rows.nonzero().flatten() if rows.dtype == torch.bool else rows
