"""`bench`: run a table's jobs and show its figures, the paper's printed ones beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from gduq._io import write_text
from gduq.errors import one_of
from gduq_reproduction import layouts as shapes
from gduq_reproduction.cells import Scale
from gduq_reproduction.harness import Store, long, run_jobs
from gduq_reproduction.layouts import LAYOUTS, Layout, Shaped
from gduq_reproduction.scoring import READINGS, work_rows
from gduq_reproduction.tables import find_table

__all__ = ["BenchResult", "bench", "markdown"]

_LEGEND = (
    "Ours, and under it what the paper prints: mean ± deviation over seeds. Of all methods and "
    "calibrations of a dataset, a shift and a split the best is bold, the second underlined."
)
_PROTOCOLS = {
    "As the paper does it: weights of the last epoch, logits averaged and rescaled by μ(1 − σ), "
    "calibrators without priors, ECE of 100 bins": shapes.as_paper,
    "As gduq does it: weights picked by validation loss (of nodes: those of the last epoch), "
    "probabilities averaged, calibrators with priors, ECE of 15 bins": shapes.as_gduq,
}


@dataclass(frozen=True, eq=False)
class BenchResult:
    """A table, made anew."""

    name: str  # the table's, or its number in the paper ("T1")
    scale: Scale
    figures: pd.DataFrame  # as `gduq_reproduction.harness.long` has them, or `summarised`
    failures: dict[str, str]  # tracebacks of jobs that failed, by title

    def blocks(self) -> dict[str, Shaped]:
        """The shapes of the table by title: as in the paper, or one per measure and split."""
        table, found = find_table(self.name), self.figures
        found = found if "mean" in found else shapes.summarised(found)
        numbers = [self.name] if self.name in LAYOUTS else table.labels
        layouts = {number: LAYOUTS[number] for number in numbers if number in LAYOUTS}
        if layouts and table.rows is not work_rows:
            blocks = {number: shapes.shaped(layout, found) for number, layout in layouts.items()}
        elif layouts and self.scale == "paper":  # at others, data stand in
            blocks = {
                f"{number}. {title}": shapes.shaped(layout, take(found), take is shapes.as_paper)
                for number, layout in layouts.items()
                for title, take in _PROTOCOLS.items()
            }
        else:
            shown = found[~found["method"].str.endswith(tuple(READINGS))]
            columns = ("method", "weights") if table.last else ("method",)
            blocks = {
                f"{measure}, {split}".removesuffix(", "): shapes.shaped(
                    Layout(("cell", "calibration"), columns,
                           keep={"measure": (measure,), "split": (split,)}), shown)
                for measure, split in product(table.measures, table.splits)
            }  # fmt: skip
        return {title: block for title, block in blocks.items() if block.lines}

    def to_markdown(self) -> str:
        """The page of the table."""
        table = find_table(self.name)
        labels = f" Paper: {', '.join(table.labels)}." if table.labels else ""
        parts = [
            f"# {self.name}: {table.title} (scale: {self.scale})",
            f"`gduq bench {self.name} --scale {self.scale}`.{labels} {table.note}".strip(),
        ]
        for title, block in self.blocks().items():
            parts += [_LEGEND] if block.layout.printed and len(parts) == 2 else []
            head, *lines = shapes.lines_of(block)
            parts.append(f"## {title}\n\n{markdown(head, lines)}".rstrip())
        failed = [f"- {name}: `{text.strip().splitlines()[-1].replace('`', chr(39))}`"
                  for name, text in self.failures.items()]  # fmt: skip
        parts += ["## Failed runs\n\n" + "\n".join(failed)] if failed else []
        return "\n\n".join(parts) + "\n"

    def to_latex(self) -> str:
        """The tables alone, for ``\\input``; they take the packages booktabs and graphicx."""
        return "\n".join(
            f"% {title}\n{shapes.latex(block)}" for title, block in self.blocks().items()
        )

    def write(self, path: Path) -> None:
        """As ``.md``, ``.tex``, or ``.csv`` with one line per figure."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            write_text(path, self.figures.to_csv(index=False))
        else:
            write_text(path, self.to_latex() if path.suffix == ".tex" else self.to_markdown())


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table.

    Example:
        >>> print(markdown(["a", "b"], [["1", "2"]]), end="")
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def bench(
    name: str,
    scale: Scale = "smoke",
    root: str | Path = "out/bench",
    seeds: int | None = None,
    *,
    chemprop: Path | None = None,
    only: str = "",
    **where: Any,
) -> BenchResult:
    """Make a table: what is finished is not repeated, what was interrupted goes on.

    The page is also written to ``root/tables/<name>-<scale>.md``. Arguments are those of the
    command, see `gduq_reproduction.command.bench`; ``where`` also takes ``progress``.
    """
    one_of("a scale", scale, get_args(Scale))
    table, root = find_table(name), Path(root).resolve()
    if table.store == "times" and where.get("workers") is None:
        where["workers"] = 1  # one at a time
    jobs, store = table.jobs(scale, seeds, root, chemprop), root / f"{table.store}-{scale}.csv"
    found, failures = run_jobs(jobs, Store(store), only, **where)
    result = BenchResult(name, scale, long(found), failures)
    result.write(root / "tables" / f"{name}-{scale}.md")
    return result
