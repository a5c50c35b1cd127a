"""From the figures of `gduq bench comparison` to a summary, which holds all that pages show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from gduq_reproduction.cells import SEARCHED
from gduq_reproduction.methods import LAST
from gduq_reproduction.printed import lookup
from gduq_reproduction.scoring import HIGHER, LEVELS, POST_HOC

__all__ = ["ANCHORED", "CLAIMS", "CONTROLS", "MAIN", "READ", "SHOWN", "Claim", "groups", "packed",
           "summary"]  # fmt: skip

SHOWN = ["nll", "brier", "ece", "ece_debiased", "aurc", "accuracy"]
FEW = ["nll", "ece", "accuracy"]  # of the paper's networks, cell by cell
ANCHORED = ["NFA", "L1", "L2", "readout", "pretrained"]  # what the paper trains
CONTROLS = ["plain", "ensemble of 3"]
READ = ["", ", mean logits", ", paper rule", ", released rule"]  # readings of the hypotheses
SPLITS = ["ood_test", "id_test"]
MAIN: dict[str, str] = {  # method and calibration: what people call it
    "plain|none": "the network as it is",
    "T = 2|none": "its logits halved (T = 2)",
    "plain|validation": "temperature scaling",
    "plain|copies": "temperature from shifted copies too",
    "density|copies": "density-aware calibration",
    "mc dropout|copies": "MC dropout",
    "laplace|copies": "last-layer Laplace",
    "neighbours|copies": "nearest training rows",
    "head ensemble|copies": "ten heads",
    "head ensemble, masked|copies": "ten heads, masked, no anchors",
    "anchored head|copies": "gduq.anchor(net)",
    "choose 1.2|copies": "gduq.choose(budget=1.2)",
    "choose 1.5|copies": "gduq.choose(budget=1.5)",
    "choose 2.5|copies": "gduq.choose(budget=2.5)",
    "choose 1.2, tempered|copies": "gduq.choose(budget=1.2), one more temperature",
    "choose 2.5, tempered|copies": "gduq.choose(budget=2.5), one more temperature",
    "ensemble of 3|copies": "ensemble of three",
}


class Claim(NamedTuple):
    """On which cells, a network, what it is held against, and by which measure. Several networks,
    joined by ``or``, stand for the best of them in each cell."""

    group: str
    ours: str
    theirs: str
    measure: str


def _read(text: str) -> dict[str, Claim]:
    """Lines of name: group; ours; theirs; measure."""
    pairs = (line.split(":", 1) for line in text.strip().splitlines())
    return {name.strip(): Claim(*map(str.strip, rest.split(";"))) for name, rest in pairs}


_LAYERS = " or ".join(("L1|none", "L2|none", "readout|none"))
_ANY = {m: " or ".join(f"{m}|{c}" for c in ("none", *POST_HOC)) for m in ("plain", "NFA")}
OURS = _read("""
    ts_nll: all; choose 1.2|copies; plain|validation; nll
    ts_brier: all; choose 1.2|copies; plain|validation; brier
    copies_nll: all; choose 1.2|copies; plain|copies; nll
    copies_brier: all; choose 1.2|copies; plain|copies; brier
    copies_ece: all; choose 1.2|copies; plain|copies; ece_debiased
    copies_accuracy: all; choose 1.2|copies; plain|copies; accuracy
    ensemble_1.5: all; choose 1.5|copies; ensemble of 3|copies; nll
    ensemble_2.5: all; choose 2.5|copies; ensemble of 3|copies; nll
    ensemble_2.5_brier: all; choose 2.5|copies; ensemble of 3|copies; brier
    errors_1.2: all; choose 1.2|copies; ensemble of 3|copies; errors
    errors_1.5: all; choose 1.5|copies; ensemble of 3|copies; errors
    errors_2.5: all; choose 2.5|copies; ensemble of 3|copies; errors
    novelty: shifted; novelty|novelty; choose 1.2|energy or choose 1.2|none or choose 1.2|epistemic; msp
    novelty_read: read; novelty|novelty; choose 1.2|energy or choose 1.2|none or choose 1.2|epistemic; msp
    gebm: nodes; novelty|novelty; gebm|energy; msp
    gnnsafe: nodes; novelty|novelty; gnnsafe|energy; msp
