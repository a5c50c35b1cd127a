"""From the tables of `gduq bench comparison` to the summary, which holds all that a page shows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd

from gduq_reproduction.comparison.bars import bars, cell_means
from gduq_reproduction.comparison.cells import cells
from gduq_reproduction.comparison.comparison_result import SHOWN, overview
from gduq_reproduction.comparison.scoring import LEVELS
from results_claims import claimed, groups, with_paper
from results_names import ANCHORED, CONTROLS, FEW, MAIN, READINGS, SPLITS, joined
from results_published import accuracies, published_parts

Figures = dict[str, dict[str, float]]
_RIVALS = ("plain|validation", "plain|copies", "ensemble of 3|copies")
_BUDGETS = ("1.2", "1.5", "2.5")


def summary(table: pd.DataFrame, published: pd.DataFrame) -> dict[str, Any]:
    """All figures that a page shows, rounded; ``published`` are those of paper scale."""
    own = table[table["part"] == "methods"]
    return {
        "about": _about(own),
        "seeds": _seeds(table),
        "accuracies": accuracies(own),
        "bars": [asdict(bar) for bar in bars(table)],
        "kinds": _kinds(own),
        "costs": _costs(own),
        "means": {split: rounded(overview(own, split)[list(SHOWN)]) for split in SPLITS},
        **claimed(table),
        "cells": _by_cell(own),
        "detection": _detection(table),
        "paper_means": _paper_means(table),
        "paper": _paper(table),
        "paper_msp": _msp(table),
        **published_parts(published),
        "published_claims": claimed(published)["claims"],
    }


def _about(table: pd.DataFrame) -> dict[str, int]:
    known = {cell.name: cell for cell in cells("small")}
    names = table["cell"].unique()
    return {
        "cells": len(names),
        "nodes": sum(known[name].on_nodes for name in names),
        "searched": sum(known[name].search for name in names),
    }


def _seeds(table: pd.DataFrame) -> dict[str, dict[str, int]]:
    """How many, by cell and part."""
    counts = table.groupby(["cell", "part"])["seed"].nunique().unstack(fill_value=0)
    counts = counts.reindex(columns=["methods", "paper"], fill_value=0)
    return {str(cell): row.to_dict() for cell, row in counts.iterrows()}


def rounded(means: pd.DataFrame) -> Figures:
    """Rows by key, of a table with methods and levels as its index."""
    found = means.round(3).astype(float)
    return {joined(*key): row.to_dict() for key, row in found.iterrows()}


def _costs(table: pd.DataFrame) -> dict[str, float]:
    """Training in all, in trainings of the plain network: means over cells."""
    cost = table[table["split"] == "training"].groupby(["method", "cell"], sort=False)["cost"]
    means = cost.mean().groupby("method", sort=False).mean().round(2)
    return {str(method): float(value) for method, value in means.items()}


def _kinds(table: pd.DataFrame) -> dict[str, dict[str, list[str]]]:
    """Nodes and graphs apart: in how many cells a choice has the lower NLL and Brier score; and how
    well disagreement (an ensemble's beside it) and confidence (the plain network's and an
    ensemble's beside it) find errors, as AUROC."""
    means = cell_means(table)
    away = means.xs("ood_test", level="split")[["nll", "brier", "errors"]]
    sure = means.xs(("msp", "detection"), level=("level", "split"))["errors"]
    found = dict[str, dict[str, list[str]]]()
    for kind in ("nodes", "graphs"):
        names = [c for c in away.index.unique("cell") if kind in groups(c)]
        if not names:
            continue
        rivals = [away.xs(tuple(r.split("|")), level=("method", "level")) for r in _RIVALS]
        rivals = [rival.loc[names] for rival in rivals]
        for budget in _BUDGETS:
            name = f"choose {budget}"
            ours = away.xs((name, "copies"), level=("method", "level")).loc[names]
            won = [(ours < rival)[m].sum() for rival in rivals for m in ("nll", "brier")]
            both = [each["errors"].mean() for each in (ours, rivals[-1])]
            confident = [
                sure.xs(method, level="method").loc[names].mean()
                for method in (name, "plain", "ensemble of 3")
            ]
            found.setdefault(kind, {})[budget] = [
                *(f"{n} of {len(names)}" for n in won),
                "{:.2f} ({:.2f})".format(*both),
                "{:.2f} ({:.2f}, {:.2f})".format(*confident),
            ]
    return found


def _by_cell(table: pd.DataFrame) -> dict[str, Figures]:
    """Per cell the main methods on OOD test rows."""
    means = cell_means(table).xs("ood_test", level="split")[[*SHOWN, "errors"]]
    return {
        cell: rounded(own.loc[[key for key in MAIN if key in own.index]])
        for cell in means.index.unique("cell")
        for own in [means.loc[cell]]
    }


def _detection(table: pd.DataFrame) -> Figures:
    """Per cell the AUROC of ID against OOD test rows of novelty, of `choose(1.2)`'s other scores
    and of energies."""
    named = ("novelty", "choose 1.2")
    methods = (*named, "gnnsafe", "gebm", "gebm, with edges")
    rows = table[(table["split"] == "detection") & table["method"].isin(methods)]
    names = rows["level"].where(rows["method"].isin(named), rows["method"])
    return _aurocs(rows.assign(score=names), "score")


def _msp(table: pd.DataFrame) -> Figures:
    """The same by the largest probability of the paper's networks and of controls."""
    rows = with_paper(table)
    rows = rows[(rows["split"] == "detection") & (rows["level"] == "msp")]
    return _aurocs(rows[rows["method"].isin((*CONTROLS, *ANCHORED))], "method")


def _aurocs(rows: pd.DataFrame, by: str) -> Figures:
    means = rows.groupby(["cell", by])["auroc"].mean().round(3).unstack()
    return {str(cell): row.dropna().to_dict() for cell, row in means.iterrows()}


def _judged(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the paper's networks in all readings, and of controls with the same seeds."""
    rows = with_paper(table)
    names = [method + reading for method in ANCHORED for reading in READINGS]
    return rows[rows["method"].isin([*CONTROLS, "T = 2", *names]) & rows["split"].isin(SPLITS)]


def _paper_means(table: pd.DataFrame) -> dict[str, dict[str, Figures]]:
    """Of nodes and of graphs, by split."""
    rows = _judged(table)
    kinds = {k: rows[[k in groups(c) for c in rows["cell"]]] for k in ("nodes", "graphs")}
    return {
        kind: {split: rounded(overview(own, split)[list(SHOWN)]) for split in SPLITS}
        for kind, own in kinds.items()
        if len(own)
    }


def _paper(table: pd.DataFrame) -> dict[str, Figures]:
    """Per cell and network a few measures at all levels, on OOD test rows."""
    rows = _judged(table)
    rows = rows[(rows["split"] == "ood_test") & (rows["method"] != "T = 2")]
    means = rows.groupby(["cell", "method", "level"])[list(FEW)].mean().round(3)
    found: dict[str, Figures] = {}
    for (cell, method), own in means.groupby(["cell", "method"]):
        by_level = own.droplevel(["cell", "method"])
        figures = {joined(m, at): float(by_level.loc[at, m]) for m in FEW for at in LEVELS}
        found.setdefault(str(cell), {})[str(method)] = figures
    return found
