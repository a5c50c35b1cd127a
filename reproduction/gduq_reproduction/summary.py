"""From the figures of `gduq bench comparison` to a summary, which holds all that pages show."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from gduq_reproduction.cells import SEARCHED
from gduq_reproduction.methods import LAST
from gduq_reproduction.printed import lookup
from gduq_reproduction.scoring import HIGHER

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["CLAIMS", "MAIN", "OURS", "SHOWN", "Claim", "by_cell", "claimed", "groups", "packed",
           "summary"]  # fmt: skip

SHOWN = ["nll", "brier", "ece", "ece_debiased", "aurc", "accuracy"]
FEW = ["nll", "ece", "accuracy"]  # of the published networks, cell by cell
ANCHORED = ["NFA", "L1", "L2", "readout", "pretrained"]  # what the paper trains
CONTROLS = ["plain", "ensemble of 3"]


class Claim(NamedTuple):
    """On which cells, a network, what it is held against, and by which measure. Several networks,
    joined by ``or``, stand for the best of them in each cell."""

    group: str
    ours: str
    theirs: str
    measure: str


ROOT = Path(__file__).parents[2]
NOTES = tomllib.loads((ROOT / "results/notes.toml").read_text(encoding="utf-8"))
MAIN: dict[str, str] = NOTES["names"]  # of methods and calibrations: what people call them
OURS, CLAIMS = (
    {name: Claim(*text.split("; ")) for name, text in NOTES[kind].items()}
    for kind in ("ours", "claims")
)
PLACES = {  # what is read of a cell and key, and on which split
    **{name: (name, "ood_test") for name in [*SHOWN, "errors"]},
    **{f"id_{name}": (name, "id_test") for name in SHOWN},
    "msp": ("auroc", "detection"),
    "msp_errors": ("errors", "detection"),
    "cost": ("cost", "training"),
}


def groups(cell: str) -> list[str]:
    """Those of claims that a cell is in."""
    on_graphs = cell.startswith(("tu/", "motif/", "molecules/"))
    found = ["all", "graphs" if on_graphs else "nodes"]
    found += ["sizes"] * cell.startswith("tu/")
    shifted = not cell.split(" ")[0].endswith("concept")
    read = any(part in cell for part in ("/size", "/degree/"))  # which novelty reads
    return found + ["shifted"] * shifted + ["read"] * (shifted and read)


def by_cell(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds: a line per cell and key (method and calibration), a column per place."""
    level = table["calibration"].fillna("none").replace("msp", "none")
    rows = table.assign(key=table["method"] + "|" + level).groupby(["cell", "key", "split"])
    means = rows[[*SHOWN, "errors", "auroc", "cost"]].mean().unstack()
    return means.reindex(columns=list(PLACES.values())).set_axis(list(PLACES), axis=1)


