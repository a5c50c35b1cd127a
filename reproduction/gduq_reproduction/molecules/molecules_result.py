"""The table of molecules for people: bars first, then one table per measure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gduq.text_tables import to_markdown
from gduq_reproduction.bench_result import BenchResult, Record
from gduq_reproduction.molecules.bars import BEST, Bar
from gduq_reproduction.molecules.plan import OURS, PEERS
from gduq_reproduction.molecules.scoring import MEASURES
from gduq_reproduction.table_text import failed_runs, table_of

__all__ = ["MoleculesResult"]

_ORDER = (*OURS, BEST, *PEERS)
_LEGEND = (
    "Mean ± standard error over seeds, on the out-of-distribution test rows unless said otherwise. "
    "Every method is calibrated by one number: not at all (none), on validation rows, or on them "
    "and on shifted copies of them. gduq-best is that of gduq's recipes which validation "
    "rows and copies prefer."
)
_KINDS = {"values": "regression", "classes": "classification"}


@dataclass(frozen=True, eq=False)
class MoleculesResult(BenchResult):
    """The benchmark of molecules, with the bars it has to clear."""

    bars: tuple[Bar, ...] = ()

    def content(self) -> dict[str, Any]:
        """Everything, the bars too."""
        return {**super().content(), "bars": [asdict(bar) for bar in self.bars]}

    def markdown(self) -> str:
        """The bars, then a table per measure with a column per dataset and shift."""
        parts = [f"# {self.name}: {self.title} (scale: {self.scale})", *self.notes]
        parts += [_bars(self.bars), "## Figures", _LEGEND, *_tables(self.records)]
        return "\n\n".join([*parts, *failed_runs(self)]) + "\n"


def _bars(bars: Iterable[Bar]) -> str:
    said = {True: "met", False: "not met", None: "open"}
    rows = [[bar.what, bar.wanted, bar.got, said[bar.met]] for bar in bars]
    return to_markdown(table_of("Bars", ["what", "bar", "found", ""], rows), level=2)


def _tables(records: Sequence[Record]) -> Iterator[str]:
    for kind, measures in MEASURES.items():
        own = [r for r in records if r["metric"] == next(iter(measures))]
        cells = list(dict.fromkeys((r["dataset"], r["shift"]) for r in own))
        for metric, split in _columns(measures):
            found = [r for r in records if r["metric"] == metric and r["split"] == split
                     and (r["dataset"], r["shift"]) in cells]  # fmt: skip
            if found:
                where = " on ID test" if split == "id_test" else ""
                yield _table(f"{metric}{where}, {_KINDS[kind]}", found, cells)


def _columns(measures: Iterable[str]) -> list[tuple[str, str]]:
    judged = [(name, "ood_test") for name in measures]
    return [*judged, ("coverage90", "id_test"), ("conformal90", "id_test"), ("train_seconds", "")]


def _table(title: str, records: Sequence[Record], cells: Sequence[tuple[str, str]]) -> str:
    lines: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for r in records:
        line = lines.setdefault((r["variant"], r["calibrator"]), {})
        line[r["dataset"], r["shift"]] = _cell(r)
    order = sorted(lines, key=lambda key: _ORDER.index(key[0]))
    rows = [
        [*key, *(lines[key].get(cell, "") for cell in cells)] for key in _distinct(order, lines)
    ]
    columns = ["method", "calibrated on", *(f"{d}/{s}" for d, s in cells)]
    return to_markdown(table_of(title, columns, rows))


def _distinct(order: Sequence[tuple[str, str]], lines: dict[Any, Any]) -> list[tuple[str, str]]:
    """Without levels of calibration that change nothing, such as those of an RMSE."""
    return [key for key in order if key[1] == "none" or lines[key] != lines.get((key[0], "none"))]


def _cell(r: Record) -> str:
    if r["mean"] is None:
        return "–"
    digits = 1 if r["metric"] == "train_seconds" else 3
    text = f"{r['mean']:.{digits}f}"
    if r["std"] is not None:
        text += f" ± {r['std'] / math.sqrt(r['seeds']):.{digits}f}"
    return f"{text} ({r['seeds']})"
