"""`bench`: run a table's jobs and show its figures, the paper's printed ones beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
from scipy.stats import t as student

from gduq._checks import one_of
from gduq._io import write_text
from gduq_reproduction.cells import Scale
from gduq_reproduction.harness import Store, long, run_jobs
from gduq_reproduction.methods import LAST
from gduq_reproduction.printed import lookup
from gduq_reproduction.scoring import HIGHER, READINGS
from gduq_reproduction.tables import TABLES, Table

__all__ = ["BenchResult", "bench", "markdown"]

_LEGEND = (
    "Mean ± standard deviation over seeds: weights picked by validation loss, weights of the last "
    "epoch (the paper's way), and what the paper prints. ▲ better, ▼ worse than the plain network "
    "with the same calibration and choice of weights (paired t-test over seeds, p < 0.05). ece has "
    "15 bins and is of the averaged probabilities, ece100 has 100 and is of the averaged logits."
)
_KEYS = ["cell", "calibration", "split", "measure", "weights"]


@dataclass(frozen=True, eq=False)
class BenchResult:
    """A table, made anew.

    Attributes:
        name: The table's.
        scale: At which it was made.
        figures: One line per figure, see `gduq_reproduction.harness.long`.
        failures: Tracebacks of jobs that failed, by title.
    """

    name: str
    scale: Scale
    figures: pd.DataFrame
    failures: dict[str, str]

    def blocks(self) -> dict[str, pd.DataFrame]:
        """Texts by measure and split: a line per cell and calibration, three columns a method."""
        table, found = TABLES[self.name], {}
        rows = _texts(self.figures, table)
        for measure, split in product(table.measures, table.splits):
            own = rows[(rows["measure"] == measure) & (rows["split"] == split)]
            index, columns = ["cell", "calibration"], ["method", "weights"]
            wide = own.set_index([*index, *columns])["text"].unstack(columns).fillna("")
            lines, heads = (
                pd.MultiIndex.from_frame(own[part].drop_duplicates()) for part in (index, columns)
            )
            wide = wide.reindex(index=lines, columns=heads)
            if len(own):
                found[f"{measure}, {split}".removesuffix(", ")] = wide.loc[:, (wide != "").any()]
        return found

    def to_markdown(self) -> str:
        """The page of the table."""
        table = TABLES[self.name]
        labels = f" Paper: {', '.join(table.labels)}." if table.labels else ""
        parts = [
            f"# {self.name}: {table.title} (scale: {self.scale})",
            f"`gduq bench {self.name} --scale {self.scale}`.{labels} {table.note}".strip(),
        ]
        parts += [_LEGEND] if table.last else []
        for title, wide in self.blocks().items():
            head = [*wide.index.names, *(" ".join(filter(None, column)) for column in wide.columns)]
            lines = [[*key, *texts] for key, texts in zip(wide.index, wide.to_numpy(), strict=True)]
            parts.append(f"## {title}\n\n{markdown(head, lines)}".rstrip())
        failed = [f"- {name}: `{text.strip().splitlines()[-1].replace('`', chr(39))}`"
                  for name, text in self.failures.items()]  # fmt: skip
        parts += ["## Failed runs\n\n" + "\n".join(failed)] if failed else []
        return "\n\n".join(parts) + "\n"

    def write(self, path: Path) -> None:
        """As ``.md``, or as ``.csv`` with one line per figure."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self.to_markdown() if path.suffix == ".md" else self.figures.to_csv(index=False)
        write_text(path, text)


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
    workers: int | None = None,
    engine: str = "local",
    chemprop: Path | None = None,
    only: str = "",
    progress: bool = True,
) -> BenchResult:
    """Make a table: what is finished is not repeated, what was interrupted goes on.

    The page is also written to ``root/tables/<name>-<scale>.md``.

    Args:
        name: One of `gduq_reproduction.tables.TABLES`.
        scale: ``"smoke"`` (a minute, generated data), ``"small"`` (hours on two cores) or
            ``"paper"`` (the published schedule).
        root: Folder of all figures, trained networks and tables.
        seeds: How many; as the scale has it by default.
        workers: Processes (default: one per core); 0: in this one.
        engine: ``"local"`` or ``"ray"``; ``RAY_ADDRESS`` names a cluster.
        chemprop: The interpreter of an environment with Chemprop, for ``"molecules"``.
        only: A regular expression: do jobs whose title (cell, method, seed) has it, show the rest
            as far as they are done.
        progress: Print a line per job.
    """
    one_of("the name of a table", name, TABLES)
    one_of("a scale", scale, get_args(Scale))
    table, root = TABLES[name], Path(root).resolve()
    workers = 1 if name == "runtime" and workers is None else workers  # times: one at a time
    found, failures = run_jobs(
        table.jobs(scale, seeds, root, chemprop), Store(root / f"{table.store}-{scale}.csv"), only,
        workers=workers, engine=engine, progress=progress,
    )  # fmt: skip
    result = BenchResult(name, scale, long(found), failures)
    result.write(root / "tables" / f"{name}-{scale}.md")
    return result


def _texts(figures: pd.DataFrame, table: Table) -> pd.DataFrame:
    """A line per cell, calibration, split, measure, method and choice of weights, as text; the
    printed figures are lines too."""
    last = figures["method"].str.endswith(LAST)
    rows = (
        figures.assign(
            method=figures["method"].str.removesuffix(LAST),
            weights=last.map({True: "last", False: "picked"}) if table.last else "",
        )
        .astype({"calibration": object, "split": object})
        .fillna({"calibration": "", "split": ""})
    )
    wanted = rows["measure"].isin(table.measures) & rows["split"].isin(table.splits)
    rows = rows[wanted & ~rows["method"].str.endswith(tuple(READINGS))]
    plain = rows[rows["method"] == "plain"][[*_KEYS, "seed", "value"]]
    rows = rows.merge(plain, on=[*_KEYS, "seed"], how="left", suffixes=("", "_of_plain"))
    rows["gain"] = rows["value"] - rows["value_of_plain"]
    found = rows.groupby([*_KEYS, "method"], sort=False).agg(
        mean=("value", "mean"), std=("value", "std"), gain=("gain", "mean"),
        spread=("gain", "std"), seeds=("gain", "count"),
    ).reset_index()  # fmt: skip
    error = (found["spread"] / found["seeds"] ** 0.5).where(found["spread"] > 1e-12)
    chance = 2 * student.sf((found["gain"] / error).abs(), found["seeds"] - 1)
    better = (found["gain"] > 0) == found["measure"].isin(HIGHER)
    mark = np.where(chance < 0.05, np.where(better, " ▲", " ▼"), "")
    texts = [_text(*row) for row in found[["mean", "std", "measure"]].itertuples(index=False)]
    ours = found.assign(text=texts + pd.Series(mark, found.index, dtype=object))
    printed = found[found["weights"] != "picked"].assign(weights="paper")
    shown = [lookup(table.printed, **key) for key in printed.to_dict("records")]
    printed = printed.assign(text=[f and str(f) for f in shown]).dropna(subset="text")
    return pd.concat([ours, printed])[[*_KEYS, "method", "text"]].sort_index(kind="stable")


def _text(mean: float, std: float, measure: str) -> str:
    if measure == "parameters":
        return f"{mean:.0f}"
    digits = "{:.3g}" if measure.endswith(("seconds", "ratio")) else "{:.3f}"
    return digits.format(mean) + (f" ± {digits.format(std)}" if std == std else "")
