"""From the figures of the comparison to the pages that people read.

    gduq bench comparison --scale small --root results
    gduq bench comparison --scale paper --root results
    make results                              # python -m gduq_reproduction.pages

reads ``results/comparison-*.csv`` and writes ``results/summary.json``, ``RESULTS.md``, the block in
the README and ``docs/replication.md``, with their pictures. Words stand in ``results/notes.toml``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd

from gduq_reproduction.bench import markdown
from gduq_reproduction.harness import Store
from gduq_reproduction.methods import LAST
from gduq_reproduction.pictures import pictures
from gduq_reproduction.scoring import HIGHER, POST_HOC
from gduq_reproduction.summary import CLAIMS, MAIN, OURS, SHOWN, groups, packed, summary

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["pages", "tables"]

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->"
NAMES = {"nll": "NLL", "brier": "Brier", "ece": "ECE", "ece_debiased": "ECE, debiased",
         "aurc": "AURC", "accuracy": "accuracy", "errors": "AUROC of disagreement for errors",
         "msp": "AUROC of ID against OOD rows"}  # fmt: skip
README_ROWS = ("plain|none", "T = 2|none", "plain|validation", "plain|copies",
               "ensemble of 3|copies", "anchored head|copies", "choose 1.2|copies",
               "choose 2.5|copies")  # fmt: skip
Found = dict[str, Any]  # the summary


def tables(root: Path = ROOT / "results") -> list[pd.DataFrame]:
    """The figures of small and of paper scale."""
    return [Store(root / f"comparison-{scale}.csv").read() for scale in ("small", "paper")]


def pages(found: Found) -> dict[str, str]:
    """Every text that is made from the figures, by name."""
    notes = tomllib.loads((ROOT / "results/notes.toml").read_text(encoding="utf-8"))
    start, rest = (ROOT / "README.md").read_text(encoding="utf-8").split(BEGIN)
    return {
        "results/summary.json": packed(found),
        "RESULTS.md": _results(found, notes["page"]),
        "README.md": start + BEGIN + _readme(found) + END + rest.split(END)[1],
        "docs/replication.md": _replication(found, notes["replication"]),
    }


# -- RESULTS.md and the README ---------------------------------------------------------------------


def _results(found: Found, text: str) -> str:
    about = found["about"]
    filled = {
        **about,
        "graphs": about["cells"] - about["nodes"],
        "seeds": _range([of["methods"] for of in found["seeds"].values()]),
        "table": _means(found),
        "comparisons": _comparisons(found),
        "kinds": _kinds(found),
        "accuracies": ", ".join(
            f"{cell.partition(' ')[0]} {ours:.2f} ({printed:.2f})"
            for cell, (ours, printed) in found["accuracies"].items()
        ),
    }
    return text.format(**filled).strip() + "\n"


def _range(numbers: list[int]) -> str:
    """The least and the most, once if they are the same."""
    ends = (min(numbers), max(numbers)) if numbers else (0,)
    return " to ".join(str(n) for n in dict.fromkeys(ends))


def _cost(found: Found, key: str) -> float:
    """Training of a method, in trainings of the plain network."""
    method = key.partition("|")[0].removesuffix(", tempered")
    return float(found["costs"].get(method, 1.0))


def _means(found: Found) -> str:
    """The main methods; the best of each column in bold."""
    shown = [("ood_test", "OOD", name) for name in SHOWN] + [("id_test", "ID", "nll")]
    kept = [key for key in MAIN if key in found["means"]["ood_test"]]
    rows = [[MAIN[key], f"{_cost(found, key):.2f}×"] for key in kept]
    for split, _, name in shown:
        values = [found["means"][split][key][name] for key in kept]
        best = (max if name in HIGHER else min)(values)
        for row, value in zip(rows, values, strict=True):
            row.append(f"**{value:.3f}**" if value == best else f"{value:.3f}")
    head = ["method", "training", *(f"{where} {NAMES[name]}" for _, where, name in shown)]
    return markdown(head, rows)


def _comparisons(found: Found) -> str:
    """Who is better in how many cells, and both means."""
    rows = []
    for name, count in found["comparisons"].items():
        claim = OURS[name]
        better = "higher" if claim.measure in HIGHER else "lower"
        cells = {"shifted": "covariate and size cells", "read": "cells that shift size or degree",
                 "nodes": "cells of nodes"}.get(claim.group, "cells")  # fmt: skip
        sides = [_side(claim.ours), f"{better} {NAMES[claim.measure]} than {_side(claim.theirs)}"]
        means = f"{count['ours']:.3f} : {count['theirs']:.3f}"
        worst = "" if count["worst"] is None else f", at worst {100 * count['worst']:+.1f} points"
        rows.append([*sides, f"{count['won']} of {count['of']} {cells}", means + worst])
    return markdown(["", "has a …", "in", "means"], rows)


def _side(keys: str) -> str:
    if " or " in keys:
        return "the best of `choose(1.2)`'s energy, confidence and disagreement"
    method, level = keys.split("|")
    names = {"novelty": "`p.novelty`", "gebm": "GEBM", "gnnsafe": "GNNSafe"}
    return names.get(method) or MAIN[f"{method}|{level}"]


def _kinds(found: Found) -> str:
    """Nodes and graphs apart."""
    rows = [
        [kind, f"choose({budget})", *won]
        for kind, by_budget in found["kinds"].items()
        for budget, won in by_budget.items()
    ]
    rivals = ("temperature scaling", "shifted copies", "ensemble of three")
    lower = (f"{r}: {m}" for r in rivals for m in ("NLL", "Brier"))
    finds = ("disagreement (ensemble's)", "confidence (plain network's, ensemble's)")
    head = ["cells", "lower than …", *lower, *(f"AUROC for errors: {score}" for score in finds)]
    return markdown(head, rows)


def _readme(found: Found) -> str:
    """A few rows and columns, and where to see all of it."""
    means = found["means"]["ood_test"]
    rows = [
        [MAIN[key], f"{_cost(found, key):.1f}×",
         *(f"{means[key][name]:.3f}" for name in ("nll", "brier", "accuracy"))]
        for key in README_ROWS
    ]  # fmt: skip
    return (
        markdown(["under shift, means", "training", "NLL", "Brier score", "accuracy"], rows)
        + f"\nMeans over {found['about']['cells']} cells (a dataset, a shift and a network). Lower "
        "is better, except for accuracy. All methods share the trained networks. All but the first "
        "three rows are calibrated on validation rows and shifted copies of them. "
        "What holds, what does not, and how to make it again: [RESULTS.md](RESULTS.md).\n"
    )


# -- docs/replication.md ---------------------------------------------------------------------------


def _replication(found: Found, text: str) -> str:
    """The paper's claims, each with what was found."""
    names = [cell for cell, of in found["seeds"].items() if of["paper"]]
    kinds = ("all", "nodes", "graphs", "sizes")
    filled: Found = {kind: sum(kind in groups(c) for c in names) for kind in kinds}
    filled["seeds"] = _range([found["seeds"][cell]["paper"] for cell in names])
    for prefix in ("", "published_"):
        counts = {name: found[f"{prefix}claims"].get(name) for name in CLAIMS}
        filled |= {f"{prefix}{name}": _count(count) for name, count in counts.items()}
        added = counts["pretrained_cost"]
        filled[f"{prefix}added"] = "not measured" if added is None else f"{added['ours'] - 1:.2f}"
    for kind in ("nodes", "sizes"):
        seeds = [count for c, count in found["published_seeds"].items() if kind in groups(c)]
        filled[f"published_{kind}"] = _range(seeds) + " seed" + "s" * (set(seeds) != {1})
    filled |= {"picked": _by_cell(found, ""), "last": _by_cell(found, LAST)}
    filled |= {"calibrated": _calibrated(found), "near_chance": _near_chance(found)}
    return text.format(**filled).strip() + "\n"