def with_paper(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the cells and seeds that have the paper's networks, so that all have the same."""
    done = table[table["method"] == "L1"][["cell", "seed"]].drop_duplicates()
    return table.merge(done, on=["cell", "seed"])


def summary(table: pd.DataFrame, published: pd.DataFrame) -> dict[str, Any]:
    """All figures that a page shows, rounded; ``published`` are those of paper scale."""
    own = by_cell(table[~table["method"].str.match("|".join([*ANCHORED, "candidate: "]))])
    plain = own.xs("plain|none", level="key")
    means = own.groupby("key").mean()
    costs = means["cost"].dropna().rename(lambda key: key.removesuffix("|none"))
    seeds = table.groupby(["cell", "method"])["seed"].nunique().unstack(fill_value=0)
    seeds = seeds.reindex(columns=["plain", "L1"], fill_value=0).set_axis(
        ["methods", "paper"], axis=1
    )
    guess = [1 / 3 if cell.startswith("motif") else 1 / 2 for cell in plain.index]
    near = plain[(plain["accuracy"] < guess) | (plain["accuracy"] - guess < 0.05)]
    return {
        "about": {
            "cells": len(plain),
            "nodes": sum("nodes" in groups(name) for name in plain.index),
            "searched": sum(name.startswith(SEARCHED) for name in plain.index),
            "near_chance": sum("graphs" in groups(name) for name in near.index),
        },
        "seeds": seeds.to_dict("index"),
        "accuracies": _accuracies(plain["accuracy"]),
        "comparisons": claimed(own, OURS),
        "kinds": {kind: claimed(own, _only(kind)) for kind in ("nodes", "graphs")},
        "costs": costs.round(2).to_dict(),
        "means": {
            "ood_test": _rows(means[SHOWN].dropna(how="all")),
            "id_test": _rows(
                means[[f"id_{name}" for name in SHOWN]].set_axis(SHOWN, axis=1).dropna(how="all")
            ),
        },
        "claims": claimed(by_cell(with_paper(table)), CLAIMS),
        "cells": _cells(own[own.index.isin(MAIN, level="key")][[*SHOWN, "errors"]]),
        **_published(published),
        "published_claims": claimed(by_cell(with_paper(published)), CLAIMS),
    }


def _only(kind: str) -> dict[str, Claim]:
    """Our claims about all cells, for nodes or graphs alone."""
    return {name: c._replace(group=kind) for name, c in OURS.items() if c.group == "all"}


def _rows(means: pd.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = means.round(3).to_dict("index")
    return found


def _cells(means: pd.DataFrame) -> dict[str, Any]:
    return {str(cell): _rows(own.droplevel("cell")) for cell, own in means.groupby("cell")}


def claimed(means: pd.DataFrame, claims: dict[str, Claim]) -> dict[str, Any]:
    """In how many cells a network is better, and both means, by claim."""
    counts: dict[str, Any] = {}
    for name, claim in claims.items():
        figures, higher = means[claim.measure].unstack(), claim.measure in HIGHER
        figures = figures[[claim.group in groups(cell) for cell in figures.index]]
        best = "max" if higher else "min"
        ours, theirs = (
            figures.reindex(columns=side.split(" or ")).agg(best, axis=1, skipna=False)
            for side in (claim.ours, claim.theirs)
        )
        gain = (ours - theirs).dropna()
        if len(gain):
            sides = {"theirs": theirs[gain.index].mean(), "ours": ours[gain.index].mean()}
            worst = round(float(gain.min()), 3) if claim.measure == "accuracy" else None
            won = int((gain > 0 if higher else gain < 0).sum())
            means_of = pd.Series(sides).round(3).to_dict()
            counts[name] = {"won": won, "of": len(gain), **means_of, "worst": worst}
    return counts


def _published(table: pd.DataFrame) -> dict[str, Any]:
    """Means by cell over the seeds that have all of the paper's networks."""
    method = table["method"].str.removesuffix(LAST)
    rows = table[(table["split"] == "ood_test") & method.isin([*CONTROLS, "T = 2", *ANCHORED])]
    seeds, figures = dict[str, int](), dict[str, Any]()
    for cell, own in rows.groupby("cell"):
        methods = own.groupby("seed")["method"].nunique()
        complete = methods[methods == own["method"].nunique()].index
        if {"plain", "L1"} <= set(own["method"]) and len(complete):  # else nothing to compare yet
            seeds[str(cell)] = len(complete)
            figures |= _cells(by_cell(own[own["seed"].isin(complete)])[FEW])
    return {"published_seeds": seeds, "published": figures}


def _accuracies(ours: pd.Series) -> dict[str, list[float]]:
    """Of the plain network on OOD test rows, ours and the paper's, where it prints one."""
    found = dict[str, list[float]]()
    key = {"method": "plain", "calibration": "none", "split": "ood_test", "measure": "accuracy"}
    for cell, accuracy in ours.round(3).items():
        printed = lookup(["good_shifts_node", "good_shifts_big"], str(cell), **key)
        found |= {} if printed is None else {str(cell): [float(accuracy), printed.mean]}
    return found


def packed(found: dict[str, Any]) -> str:
    """The text of ``results/summary.json``: a line per entry of a section."""
    parts = []
    for name, part in found.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items()]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"
