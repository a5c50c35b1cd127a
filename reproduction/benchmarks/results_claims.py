"""The paper's claims as comparisons of two networks, cell by cell."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import pandas as pd

from gduq_reproduction.comparison.cells import cells
from gduq_reproduction.comparison.scoring import CALIBRATORS, MEASURES
from results_names import HIGHER


class Claim(NamedTuple):
    """On which cells, the paper's network, what it is held against, and by which measure. Several
    networks, joined by `OR`, stand for the best of them in each cell."""

    group: str
    ours: str
    theirs: str
    measure: str


OR = " or "
_PLAIN, _SCALED, _COPIES = "plain|none", "plain|validation", "plain|copies"
_LAYERS = OR.join(("L1|none", "L2|none", "readout|none"))
_CALIBRATED = {m: OR.join(f"{m}|{c}" for c in ("none", *CALIBRATORS)) for m in ("plain", "NFA")}
CLAIMS = {  # of both tables: what a table does not hold is left out
    "nfa_ece": Claim("nodes", "NFA|none", _PLAIN, "ece"),
    "nfa_accuracy": Claim("nodes", "NFA|none", _PLAIN, "accuracy"),
    "nfa_nll": Claim("nodes", "NFA|none", _PLAIN, "nll"),
    "nfa_last": Claim("nodes", "NFA, last epoch|none", "plain, last epoch|none", "accuracy"),
    "l1_nfa": Claim("nodes", "L1|none", "NFA|none", "ece"),
    "l2_nfa": Claim("nodes", "L2|none", "NFA|none", "ece"),
    "l1_last": Claim("nodes", "L1, last epoch|none", "NFA, last epoch|none", "ece"),
    "l2_last": Claim("nodes", "L2, last epoch|none", "NFA, last epoch|none", "ece"),
    "any_ece": Claim("nodes", _CALIBRATED["NFA"], _CALIBRATED["plain"], "ece"),
    "any_accuracy": Claim("nodes", _CALIBRATED["NFA"], _CALIBRATED["plain"], "accuracy"),
    "nfa_ts": Claim("nodes", "NFA|validation", _SCALED, "ece"),
    "nfa_copies": Claim("nodes", "NFA|copies", _COPIES, "nll"),
    "l1_nodes": Claim("nodes", "L1|copies", _COPIES, "nll"),
    "l2_nodes": Claim("nodes", "L2|copies", _COPIES, "nll"),
    "l1_ece": Claim("sizes", "L1|none", _PLAIN, "ece"),
    "l2_ece": Claim("sizes", "L2|none", _PLAIN, "ece"),
    "readout_sizes": Claim("sizes", "readout|none", _PLAIN, "ece"),
    "readout_sizes_accuracy": Claim("sizes", "readout|none", _PLAIN, "accuracy"),
    "best_ece": Claim("sizes", _LAYERS, _PLAIN, "ece"),
    "best_accuracy": Claim("sizes", _LAYERS, _PLAIN, "accuracy"),
    "t2_sizes": Claim("sizes", "T = 2|none", _PLAIN, "ece"),
    "l1_copies": Claim("sizes", "L1|copies", _COPIES, "ece"),
    "l2_copies": Claim("sizes", "L2|copies", _COPIES, "ece"),
    "readout_sizes_copies": Claim("sizes", "readout|copies", _COPIES, "ece"),
    "best_copies": Claim("sizes", _LAYERS.replace("none", "copies"), _COPIES, "ece"),
    "readout_ece": Claim("graphs", "readout|none", _PLAIN, "ece"),
    "readout_accuracy": Claim("graphs", "readout|none", _PLAIN, "accuracy"),
    "readout_ts": Claim("graphs", "readout|validation", _SCALED, "ece"),
    "readout_copies": Claim("graphs", "readout|copies", _COPIES, "nll"),
    "pretrained_ece": Claim("graphs", "pretrained|none", "readout|none", "ece"),
    "pretrained_nll": Claim("graphs", "pretrained|copies", "readout|copies", "nll"),
    "pretrained_copies": Claim("graphs", "pretrained|copies", "readout|copies", "ece"),
    "pretrained_plain": Claim("graphs", "pretrained|none", _PLAIN, "ece"),
    "pretrained_id": Claim("graphs", "pretrained|none", _PLAIN, "id_ece"),
    "pretrained_cost": Claim("graphs", "pretrained|none", "readout|none", "cost"),
    "nfa_ensemble": Claim("nodes", "NFA|copies", "ensemble of 3|copies", "nll"),
    "readout_ensemble": Claim("graphs", "readout|copies", "ensemble of 3|copies", "nll"),
    "mixture_nodes": Claim("nodes", "NFA|none", "NFA, mean logits|none", "nll"),
    "mixture_graphs": Claim("graphs", "readout|none", "readout, mean logits|none", "nll"),
    "rule_nodes": Claim("nodes", "NFA, paper rule|none", "NFA|none", "ece"),
    "rule_graphs": Claim("graphs", "readout, paper rule|none", "readout|none", "ece"),
    "released_t2": Claim("all", "pretrained, released rule|none", "T = 2|none", "ece"),
    "released_nodes": Claim("nodes", "pretrained, released rule|none", "T = 2|none", "ece"),
    "released_graphs": Claim("graphs", "pretrained, released rule|none", "T = 2|none", "ece"),
    "msp_nodes": Claim("nodes", "NFA|none", _PLAIN, "msp"),
    "msp_graphs": Claim("graphs", "readout|none", _PLAIN, "msp"),
    "msp_pretrained": Claim("graphs", "pretrained|none", _PLAIN, "msp"),
    "novelty_nodes": Claim("nodes", "novelty|novelty", _PLAIN, "msp"),
    "novelty_graphs": Claim("graphs", "novelty|novelty", _PLAIN, "msp"),
    "epistemic_nodes": Claim("nodes", "NFA|copies", "ensemble of 3|copies", "errors"),
}


@lru_cache
def groups(cell: str) -> tuple[str, ...]:
    """Those of claims that a cell is in."""
    plan = (*cells("small"), *cells("paper"))
    on_nodes = next(known.on_nodes for known in plan if known.name == cell)
    return ("all", "nodes" if on_nodes else "graphs", *["sizes"] * cell.startswith("tu/"))


def with_paper(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the cells and seeds that have the paper's networks, so that all have the same."""
    done = table[table["part"] == "paper"][["cell", "seed"]].drop_duplicates()
    return table.merge(done, on=["cell", "seed"])