def _by_cell(found: Found, end: str) -> str:
    """The calibration errors of NFA against the plain network, as published, cell by cell."""
    both = {
        cell.partition(" ")[0]: [own[f"{m}{end}|none"]["ece"] for m in ("plain", "NFA")]
        for cell, own in found["published"].items()
        if f"NFA{end}|none" in own
    }
    won = sum(ours < theirs for theirs, ours in both.values())
    means = ", ".join(f"{cell} {theirs:.3f} → {ours:.3f}" for cell, (theirs, ours) in both.items())
    return f"{won} of {len(both)} cells ({means})"


def _calibrated(found: Found) -> str:
    """By cell under how many of the paper's calibrators, none being one, NFA has the lower ECE."""
    texts = []
    for cell, own in found["published"].items():
        levels = [level for level in ("none", *POST_HOC) if f"NFA|{level}" in own]
        won = sum(own[f"NFA|{level}"]["ece"] < own[f"plain|{level}"]["ece"] for level in levels)
        texts += [f"{cell.partition(' ')[0]} {won} of {len(levels)}"] if levels else []
    return ", ".join(texts)


def _near_chance(found: Found) -> str:
    """Of how many cells of graphs the plain network is not five points better than a guess."""
    graphs = {c: of["plain"] for c, of in found["paper"].items() if "graphs" in groups(c)}
    guess = {c: 1 / 3 if c.startswith("motif") else 1 / 2 for c in graphs}
    near = sum(of["accuracy|none"] < guess[c] + 0.05 for c, of in graphs.items())
    return f"{near} of {len(graphs)}"


def _count(count: Found | None) -> str:
    """In how many cells a network of the paper is better, and both means."""
    if count is None:
        return "not measured"
    means = f"{count['theirs']:.3f} → {count['ours']:.3f}"
    worst = count.get("worst")
    least = "" if worst is None else f"; at worst {100 * worst:+.1f} points"
    return f"{count['won']} of {count['of']} cells ({means}{least})"


def main() -> None:
    """Make all pages from ``results/``."""
    small, paper = tables()
    if not len(small):
        sys.exit("No figures in results/: gduq bench comparison --scale small --root results")
    found = summary(small, paper)
    for name, text in {**pages(found), **pictures(found)}.items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
