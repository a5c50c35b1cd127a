"""The published networks, trained again at paper scale, and what the paper prints of them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gduq_reproduction.comparison.scoring import CALIBRATORS
from gduq_reproduction.printed import lookup
from results_names import ANCHORED, CONTROLS, FEW, LAST, READINGS, joined

_NETWORKS = (*CONTROLS, "T = 2", *ANCHORED)
_METHODS = (*_NETWORKS, *(f"{m}{LAST}" for m in _NETWORKS))
_READ = tuple(
    f"{m}{reading}{end}" for m in ANCHORED for reading in list(READINGS)[1:] for end in ("", LAST)
)


def published_parts(table: pd.DataFrame) -> dict[str, Any]:
    """Parts of the summary: ``published_seeds``, ``published`` and ``printed``, by cell."""
    seeds, figures, printed = dict[str, int](), dict[str, Any](), dict[str, Any]()
    rows = table[table["split"] == "ood_test"]
    plainly = rows["method"].isin(_READ) & (rows["level"] == "none")
    for cell, own in rows[rows["method"].isin(_METHODS) | plainly].groupby("cell"):
        parts = own.groupby("seed")["part"].nunique()
        whole = parts[parts == own["part"].nunique()].index
        if own["part"].nunique() < 2 or not len(whole):  # nothing to compare yet
            continue
        means = own[own["seed"].isin(whole)].groupby(["method", "level"])
        by_key = means[list(FEW)].mean().round(3).iterrows()
        seeds[str(cell)] = len(whole)
        figures[str(cell)] = {joined(*key): row.to_dict() for key, row in by_key}
        printed |= {str(cell): found for found in [_printed(str(cell))] if found}
    return {"published_seeds": seeds, "published": figures, "printed": printed}


def accuracies(table: pd.DataFrame) -> dict[str, list[float]]:
    """Of the plain network on OOD test rows, ours and the paper's, where it prints one."""
    rows = table[(table["split"] == "ood_test") & (table["method"] == "plain")]
    ours = rows.groupby("cell")["accuracy"].mean().round(3)
    printed = {str(cell): _printed(str(cell)).get("plain|none") for cell in ours.index}
    return {cell: [float(ours[cell]), of["accuracy"]] for cell, of in printed.items() if of}


def _printed(cell: str) -> dict[str, dict[str, float]]:
    """ECE in 100 bins and accuracy, of the last epoch, logits averaged and rescaled."""
    dataset, _, shift = cell.partition(" ")[0].rpartition("/")
    where = {"dataset": dataset, "shift": shift, "split": "ood_test"}
    found: dict[str, dict[str, float]] = {}
    for method, variant in (("plain", "vanilla"), ("NFA", "nfa"), ("readout", "readout")):
        for level in ("none", *CALIBRATORS):
            named = {**where, "variant": variant, "calibrator": level}
            both = [lookup(["good_shifts_node", "good_shifts_big"], **named, metric=metric)
                    for metric in ("ece", "accuracy")]  # fmt: skip
            if both[0] is not None and both[1] is not None:
                means = {"ece": both[0].mean, "accuracy": both[1].mean}
                found[joined(method, level)] = means
    return found
