"""`bench`: run a table's jobs and show its figures, the paper's printed ones beside ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd
from scipy.stats import ttest_rel

from gduq.errors import InputError, did_you_mean
from gduq_reproduction.cells import Scale
from gduq_reproduction.harness import Store, long, run_jobs
from gduq_reproduction.methods import LAST
from gduq_reproduction.printed import lookup
from gduq_reproduction.scoring import HIGHER, READINGS
from gduq_reproduction.tables import SCORES, TABLES, Table

__all__ = ["BenchResult", "bench", "markdown"]

_LEGEND = (
    "Mean ± standard deviation over seeds: weights picked by validation loss, weights of the last "
    "epoch (the paper's way), and what the paper prints. ▲ better, ▼ worse than the plain network "
    "with the same calibration and choice of weights (paired t-test over seeds, p < 0.05). ece has "
    "15 bins and is of the averaged probabilities, ece100 has 100 and is of the averaged logits."
)
# what the paper's files call methods, calibrations and measures
_METHODS = {"plain": "vanilla", "NFA": "nfa", "ensemble of 3": "ensemble",
            "anchored ensemble": "ensemble-readout", "readout gaussian": "readout-random",
            "L1 gaussian": "random1", "L2 gaussian": "random2"}  # fmt: skip
_MEASURES = {"ece100": "ece", "auroc_val": "auroc"}
_SPLITS = {"detection": "ood_test", "estimation": "ood_test", "train": None, "": None}


@dataclass(frozen=True, eq=False)
class BenchResult:
    """A table, made anew.

    Attributes:
        name: The table's.
        scale: At which it was made.
        figures: One line per figure, see `gduq_reproduction.harness.long`.
        failures: Tracebacks of jobs that failed, by title.
        picture: Drawn beside it, if there is one.
    """

    name: str
    scale: Scale
    figures: pd.DataFrame
    failures: dict[str, str]
    picture: Path | None = None

    @property
    def table(self) -> Table:
        return TABLES[self.name]

    def blocks(self) -> dict[str, pd.DataFrame]:
        """Texts by measure and split: a line per cell and calibration, three columns a method."""
        found = {}
        rows = _aggregated(self.figures, self.table)
        for measure in self.table.measures:
            for split in self.table.splits:
                own = rows[(rows["measure"] == measure) & (rows["split"] == split)]
                if len(own):
                    index = ["cell", "calibration"]
                    wide = own.pivot(index=index, columns=["method", "weights"], values="text")
                    keys = own[["method", "weights"]].drop_duplicates().itertuples(index=False)
                    wide = wide.reindex(columns=pd.MultiIndex.from_tuples(map(tuple, keys)))
                    lines = own[index].drop_duplicates().itertuples(index=False)
                    wide = wide.reindex(pd.MultiIndex.from_tuples(map(tuple, lines), names=index))
                    title = f"{measure}, {split}" if split else measure
                    found[title] = wide.dropna(axis=1, how="all").fillna("")
        return found

    def to_markdown(self) -> str:
        """The page of the table."""
        labels = f" Paper: {', '.join(self.table.labels)}." if self.table.labels else ""
        parts = [f"# {self.name}: {self.table.title} (scale: {self.scale})"]
        parts += [
            f"`gduq bench {self.name} --scale {self.scale}`.{labels} {self.table.note}".strip()
        ]
        parts += [_LEGEND] if self.table.last else []
        for title, wide in self.blocks().items():
            head = [*wide.index.names, *(" ".join(filter(None, column)) for column in wide.columns)]
            lines = [[*key, *texts] for key, texts in zip(wide.index, wide.to_numpy(), strict=True)]
            parts.append(f"## {title}\n\n{markdown(head, lines)}".rstrip())
        failed = [f"- {name}: `{text.strip().splitlines()[-1].replace('`', chr(39))}`"
                  for name, text in self.failures.items()]  # fmt: skip
        parts += ["## Failed runs\n\n" + "\n".join(failed)] if failed else []
        parts += [f"![{self.table.title}]({self.picture.name})"] if self.picture else []
        return "\n\n".join(parts) + "\n"

    def to_latex(self) -> str:
        """The same as LaTeX tables (booktabs)."""
        tables = [wide.style.to_latex(hrules=True, caption=title)
                  for title, wide in self.blocks().items()]  # fmt: skip
        return "\n".join([f"% gduq bench {self.name} --scale {self.scale}", *tables])

    def write(self, path: Path) -> None:
        """As .md, .tex, .csv or .json; the last two hold one line per figure."""
        makers: dict[str, Callable[[], str]] = {
            ".md": self.to_markdown,
            ".tex": self.to_latex,
            ".csv": lambda: self.figures.to_csv(index=False),
            ".json": lambda: self.figures.to_json(orient="records"),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        temporary.write_text(makers[path.suffix](), encoding="utf-8")
        temporary.replace(path)


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
    address: str | None = None,
    chemprop: Path | None = None,
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
        engine: ``"local"`` or ``"ray"``.
        address: Of a Ray cluster.
        chemprop: The interpreter of an environment with Chemprop, for ``"molecules"``.
        progress: Print a line per job.
    """
    if name not in TABLES:
        raise InputError("the name of a table", repr(name), did_you_mean(name, list(TABLES)))
    if scale not in get_args(Scale):
        raise InputError(f"a scale from {', '.join(get_args(Scale))}", repr(scale))
    table, root = TABLES[name], Path(root).resolve()
    workers = 1 if name == "runtime" and workers is None else workers  # times: one at a time
    store = Store(root / f"{table.store}-{scale}.csv")
    jobs = table.jobs(scale, seeds, root, chemprop)
    found, failures = run_jobs(jobs, store, workers, engine, address, progress)
    picture = None
    page = root / "tables" / f"{name}-{scale}.md"
    if table.draw is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        picture = page.with_suffix(".png")
        table.draw(table.cells(scale), picture)
    result = BenchResult(name, scale, long(found), failures, picture)
    result.write(page)
    return result


