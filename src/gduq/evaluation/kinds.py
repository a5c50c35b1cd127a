"""Rows of the table, whatever kind of prediction is judged."""

from __future__ import annotations

from collections.abc import Iterator

from gduq.evaluation import classes, labels, values
from gduq.evaluation.measuring import Case, Record

__all__ = ["records"]

_PARTS = {"classes": classes.parts_of, "labels": labels.parts_of, "values": values.parts_of}


def records(case: Case) -> Iterator[Record]:
    """All rows of the table for one calibrator."""
    kind = next(iter(case.predictions.values())).kind
    for part, rows in _PARTS[kind](case):
        for row in rows:
            yield {"kind": part, "calibrator": case.calibrator, "variant": "", "against": ""} | row
