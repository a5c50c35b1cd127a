"""The comparison for people: the bars, then means over all cells."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gduq.text_tables import to_markdown
from gduq_reproduction.bench_result import BenchResult, Record, record
from gduq_reproduction.comparison.scoring import MEASURES
from gduq_reproduction.molecules.bars import Bar
from gduq_reproduction.table_text import failed_runs, table_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ComparisonResult", "overview", "records_of"]

SHOWN = ("nll", "brier", "ece", "ece_debiased", "aurc", "accuracy")


@dataclass(frozen=True, eq=False)
class ComparisonResult(BenchResult):
    """All methods on all cells, with the bars to clear."""

    bars: tuple[Bar, ...] = ()
    means: tuple[tuple[str, ...], ...] = ()

    def content(self) -> dict[str, Any]:
        """Everything, the bars too."""
        return {**super().content(), "bars": [asdict(bar) for bar in self.bars]}

    def markdown(self) -> str:
        """The bars, then a table of means."""
        said = {True: "met", False: "not met", None: "open"}
        rows = [[bar.what, bar.wanted, bar.got, said[bar.met]] for bar in self.bars]
        parts = [f"# {self.name}: {self.title} (scale: {self.scale})", *self.notes]
        parts.append(to_markdown(table_of("Bars", ["what", "bar", "found", ""], rows), level=2))
        columns = ["method", "calibrated on", *SHOWN, "cells"]
        title = "Means over cells, OOD test"
        parts.append(to_markdown(table_of(title, columns, self.means), level=2))
        return "\n\n".join([*parts, *failed_runs(self)]) + "\n"


def overview(table: pd.DataFrame, split: str = "ood_test") -> pd.DataFrame:
    """Means over cells (of means over seeds) by method and level, and of how many cells."""
    rows = table[(table["split"] == split) & ~table["method"].str.startswith("candidate: ")]
    means = rows.groupby(["method", "level", "cell"], sort=False)[list(SHOWN)].mean()
    by_method = means.groupby(["method", "level"], sort=False)
    return by_method.mean().assign(cells=by_method.size())


def records_of(table: pd.DataFrame, scale: str, command: str) -> list[Record]:
    """One record per cell, method, level, split and measure, as all tables have them."""
    found = []
    rows = table[table["split"].isin(("id_test", "ood_test"))]
    for (cell, method, level, split), part in rows.groupby(
        ["cell", "method", "level", "split"], sort=False
    ):
        data, _, conv = cell.partition(" ")
        dataset, _, shift = data.rpartition("/")
        key = {"dataset": dataset, "shift": shift, "model": conv, "variant": method}
        key |= {"calibrator": level, "split": split}
        for measure in MEASURES:
            values = part[measure].tolist()
            named = {**key, "metric": measure}
            found.append(record("comparison", named, values, scale=scale, command=command))
    return found