""")  # noqa: E501
CLAIMS = _read(f"""
    nfa_ece: nodes; NFA|none; plain|none; ece
    nfa_accuracy: nodes; NFA|none; plain|none; accuracy
    nfa_nll: nodes; NFA|none; plain|none; nll
    nfa_last: nodes; NFA{LAST}|none; plain{LAST}|none; accuracy
    l1_nfa: nodes; L1|none; NFA|none; ece
    l2_nfa: nodes; L2|none; NFA|none; ece
    l1_last: nodes; L1{LAST}|none; NFA{LAST}|none; ece
    l2_last: nodes; L2{LAST}|none; NFA{LAST}|none; ece
    any_ece: nodes; {_ANY["NFA"]}; {_ANY["plain"]}; ece
    any_accuracy: nodes; {_ANY["NFA"]}; {_ANY["plain"]}; accuracy
    nfa_ts: nodes; NFA|validation; plain|validation; ece
    nfa_copies: nodes; NFA|copies; plain|copies; nll
    l1_nodes: nodes; L1|copies; plain|copies; nll
    l2_nodes: nodes; L2|copies; plain|copies; nll
    l1_ece: sizes; L1|none; plain|none; ece
    l2_ece: sizes; L2|none; plain|none; ece
    readout_sizes: sizes; readout|none; plain|none; ece
    readout_sizes_accuracy: sizes; readout|none; plain|none; accuracy
    best_ece: sizes; {_LAYERS}; plain|none; ece
    best_accuracy: sizes; {_LAYERS}; plain|none; accuracy
    t2_sizes: sizes; T = 2|none; plain|none; ece
    l1_copies: sizes; L1|copies; plain|copies; ece
    l2_copies: sizes; L2|copies; plain|copies; ece
    readout_sizes_copies: sizes; readout|copies; plain|copies; ece
    best_copies: sizes; {_LAYERS.replace("none", "copies")}; plain|copies; ece
    readout_ece: graphs; readout|none; plain|none; ece
    readout_accuracy: graphs; readout|none; plain|none; accuracy
    readout_ts: graphs; readout|validation; plain|validation; ece
    readout_copies: graphs; readout|copies; plain|copies; nll
    pretrained_ece: graphs; pretrained|none; readout|none; ece
    pretrained_nll: graphs; pretrained|copies; readout|copies; nll
    pretrained_copies: graphs; pretrained|copies; readout|copies; ece
    pretrained_plain: graphs; pretrained|none; plain|none; ece
    pretrained_id: graphs; pretrained|none; plain|none; id_ece
    pretrained_cost: graphs; pretrained|none; readout|none; cost
    nfa_ensemble: nodes; NFA|copies; ensemble of 3|copies; nll
    readout_ensemble: graphs; readout|copies; ensemble of 3|copies; nll
    mixture_nodes: nodes; NFA|none; NFA, mean logits|none; nll
    mixture_graphs: graphs; readout|none; readout, mean logits|none; nll
    rule_nodes: nodes; NFA, paper rule|none; NFA|none; ece
    rule_graphs: graphs; readout, paper rule|none; readout|none; ece
    released_t2: all; pretrained, released rule|none; T = 2|none; ece
    released_nodes: nodes; pretrained, released rule|none; T = 2|none; ece
    released_graphs: graphs; pretrained, released rule|none; T = 2|none; ece
    msp_nodes: nodes; NFA|none; plain|none; msp
    msp_graphs: graphs; readout|none; plain|none; msp
    msp_pretrained: graphs; pretrained|none; plain|none; msp
    novelty_nodes: nodes; novelty|novelty; plain|none; msp
    novelty_graphs: graphs; novelty|novelty; plain|none; msp
    epistemic_nodes: nodes; NFA|copies; ensemble of 3|copies; errors
""")
_PLACES = {m: (m, "ood_test") for m in [*SHOWN, "errors"]} | {
    "id_ece": ("ece", "id_test"),
    "msp": ("auroc", "detection"),
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


def summary(table: pd.DataFrame, published: pd.DataFrame) -> dict[str, Any]:
    """All figures that a page shows, rounded; ``published`` are those of paper scale."""
    own = table[~table["method"].str.match("|".join([*ANCHORED, "candidate: "]))]
    claims, pairs = claimed(_with_paper(table), CLAIMS)
    names = own["cell"].unique()
    return {
        "about": {
            "cells": len(names),
            "nodes": sum("nodes" in groups(name) for name in names),
            "searched": sum(name.startswith(SEARCHED) for name in names),
        },
        "seeds": _seeds(table),
        "accuracies": _accuracies(own),
        "comparisons": claimed(own, OURS)[0],
        "kinds": _kinds(own),
        "costs": _costs(own),
        "means": {split: _overview(own, split) for split in SPLITS},
        "claims": claims,
        "pairs": pairs,
        "cells": _by_cell(own),
        "paper": _paper(table),
        **_published(published),
        "published_claims": claimed(_with_paper(published), CLAIMS)[0],
    }


def packed(found: dict[str, Any]) -> str:
    """The text of ``results/summary.json``: one line for what holds no further tables."""

    def lines(part: Any, depth: int) -> str:
        if not isinstance(part, dict) or not any(isinstance(v, dict) for v in part.values()):
            return json.dumps(part, ensure_ascii=False)
        inner = "\n" + " " * (depth + 1)
        entries = [f"{inner}{json.dumps(k)}: {lines(v, depth + 1)}" for k, v in part.items()]
        return "{" + ",".join(entries) + "\n" + " " * depth + "}"

    return lines(json.loads(json.dumps(found)), 0) + "\n"


def _keyed(table: pd.DataFrame) -> pd.Series:
    return table["method"] + "|" + table["calibration"].fillna("none")


def _rows(means: pd.DataFrame) -> dict[str, Any]:
    """Rows by key, of a table of one index."""
    found = means.round(3).astype(float)
    return {str(key): row.to_dict() for key, row in found.iterrows()}


def _with_paper(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the cells and seeds that have the paper's networks, so that all have the same."""
    done = table[table["method"] == "L1"][["cell", "seed"]].drop_duplicates()
    return table.merge(done, on=["cell", "seed"])


