"""From the figures of the comparison to the pages that people read.

    gduq bench comparison --scale small --root results
    gduq bench comparison --scale paper --root results
    make results                              # python -m gduq_reproduction.pages

reads ``results/comparison-*.csv`` and writes ``results/summary.json``, ``RESULTS.md``, the block in
the README and ``docs/replication.md``, with a picture. Words stand in ``results/notes.toml``.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from gduq_reproduction.bench import markdown
from gduq_reproduction.harness import Store
from gduq_reproduction.methods import LAST
from gduq_reproduction.scoring import HIGHER, POST_HOC
from gduq_reproduction.summary import (
    CLAIMS,
    MAIN,
    NOTES,
    OURS,
    ROOT,
    SHOWN,
    groups,
    packed,
    summary,  # fmt: skip
)

__all__ = ["headline", "pages", "tables"]

BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->"
NAMES = {"nll": "NLL", "brier": "Brier", "ece": "ECE", "ece_debiased": "ECE, debiased",
         "aurc": "AURC", "accuracy": "accuracy", "errors": "AUROC of disagreement for errors",
         "msp_errors": "AUROC of confidence for errors",
         "msp": "AUROC of ID against OOD rows"}  # fmt: skip
README_ROWS = ("plain|none", "T = 2|none", "plain|validation", "plain|copies",
               "ensemble of 3|copies", "anchored head|copies", "choose 1.2|copies",
               "choose 2.5|copies")  # fmt: skip
OOD = [("ood_test", "OOD", name) for name in SHOWN]
Found = dict[str, Any]  # the summary


def tables(root: Path = ROOT / "results") -> list[pd.DataFrame]:
    """The figures of small and of paper scale."""
    return [Store(root / f"comparison-{scale}.csv").read() for scale in ("small", "paper")]


def pages(found: Found) -> dict[str, str]:
    """Every text that is made from the figures, by name."""
    start, rest = (ROOT / "README.md").read_text(encoding="utf-8").split(BEGIN)
    return {
        "results/summary.json": packed(found),
        "RESULTS.md": _results(found, NOTES["page"]),
        "README.md": start + BEGIN + _readme(found, NOTES["readme"]) + END + rest.split(END)[1],
        "docs/replication.md": _replication(found, NOTES["replication"]),
    }


# -- RESULTS.md and the README ---------------------------------------------------------------------


def _results(found: Found, text: str) -> str:
    about = found["about"]
    filled = {
        **about,
        "graphs": about["cells"] - about["nodes"],
        "seeds": _range([of["methods"] for of in found["seeds"].values()]),
        "table": _means(found, MAIN, [*OOD, ("id_test", "ID", "nll")]),
        "comparisons": _comparisons(found),
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


def _means(found: Found, keys: Iterable[str], shown: list[tuple[str, str, str]]) -> str:
    """Methods, and measures of splits; the best of each column in bold."""
    kept = [key for key in keys if key in found["means"]["ood_test"]]
    rows = [[MAIN[key], f"{_cost(found, key):.2f}×"] for key in kept]
    for split, _, name in shown:
        values = [found["means"][split][key][name] for key in kept]
        best = (max if name in HIGHER else min)(values)
        for row, value in zip(rows, values, strict=True):
            row.append(f"**{value:.3f}**" if value == best else f"{value:.3f}")
    head = ["method", "training", *(f"{where} {NAMES[name]}" for _, where, name in shown)]
    return markdown(head, rows)


def _comparisons(found: Found) -> str:
    """Who is better in how many cells, and both means; of nodes and graphs apart, too."""
    cells = {"shifted": "covariate and size cells", "read": "cells that shift size or degree",
             "nodes": "cells of nodes"}  # fmt: skip
    rows = []
    for name, count in found["comparisons"].items():
        claim = OURS[name]
        better = "higher" if claim.measure in HIGHER else "lower"
        what = f"{better} {NAMES[claim.measure]} than {_side(claim.theirs)}"
        worst = "" if count["worst"] is None else f", at worst {100 * count['worst']:+.1f} points"
        row = [_side(claim.ours), what, f"{_won(count)} {cells.get(claim.group, 'cells')}"]
        apart = (found["kinds"][kind].get(name) for kind in ("nodes", "graphs"))
        of_kinds = (f"{_won(own)}, {_means_of(own)}" if own else "" for own in apart)
        rows.append([*row, f"{_means_of(count)}{worst}", *of_kinds])
    return markdown(["", "has a …", "in", "means", "nodes", "graphs"], rows)


def _won(count: Found) -> str:
    return f"{count['won']} of {count['of']}"


def _means_of(count: Found) -> str:
    return f"{count['ours']:.3f} : {count['theirs']:.3f}"


def _side(keys: str) -> str:
    if " or " in keys:
        return "the best of `choose(1.2)`'s energy, confidence and disagreement"
    names = {"novelty": "`p.novelty`", "gebm": "GEBM", "gnnsafe": "GNNSafe"}
    return names.get(keys.partition("|")[0]) or MAIN.get(keys) or MAIN[f"{keys[:-4]}copies"]


def _readme(found: Found, text: str) -> str:
    """A few rows and columns, and where to see all of it."""
    shown = [column for column in OOD if column[2] in ("nll", "brier", "accuracy")]
    return text.format(table=_means(found, README_ROWS, shown), **found["about"]).lstrip()


# -- docs/replication.md ---------------------------------------------------------------------------


def _replication(found: Found, text: str) -> str:
    """The paper's claims, each with what was found."""
    names = [cell for cell, of in found["seeds"].items() if of["paper"]]
    filled: Found = {
        kind: sum(kind in groups(cell) for cell in names)
        for kind in ("all", "nodes", "graphs", "sizes")
    }
    filled["seeds"] = _range([found["seeds"][cell]["paper"] for cell in names])
    filled["near_chance"] = f"{found['about']['near_chance']} of {filled['graphs']}"
    for prefix in ("", "published_"):
        counts = {name: found[f"{prefix}claims"].get(name) for name in CLAIMS}
        filled |= {f"{prefix}{name}": _count(count) for name, count in counts.items()}
        added = counts["pretrained_cost"]
        filled[f"{prefix}added"] = "not measured" if added is None else f"{added['ours'] - 1:.2f}"
    for kind in ("nodes", "sizes"):
        seeds = [count for c, count in found["published_seeds"].items() if kind in groups(c)]
        filled[f"published_{kind}"] = _range(seeds) + " seed" + "s" * (set(seeds) != {1})
    filled |= {"picked": _by_cell(found, ""), "last": _by_cell(found, LAST)}
    filled["calibrated"] = _calibrated(found)
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


