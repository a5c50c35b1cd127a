"""The paper's claims as comparisons of two networks, cell by cell."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import pandas as pd

from gduq.paper.comparison.cells import cells
from gduq.paper.comparison.scoring import MEASURES
from results_names import HIGHER, joined


class Claim(NamedTuple):
    """On which cells, the paper's network, what it is held against, and by which measure."""

    group: str
    ours: str
    theirs: str
    measure: str


_PLAIN, _SCALED, _COPIES = "plain|none", "plain|validation", "plain|copies"
CLAIMS = {
    "nfa_ece": Claim("nodes", "NFA|none", _PLAIN, "ece"),
    "nfa_accuracy": Claim("nodes", "NFA|none", _PLAIN, "accuracy"),
    "nfa_nll": Claim("nodes", "NFA|none", _PLAIN, "nll"),
    "nfa_ts": Claim("nodes", "NFA|validation", _SCALED, "ece"),
    "nfa_copies": Claim("nodes", "NFA|copies", _COPIES, "nll"),
    "l1_nodes": Claim("nodes", "L1|copies", _COPIES, "nll"),
    "l2_nodes": Claim("nodes", "L2|copies", _COPIES, "nll"),
    "l1_ece": Claim("sizes", "L1|none", _PLAIN, "ece"),
    "l2_ece": Claim("sizes", "L2|none", _PLAIN, "ece"),
    "readout_sizes": Claim("sizes", "readout|none", _PLAIN, "ece"),
    "readout_sizes_accuracy": Claim("sizes", "readout|none", _PLAIN, "accuracy"),
    "readout_ece": Claim("graphs", "readout|none", _PLAIN, "ece"),
    "readout_accuracy": Claim("graphs", "readout|none", _PLAIN, "accuracy"),
    "readout_ts": Claim("graphs", "readout|validation", _SCALED, "ece"),
    "readout_copies": Claim("graphs", "readout|copies", _COPIES, "nll"),
    "pretrained_ece": Claim("graphs", "pretrained|none", "readout|none", "ece"),
    "pretrained_nll": Claim("graphs", "pretrained|copies", "readout|copies", "nll"),
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
        both = figures[claim.measure].unstack().reindex(columns=[claim.theirs, claim.ours]).dropna()
        both = both.loc[[cell for cell in both.index if claim.group in groups(cell)]]
        if not len(both):
            continue
        theirs, ours = both[claim.theirs], both[claim.ours]
        won = ours > theirs if claim.measure in HIGHER else ours < theirs
        means = both.mean().round(3).tolist()
        counts[name] = {"won": int(won.sum()), "of": len(both)}
        counts[name] |= {"theirs": means[0], "ours": means[1]}
        worst = float((ours - theirs).min()) if claim.measure == "accuracy" else None
        counts[name]["worst"] = worst if worst is None else round(worst, 3)
        pairs[name] = {
            str(cell): {"theirs": round(float(t), 3), "ours": round(float(o), 3)}
            for cell, t, o in both.itertuples()
        }
    return {"claims": counts, "pairs": pairs}


def _figures(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds on OOD test rows, by cell and key; ``msp`` has no level."""
    rows = table[table["split"] == "ood_test"]
    keys = rows["method"] + "|" + rows["level"]
    means = rows.assign(key=keys).groupby(["cell", "key"])[list(MEASURES)].mean()
    found = table[(table["split"] == "detection") & (table["level"] == "msp")]
    msp = found.assign(key=[joined(m, "none") for m in found["method"]])
    return means.join(msp.groupby(["cell", "key"])["auroc"].mean().rename("msp"))