def claimed(table: pd.DataFrame, claims: dict[str, Claim]) -> tuple[dict[str, Any], dict[str, Any]]:
    """In how many cells a network is better, with both means; and every cell by itself."""
    rows = table.assign(key=_keyed(table).str.replace("|msp", "|none", regex=False))
    means = rows.groupby(["cell", "key", "split"])[[*SHOWN, "errors", "auroc", "cost"]].mean()
    wide = means.unstack().reindex(columns=list(_PLACES.values())).set_axis(list(_PLACES), axis=1)
    counts, pairs = {}, {}
    for name, claim in claims.items():
        figures, higher = wide[claim.measure].unstack(), claim.measure in HIGHER
        sides = {
            side: figures.reindex(columns=keys.split(" or ")).agg(
                "max" if higher else "min", axis=1, skipna=False
            )
            for side, keys in (("theirs", claim.theirs), ("ours", claim.ours))
        }
        both = pd.DataFrame(sides).dropna()
        both = both[[claim.group in groups(cell) for cell in both.index]]
        if not len(both):
            continue
        gain = both["ours"] - both["theirs"]
        won = int((gain > 0 if higher else gain < 0).sum())
        worst = round(float(gain.min()), 3) if claim.measure == "accuracy" else None
        counts[name] = {"won": won, "of": len(both), **both.mean().round(3), "worst": worst}
        pairs[name] = {
            str(cell): {side: round(float(v), 3) for side, v in row.items()}
            for cell, row in both.iterrows()
        }
    return counts, pairs


def _seeds(table: pd.DataFrame) -> dict[str, Any]:
    """How many, by cell: of all methods, and of the paper's networks."""
    counts = table.groupby(["cell", "method"])["seed"].nunique().unstack(fill_value=0)
    counts = counts.reindex(columns=["plain", "L1"], fill_value=0)
    named = counts.set_axis(["methods", "paper"], axis=1)
    return {str(cell): row.to_dict() for cell, row in named.iterrows()}


def _overview(table: pd.DataFrame, split: str) -> dict[str, Any]:
    """Means over cells (of means over seeds) by method and calibration."""
    rows = table[table["split"] == split].assign(key=_keyed(table))
    means = rows.groupby(["key", "cell"], sort=False)[SHOWN].mean()
    return _rows(means.groupby("key", sort=False).mean())


def _costs(table: pd.DataFrame) -> dict[str, float]:
    """Training in all, in trainings of the plain network: means over cells."""
    cost = table[table["split"] == "training"].groupby(["method", "cell"], sort=False)["cost"]
    means = cost.mean().groupby("method", sort=False).mean().round(2)
    return {str(method): float(value) for method, value in means.items()}


def _kinds(table: pd.DataFrame) -> dict[str, Any]:
    """Nodes and graphs apart: in how many cells a choice has the lower NLL and Brier score; and how
    well disagreement (an ensemble's beside it) and confidence (the plain network's and an
    ensemble's beside it) find errors, as AUROC."""
    means = table.assign(key=_keyed(table)).groupby(["split", "key", "cell"])
    means = means[["nll", "brier", "errors"]].mean()
    found: dict[str, Any] = {}
    for kind in ("nodes", "graphs"):
        names = [c for c in table["cell"].unique() if kind in groups(c)]

        def of(split: str, key: str, names: list[str] = names) -> pd.DataFrame:
            return means.loc[split, key].reindex(names)

        keys = ("plain|validation", "plain|copies", "ensemble of 3|copies")
        rivals = [of("ood_test", key) for key in keys] if names else []
        for budget in ("1.2", "1.5", "2.5") if names else ():
            name = f"choose {budget}"
            ours = of("ood_test", f"{name}|copies")
            won = [(ours < rival)[m].sum() for rival in rivals for m in ("nll", "brier")]
            apart = [each["errors"].mean() for each in (ours, rivals[-1])]
            sure = [of("detection", f"{m}|msp")["errors"].mean() for m in (name, *CONTROLS)]
            found.setdefault(kind, {})[budget] = [
                *(f"{n} of {len(names)}" for n in won),
                "{:.2f} ({:.2f})".format(*apart),
                "{:.2f} ({:.2f}, {:.2f})".format(*sure),
            ]
    return found