def claimed(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Parts of the summary: ``claims``, in how many cells the paper's network is better, and both
    means; and ``pairs``, every cell by itself."""
    figures = _figures(with_paper(table))
    pairs, counts = {}, {}
    for name, claim in CLAIMS.items():
        sides = {"theirs": claim.theirs, "ours": claim.ours}
        both = pd.DataFrame({k: _best(figures[claim.measure], v) for k, v in sides.items()})
        both = both.dropna().loc[lambda own, g=claim.group: [g in groups(c) for c in own.index]]
        if not len(both):
            continue
        gain = both["ours"] - both["theirs"]
        won = gain > 0 if claim.measure in HIGHER else gain < 0
        counts[name] = {"won": int(won.sum()), "of": len(both), **both.mean().round(3)}
        worst = round(float(gain.min()), 3) if claim.measure == "accuracy" else None
        counts[name]["worst"] = worst
        pairs[name] = {
            str(cell): {"theirs": round(float(t), 3), "ours": round(float(o), 3)}
            for cell, t, o in both.itertuples()
        }
    return {"claims": counts, "pairs": pairs}


def _best(figures: pd.Series, networks: str) -> pd.Series:
    """By cell, of the networks that are named; nothing where one is missing."""
    own = figures.unstack().reindex(columns=networks.split(OR))
    return own.agg("max" if figures.name in HIGHER else "min", axis=1, skipna=False)


_PLACES = {m: (m, "ood_test") for m in MEASURES} | {
    "id_ece": ("ece", "id_test"),
    "msp": ("auroc", "detection"),
    "cost": ("cost", "training"),
}


def _figures(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds by cell and key; ``msp`` and ``cost`` have no level."""
    keys = table["method"] + "|" + table["level"].fillna("none").replace("msp", "none")
    rows = table.assign(key=keys).groupby(["cell", "key", "split"])
    means = rows[[*MEASURES, "auroc", "cost"]].mean().unstack()
    return means.reindex(columns=list(_PLACES.values())).set_axis(list(_PLACES), axis=1)
