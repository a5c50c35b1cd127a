"""The best calibrator of a run, chosen on validation data alone, clean and corrupted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from gduq import metrics
from gduq.calibration import METHODS
from gduq.disk import write_json
from gduq.errors import InputError
from gduq.evaluation.shifted_copies import VARIANTS
from gduq.prediction import Prediction
from gduq.runs.calibrated import CalibratedRun
from gduq.runs.folder import RunFolder

KEPT, _VERSION = "chosen.json", 1  # a new rule needs a new number
Fit = Callable[[Tensor], Callable[[Prediction], Prediction]]


def choose(candidates: Sequence[str], scored: Callable[[str], float]) -> str:
    """The candidate with the lowest score; of equals the first.

    Example:
        >>> choose(["none", "temperature"], {"none": 0.7, "temperature": 0.7}.__getitem__)
        'none'
    """
    scores = {name: scored(name) for name in candidates}
    return min(scores, key=lambda name: scores[name])


def crossed_nll(clean: Prediction, copies: Sequence[Prediction], fit: Fit) -> float:
    r"""NLL on validation rows that the calibrator has not seen, halves taking turns.

    .. math:: \frac{1}{n}\Big(\sum_{i \in B} \ell_A(i) + \sum_{i \in A} \ell_B(i)\Big), \qquad
        \ell_A(i) = -\frac{1}{2}\Big(\log p_A(y_i \mid x_i) +
        \frac{1}{m}\sum_{k} \log p_A(y_i \mid x_i^k)\Big)

    where :math:`p_A` is calibrated on half A and :math:`x_i^k` is the k-th corrupted copy of row i.
    Infinite where a half is too little to fit on.

    Args:
        clean: All n validation rows.
        copies: The same rows corrupted in m ways; without any, the clean rows count alone.
        fit: From the rows to fit on to a calibrator.
    """
    order = torch.randperm(len(clean), generator=torch.Generator().manual_seed(0))
    halves = order.tensor_split([(len(clean) + 1) // 2])
    total = 0.0
    try:
        for seen, held in (halves, halves[::-1]):
            calibrated = fit(seen)
            total += len(held) * _nll([calibrated(p[held]) for p in (clean, *copies)])
    except InputError:
        return math.inf
    return total / len(clean)


def _nll(parts: Sequence[Prediction]) -> float:
    """Of clean rows (the first part) and copies, half and half."""
    clean, *copies = (float(metrics.nll(part)) for part in parts)
    return 0.5 * (clean + sum(copies) / len(copies)) if copies else clean


def chosen_calibrator(folder: RunFolder, candidates: Sequence[str]) -> str:
    """The calibrator of a run with the lowest `crossed_nll` on ``id_val``; kept in the folder.

    What then counts is that calibrator fitted on all of ``id_val``. No test row is looked at.
    Calibrators that read the graph around the rows cannot be tried on corrupted copies and are
    left out.

    Args:
        folder: A finished run.
        candidates: Names, ``"none"`` among them; what could not be fitted is left out.
    """
    scores = folder.scores
    names = [name for name in candidates if name in scores and not _reads_graph(name)]
    known = _read(folder)
    missing = [name for name in names if name not in known]
    if missing:
        calibrated = CalibratedRun(folder)
        known |= {name: _score(calibrated, name) for name in missing}
        write_json(folder.path / KEPT, {"version": _VERSION, "nll": known})
    return choose(names, lambda name: math.inf if known[name] is None else known[name])


def _read(folder: RunFolder) -> dict[str, float]:
    """What an earlier call with the same rule has found."""
    path = folder.path / KEPT
    kept = json.loads(path.read_text()) if path.is_file() else {}
    found: dict[str, float] = kept["nll"] if kept.get("version") == _VERSION else {}
    return found


def _reads_graph(name: str) -> bool:
    return name != "none" and METHODS[VARIANTS.get(name, name)].needs_graph


def _score(calibrated: CalibratedRun, name: str) -> float:
    p, copies = calibrated.raw["id_val"], calibrated.copies
    if name == "none":
        return _nll([p, *copies])
    full = calibrated.fitted(name)  # with all it was built from; the halves are fitted on copies

    def fit(seen: Tensor) -> Callable[[Prediction], Prediction]:
        more: dict[str, Any] = {}
        if name in VARIANTS:
            more["corrupted"] = [spoilt[seen] for spoilt in copies]
        half = copy(full)
        half.fit(p, rows=seen, **more)
        return half

    return crossed_nll(p, copies, fit)