def _by_cell(table: pd.DataFrame) -> dict[str, Any]:
    """Per cell the main methods on OOD test rows."""
    rows = table[table["split"] == "ood_test"].assign(key=_keyed(table))
    means = rows.groupby(["cell", "key"])[[*SHOWN, "errors"]].mean()
    every = ((str(cell), means.loc[cell]) for cell in means.index.unique("cell"))
    return {cell: _rows(own.loc[[key for key in MAIN if key in own.index]]) for cell, own in every}


def _paper(table: pd.DataFrame) -> dict[str, Any]:
    """Per cell and network of the paper, in all readings, and of controls with the same seeds: a
    few measures at all levels, on OOD test rows."""
    names = [*CONTROLS, *(method + reading for method in ANCHORED for reading in READ)]
    rows = _with_paper(table)
    rows = rows[rows["method"].isin(names) & (rows["split"] == "ood_test")]
    means = rows.groupby(["cell", "method", "calibration"])[FEW].mean().round(3)
    found: dict[str, Any] = {}
    for (cell, method), own in means.groupby(["cell", "method"]):
        by_level = own.droplevel(["cell", "method"])
        figures = {f"{m}|{at}": float(by_level.loc[at, m]) for m in FEW for at in LEVELS}
        found.setdefault(str(cell), {})[str(method)] = figures
    return found


# -- the published networks, trained again at paper scale -----------------------------------------


def _published(table: pd.DataFrame) -> dict[str, Any]:
    """Means by cell of the seeds that have all networks, and what the paper prints."""
    names = [*CONTROLS, "T = 2", *ANCHORED]
    read = [f"{m}{reading}" for m in ANCHORED for reading in READ[1:]]
    rows = table[table["split"] == "ood_test"]
    method = rows["method"].str.removesuffix(LAST)
    rows = rows[method.isin(names) | (method.isin(read) & (rows["calibration"] == "none"))]
    seeds, figures, printed = dict[str, int](), dict[str, Any](), dict[str, Any]()
    for cell, own in rows.groupby("cell"):
        methods = own.groupby("seed")["method"].nunique()
        complete = methods[methods == own["method"].nunique()].index
        if {"plain", "L1"} <= set(own["method"]) and len(complete):  # else nothing to compare yet
            kept = own[own["seed"].isin(complete)]
            seeds[str(cell)] = len(complete)
            figures[str(cell)] = _rows(kept.assign(key=_keyed(kept)).groupby("key")[FEW].mean())
            printed |= {str(cell): found for found in [_printed(str(cell))] if found}
    return {"published_seeds": seeds, "published": figures, "printed": printed}


def _accuracies(table: pd.DataFrame) -> dict[str, list[float]]:
    """Of the plain network on OOD test rows, ours and the paper's, where it prints one."""
    rows = table[(table["split"] == "ood_test") & (table["method"] == "plain")]
    ours = rows.groupby("cell")["accuracy"].mean().round(3)
    printed = {str(cell): _printed(str(cell), ["none"]).get("plain|none") for cell in ours.index}
    return {cell: [float(ours[cell]), of["accuracy"]] for cell, of in printed.items() if of}


def _printed(
    cell: str, levels: Sequence[str] = ("none", *sorted(POST_HOC))
) -> dict[str, dict[str, float]]:
    """ECE in 100 bins and accuracy, of the last epoch, logits averaged and rescaled."""
    dataset, _, shift = cell.partition(" ")[0].rpartition("/")
    where = {"dataset": dataset, "shift": shift, "split": "ood_test"}
    found: dict[str, dict[str, float]] = {}
    for method, variant in (("plain", "vanilla"), ("NFA", "nfa"), ("readout", "readout")):
        for level in levels:
            named = {**where, "variant": variant, "calibrator": level}
            both = {m: lookup(["good_shifts_node", "good_shifts_big"], **named, metric=m)
                    for m in ("ece", "accuracy")}  # fmt: skip
            if None not in both.values():
                found[f"{method}|{level}"] = {m: p.mean for m, p in both.items() if p}
    return found