def _aggregated(figures: pd.DataFrame, table: Table) -> pd.DataFrame:
    """A line per cell, calibration, split, measure, method and choice of weights, as text; the
    printed figures are lines too."""
    last = figures["method"].str.endswith(LAST)
    readings = figures["method"].str.contains("|".join(READINGS))
    rows = figures.assign(
        method=figures["method"].str.removesuffix(LAST),
        weights=last.map({True: "last", False: "picked"}) if table.last else "",
        calibration=figures["calibration"].astype(object).fillna(""),
        split=figures["split"].astype(object).fillna(""),
    )
    rows = rows[~readings & rows["measure"].isin(table.measures) & rows["split"].isin(table.splits)]
    keys = ["cell", "calibration", "split", "measure", "weights"]
    plain = {
        key: own.set_index("seed")["value"]
        for key, own in rows[rows["method"] == "plain"].groupby(keys, sort=False)
    }
    found: list[dict[str, Any]] = []
    for key, own in rows.groupby([*keys, "method"], sort=False):
        named = dict(zip((*keys, "method"), key, strict=True))
        values = own.set_index("seed")["value"]
        mark = _mark(values, plain.get(key[:-1]), named)
        found.append(named | {"text": _text(values, named["measure"]) + mark})
        if named["weights"] != "picked":
            found.append(named | {"weights": "paper", "text": _printed(named, table)})
    return pd.DataFrame(found, columns=[*keys, "method", "text"])


def _text(values: pd.Series, measure: str) -> str:
    if measure == "parameters":
        return f"{values.mean():.0f}"
    digits = "{:.3g}" if measure.endswith(("seconds", "ratio")) else "{:.3f}"
    spread = f" ± {digits.format(values.std())}" if len(values) > 1 else ""
    return digits.format(values.mean()) + spread


def _mark(values: pd.Series, plain: pd.Series | None, key: dict[str, str]) -> str:
    if key["method"] == "plain" or plain is None:
        return ""
    both = pd.concat([values, plain], axis=1).dropna()
    if len(both) < 2:
        return ""
    gain = both.iloc[:, 0] - both.iloc[:, 1]
    if gain.std() < 1e-12 or ttest_rel(*both.T.to_numpy()).pvalue >= 0.05:
        return ""
    return " ▲" if (gain.mean() > 0) == (key["measure"] in HIGHER) else " ▼"


def _printed(key: dict[str, str], table: Table) -> str | None:
    """What the paper has for a line: its own measures, of the last epoch."""
    data, _, model = key["cell"].partition(" ")
    dataset, _, shift = data.rpartition("/")
    calibration = {"validation": "temperature", SCORES.get(_name(table), ""): "none"}
    named: dict[str, str | None] = {
        "dataset": dataset, "shift": shift, "model": model,
        "variant": _METHODS.get(key["method"], key["method"]),
        "calibrator": calibration.get(key["calibration"], key["calibration"]),
        "split": _SPLITS.get(key["split"], key["split"]),
        "metric": _MEASURES.get(key["measure"], key["measure"]),
    }  # fmt: skip
    if key["measure"] in _MEASURES.values():
        return None  # ours: the paper's is another measure
    family, shuffled = (
        {"dataset": dataset.partition("/")[0]},
        {"variant": f"batch{key['method'][1:]}"},
    )
    tries: tuple[dict[str, str], ...] = ({}, family, shuffled)
    found = next(filter(None, (lookup(table.printed, **(named | t)) for t in tries)), None)
    if found is None:
        return None
    return f"{found.mean:.10g}" + ("" if found.std is None else f" ± {found.std:g}")


def _name(table: Table) -> str:
    return next(name for name, other in TABLES.items() if other is table)
