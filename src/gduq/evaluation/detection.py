"""How well rows of other distributions are told from known ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from gduq.evaluation.case import Case, Record
from gduq.novelty import ood_scores as ood

__all__ = ["detection"]

_FROM_FEATURES = ("mahalanobis", "knn")


def detection(case: Case) -> Iterator[Record]:
    """All scores that apply; of several values, deviations are those of each."""
    names = ood.scores_for(case.kind)
    if case.kind == "values":
        yield from _detected(case, ("novelty", *_FROM_FEATURES))
        own = [name for name in names if name != "novelty"]
        yield from case.each(lambda one: _detected(one, own))
    else:
        yield from _detected(case, (*names, *_FROM_FEATURES))


def _detected(case: Case, names: Iterable[str]) -> Iterator[Record]:
    against, train = case.settings.negatives, cast(Any, case.predictions.get("train"))
    negative = case.predictions.get(against)
    if negative is None:
        return
    shifted = {s: case.predictions[s] for s in case.settings.ood if s in case.predictions}
    for name in names:
        if not _applies(name, case.calibrator, [negative, *shifted.values()], train):
            continue
        score: Any = name
        if name in _FROM_FEATURES:
            score = ood.Mahalanobis() if name == "mahalanobis" else ood.KNN(min(10, len(train)))
            score.fit(train)
        for split, p in shifted.items():
            found = ood.detection(negative, p, score, **case.settings.sampling)
            for measure, value in found._asdict().items():
                yield case.record("ood", split, measure, value, variant=name, against=against)


def _applies(name: str, calibrator: str, told_apart: list[Any], train: Any) -> bool:
    """What no calibrator changes is measured without one only."""
    if name == "novelty":
        return calibrator == "none" and all(p.novelty is not None for p in told_apart)
    if name in _FROM_FEATURES:
        known = all(p is not None and p.features is not None for p in (train, *told_apart))
        return calibrator == "none" and known
    return name not in ("epistemic", "spread") or told_apart[0].num_samples > 1