def _count(count: Found | None) -> str:
    """In how many cells a network of the paper is better, and both means."""
    if count is None:
        return "not measured"
    means = f"{count['theirs']:.3f} → {count['ours']:.3f}"
    worst = "" if count["worst"] is None else f"; at worst {100 * count['worst']:+.1f} points"
    return f"{_won(count)} cells ({means}{worst})"


# -- the picture ---------------------------------------------------------------------------------


def headline(found: Found) -> str:
    """The loss of every cell by itself, relative to a temperature from copies: an SVG that is the
    same every time."""
    style: Any = {"font.size": 8, "axes.axisbelow": True, "legend.frameon": False,
                  "svg.fonttype": "none", "svg.hashsalt": "gduq"}  # fmt: skip
    file = io.StringIO()
    with matplotlib.rc_context(style):
        options: Any = {"metadata": {"Date": None}, "facecolor": "white"}
        _drawn(found["cells"]).savefig(file, format="svg", **options)
    return "\n".join(map(str.rstrip, file.getvalue().splitlines())) + "\n"


def _drawn(cells: Found) -> Figure:
    figure = Figure(figsize=(7.2, 1.0 + 0.14 * len(cells)), layout="constrained")
    axes = figure.subplots()
    ratios = pd.DataFrame(
        {
            name: {c: of[key]["nll"] / of["plain|copies"]["nll"] for c, of in cells.items()}
            for key, name in (("ensemble of 3|copies", "ensemble of three"),
                              ("choose 1.2|copies", "gduq.choose(budget=1.2)"))
        }
    ).sort_values("gduq.choose(budget=1.2)")  # fmt: skip
    axes.axvline(1.0, color="grey", lw=1)
    for name, colour in zip(ratios, ("grey", "#009e73"), strict=True):
        axes.plot(ratios[name], range(len(ratios)), "o", color=colour, ms=4, label=name)
    axes.set_yticks(range(len(ratios)), ratios.index)
    axes.set_xlabel("loss (NLL) under shift, relative to a temperature from copies")
    axes.legend()
    return figure


def main() -> None:
    """Make all pages from ``results/``."""
    found = summary(*tables())
    for name, text in {**pages(found), "results/headline.svg": headline(found)}.items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
