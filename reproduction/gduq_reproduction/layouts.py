"""Figures in the shape of a table: mean ± deviation over seeds, and under it what the paper prints.

A `Layout` names the keys of rows and columns. A table of the paper has its rows and columns, in its
order and under its names; any other has a row per cell and calibration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gduq_reproduction.methods import LAST
from gduq_reproduction.scoring import HIGHER, PAPER, READINGS

__all__ = ["LAYOUTS", "Layout", "Shaped", "as_gduq", "as_paper", "latex", "lines_of", "load",
           "shaped", "summarised"]  # fmt: skip

KEYS = ["dataset", "shift", "model", "method", "calibration", "split", "measure"]
MARKED = ("accuracy", "ece100", "auroc_val", "gep_error")  # whose best is bold, second underlined
_WITH_ENSEMBLES = ("good_shifts_big", "rotation_ece", "rotation_accuracy")  # as a calibration
_ENSEMBLES = {"ensemble of 3": "plain", "anchored ensemble": "readout"}


class Layout(NamedTuple):
    """The shape of a table."""

    rows: Sequence[str]  # keys of its rows, and
    columns: Sequence[str]  # of its columns, the outermost first
    printed: str = ""  # the file of the paper's figures
    keep: Mapping[str, Sequence[str]] = {}  # values of keys that are shown; others are left out
    names: Mapping[str, str] = {}  # what it calls values of keys, beside `NAMES`


_FOLDER = files("gduq_reproduction")
_FILE = json.loads(_FOLDER.joinpath("shapes.json").read_text(encoding="utf-8"))
NAMES: dict[str, str] = _FILE["names"]  # what the paper calls things
LAYOUTS = {number: Layout(**found) for number, found in _FILE["layouts"].items()}


@lru_cache
def load(name: str) -> dict[str, Any]:
    """The figures that a table of the paper prints: ``label``, ``source`` and ``entries``.

    Example:
        >>> load("parameters")["label"], len(load("parameters")["entries"])
        ('tab:num_param_per_model', 23)
    """
    text = _FOLDER.joinpath(f"printed/{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


# -- which figures -------------------------------------------------------------------------------


def summarised(figures: pd.DataFrame) -> pd.DataFrame:
    """Means, deviations and numbers of seeds of figures, one line each as
    `gduq_reproduction.harness.long` has them, by cell, weights and `KEYS`."""
    parts = figures["cell"].str.extract(r"^(?P<dataset>.*)/(?P<shift>\S+) (?P<model>.*)$")
    last = figures["method"].str.endswith(LAST)
    rows = figures.assign(
        **parts.replace({"dataset": {"motif-exact": "motif-lpe"}}, regex=True),
        method=figures["method"].str.removesuffix(LAST),
        weights=last.map({True: "last", False: "picked"}),
        **{key: figures[key].astype(object).fillna("") for key in ("calibration", "split")},
    )
    groups = rows.groupby(["cell", "weights", *KEYS], sort=False)
    return groups["value"].agg(["mean", "std", "count"]).reset_index()


def as_paper(found: pd.DataFrame) -> pd.DataFrame:
    """What a table shows of `summarised` figures, as the paper does it: weights of the last epoch,
    logits averaged and rescaled (σ is of probabilities), calibrators without priors, 100 bins;
    Motif without label noise."""
    rows = found[(found["weights"] == "last") & ~found["cell"].str.startswith("motif-lpe")]
    ruled = rows["method"].str.endswith(PAPER)
    anchored = rows.loc[ruled, "method"].str.removesuffix(PAPER)
    other = rows["method"].str.endswith(tuple(READINGS)) | rows["method"].isin(anchored)
    rows = rows[ruled | ~other]
    free = rows["calibration"].str.endswith(", published")
    held = rows["calibration"].isin(rows["calibration"][free].str.removesuffix(", published"))
    rows = rows[free | ~held]
    ends = {"method": PAPER, "calibration": ", published"}
    return rows.assign(**{key: rows[key].str.removesuffix(end) for key, end in ends.items()})


def as_gduq(found: pd.DataFrame) -> pd.DataFrame:
    """The same as gduq does it: probabilities averaged, calibrators with priors, 15 bins, weights
    picked by validation loss (of nodes those of the last epoch, of which alone there are some)."""
    picked = (found["weights"] == "picked") ^ (found["model"] == "gcn")
    shown = picked & ~found["cell"].str.startswith("motif-lpe") & (found["measure"] != "ece100")
    shown &= ~found["method"].str.endswith(tuple(READINGS))
    rows = found[shown & ~found["calibration"].str.endswith(", published")]
    return rows.replace({"measure": {"ece": "ece100"}})


# -- their shape ---------------------------------------------------------------------------------


class Shaped(NamedTuple):
    """A table: names of rows and columns, and the texts of each cell, ours first."""

    lines: list[tuple[str, ...]]
    heads: list[tuple[str, ...]]
    cells: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]
    layout: Layout


def shaped(layout: Layout, figures: pd.DataFrame, printed: bool = True) -> Shaped:
    """Figures as a table, and under each the ``printed`` one. ``**`` is around the best of all
    methods and calibrations on the same rows, ``__`` around the second."""
    names, known = {**NAMES, **layout.names}, [key for key in KEYS if key in figures]
    parts = [figures]
    if layout.printed:
        parts = [pd.DataFrame(load(layout.printed)["entries"]), figures]
        known = [key for key in known if key in parts[0]]
    wanted: set[tuple[str, ...]] = set()
    tables = list[dict[tuple[tuple[str, ...], tuple[str, ...]], str]]()
    for part in parts:  # the printed one first: it says what there is
        if "calibration" in part and layout.printed in _WITH_ENSEMBLES:
            many = part["method"].isin(_ENSEMBLES)
            level = part["calibration"].where(~many, "Ensembling")
            part = part[~many | (part["calibration"] == "none")].assign(calibration=level)
            part = part.assign(method=part["method"].where(~many, part["method"].map(_ENSEMBLES)))
        for key, values in layout.keep.items():
            part = part[part[key].isin(values)]
        own = [tuple(row) for row in part[known].to_numpy().tolist()]
        part = part[np.array([not wanted or row in wanted for row in own], dtype=bool)]
        wanted |= set(own) if layout.printed else set()
        sides = (
            [tuple(names.get(v, str(v)) for v in row) for row in part[list(keys)].to_numpy()]
            for keys in (layout.rows, layout.columns)
        )
        pairs = list(zip(*sides, strict=True))
        tables.append(dict(zip(reversed(pairs), reversed(_texts(part, layout)), strict=True)))
    every = [pair for table in tables for pair in reversed(table)]
    lines, heads = (list(dict.fromkeys(pair[side] for pair in every)) for side in (0, 1))
    shown = tables[::-1] if printed else tables[-1:]
    cells = {pair: [table.get(pair, "–") for table in shown] for pair in every}
    return Shaped(lines, heads, cells, layout)


def _texts(part: pd.DataFrame, layout: Layout) -> list[str]:
    """Mean ± deviation, with marks."""
    rows = ["dataset", "shift", "split", "measure", *(["cell"] if "cell" in layout.rows else [])]
    group = [part[key].astype(str) for key in rows if key in part]
    sign = np.where(part["measure"].isin(HIGHER), -1.0, 1.0)
    places = (sign * part["mean"]).round(3).groupby(group).rank("dense")
    marks = places.map({1.0: "**", 2.0: "__"}).where(part["measure"].isin(MARKED)).fillna("")
    columns = (part["mean"], part["std"], part["measure"], marks)
    return [_text(*row) for row in zip(*columns, strict=True)]


def _text(mean: float, std: float, measure: str, mark: str) -> str:
    if pd.isna(std) and float(mean).is_integer():
        return f"{mean:.0f}"
    digits = "{:.3g}" if measure.endswith(("seconds", "ratio", "rate", "size")) else "{:.3f}"
    spread = "" if pd.isna(std) else f" ± {digits.format(std)}"
    return f"{mark}{digits.format(mean)}{mark}{spread}"


def lines_of(table: Shaped) -> list[list[str]]:
    """The table as rows of texts, the first one its head."""
    head = [*table.layout.rows, *(", ".join(name) for name in table.heads)]
    body = [
        [*line, *("<br>".join(table.cells.get((line, head), ["–"])) for head in table.heads)]
        for line in table.lines
    ]
    return [head, *body]


def latex(table: Shaped) -> str:
    """The table as LaTeX, for the packages booktabs and multirow."""
    cells = [[r" \\ ".join(table.cells.get((line, head), ["–"])) for head in table.heads]
             for line in table.lines]  # fmt: skip
    frame = pd.DataFrame(cells, pd.MultiIndex.from_tuples(table.lines, names=table.layout.rows))
    frame.columns = pd.MultiIndex.from_tuples(table.heads)
    text = frame.map(r"\shortstack{{{}}}".format).style.to_latex(hrules=True, multicol_align="c")
    text = re.sub(r"__(.+?)__", r"\\underline{\1}", re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text))
    for sign, code in _FILE["latex"].items():
        text = text.replace(sign, code)
    return text
