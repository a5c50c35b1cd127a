"""From figures to the pages that people read.

    gduq bench comparison --scale small --root results      # and --scale paper
    gduq bench T1 --scale paper               # and others; then out/bench/*-paper.csv go to
    make results                              # results/paper; python -m gduq_reproduction.pages

reads ``results/comparison-*.csv`` and ``results/paper/*.csv`` and writes ``RESULTS.md`` with its
picture, the block in the README, ``docs/replication.md`` and the tables of the paper. Words and
claims stand in ``results/notes.toml``.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from gduq_reproduction.bench import BenchResult, markdown
from gduq_reproduction.cells import SEARCHED
from gduq_reproduction.harness import Store, long
from gduq_reproduction.layouts import LAYOUTS, load, summarised
from gduq_reproduction.scoring import HIGHER, POST_HOC

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["CLAIMS", "ROOT", "Claim", "by_cell", "claimed", "groups", "headline", "pages",
           "tables"]  # fmt: skip


class Claim(NamedTuple):
    """On which cells, a network, what it is held against, and by which measure. Several networks,
    joined by ``or``, stand for the best of them in each cell. In place of a calibration ``best`` is
    the best of the paper's nine (none being one), ``each`` counts every one by itself."""

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
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->"
NAMES = {"nll": "NLL", "brier": "Brier", "ece": "ECE", "ece_debiased": "ECE, debiased",
         "aurc": "AURC", "accuracy": "accuracy", "errors": "AUROC of disagreement for errors",
         "msp_errors": "AUROC of confidence for errors",
         "msp": "AUROC of ID against OOD rows"}  # fmt: skip
SHOWN = list(NAMES)[:6]
README_ROWS = ("plain|none", "T = 2|none", "plain|validation", "plain|copies",
               "ensemble of 3|copies", "anchored head|copies", "choose 1.2|copies",
               "choose 2.5|copies")  # fmt: skip
PLACES = {  # what is read of a cell and key, and on which split
    **{name: (name, "ood_test") for name in [*SHOWN, "errors", "ece100"]},
    **{f"id_{name}": (name, "id_test") for name in [*SHOWN, "ece100"]},
    "msp": ("auroc", "detection"),
    "msp_val": ("auroc_val", "detection"),
    "msp_errors": ("errors", "detection"),
    "gep_error": ("gep_error", "estimation"),
    "cost": ("cost", "training"),
}


# -- figures -------------------------------------------------------------------------------------


def tables() -> list[pd.DataFrame]:
    """The figures of the comparison at small and at paper scale, and of the paper's tables."""
    names = ("comparison-small", "comparison-paper", "paper/paper-paper")
    return [Store(ROOT / f"results/{name}.csv").read() for name in names]


def groups(cell: str) -> list[str]:
    """Those of claims that a cell is in."""
    on_graphs = cell.startswith(("tu/", "motif", "molecules/", "sst2/", "cmnist/", "rotmnist/"))
    found = ["all", "graphs" if on_graphs else "nodes", cell.split(" ")[0]]
    found += ["sizes"] * cell.startswith("tu/")
    shifted = not cell.split(" ")[0].endswith("concept")
    read = any(part in cell for part in ("/size", "/degree/"))  # which novelty reads
    return found + ["shifted"] * shifted + ["read"] * (shifted and read)


def by_cell(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds: a line per cell and key (method and calibration), a column per place."""
    level = table["calibration"].fillna("none").replace(["msp", "threshold"], "none")
    rows = table.assign(key=table["method"] + "|" + level).groupby(["cell", "key", "split"])
    means = rows[list({name for name, _ in PLACES.values()} & {*table})].mean().unstack()
    return means.reindex(columns=list(PLACES.values())).set_axis(list(PLACES), axis=1)


def claimed(means: pd.DataFrame, claims: dict[str, Claim]) -> dict[str, dict[str, Any]]:
    """In how many cells a network is better, and both means, by claim."""
    counts = dict[str, dict[str, Any]]()
    for name, claim in claims.items():
        figures, higher = means[claim.measure].unstack(), claim.measure in HIGHER
        figures = figures[[claim.group in groups(cell) for cell in figures.index]]
        levels = ["none", *POST_HOC] if claim.ours.endswith("|each") else [""]
        both = pd.concat([_sides(figures, claim, level) for level in levels]).dropna()
        gain = both["ours"] - both["theirs"]
        if len(gain):
            worst = round(float(gain.min()), 3) if claim.measure == "accuracy" else None
            won = int((gain > 0 if higher else gain < 0).sum())
            means_of = both.mean().round(3).to_dict()
            counts[name] = {"won": won, "of": len(gain), **means_of, "worst": worst}
    return counts


def _sides(figures: pd.DataFrame, claim: Claim, level: str) -> pd.DataFrame:
    """Both sides of a claim in each cell; of calibrators those without priors where there are."""
    sides, best = dict[str, pd.Series](), "max" if claim.measure in HIGHER else "min"
    for side in ("ours", "theirs"):
        keys = list[str]()
        for key in getattr(claim, side).split(" or "):
            method, _, own = key.partition("|")
            of = {"best": ["none", *POST_HOC], "each": [level]}.get(own, [own])
            free = {name: f"{method}|{name}, published" for name in of}
            keys += [new if new in figures else f"{method}|{name}" for name, new in free.items()]
        sides[side] = figures.reindex(columns=keys).agg(best, axis=1, skipna=False)
    return pd.DataFrame(sides)


# -- RESULTS.md, the README, the tables of the paper ----------------------------------------------


def pages(small: pd.DataFrame, published: pd.DataFrame, paper: pd.DataFrame) -> dict[str, str]:
    """Every text that is made from figures, by name."""
    own, (start, rest) = _own(small), (ROOT / "README.md").read_text(encoding="utf-8").split(BEGIN)
    about = _about(small, own)
    few, every = (_means(own, *what) for what in ((README_ROWS, ["nll", "brier", "accuracy"]),
                                                  (MAIN, [*SHOWN, "id_nll"])))  # fmt: skip
    readme = NOTES["readme"].format(table=few, **about).lstrip()
    filled = {"table": every, "comparisons": _comparisons(own)}
    page = NOTES["page"].format(**about, **filled).strip() + "\n"
    replication = _replication({"": small, "published_": published, "paper_": paper}, about)
    found = {"RESULTS.md": page, "docs/replication.md": replication}
    return {**found, "README.md": start + BEGIN + readme + END + rest.split(END)[1], **_papers()}


def _own(small: pd.DataFrame) -> pd.DataFrame:
    """The comparison without the paper's networks, which are not of all cells and seeds."""
    anchored = ["NFA", "L1", "L2", "readout", "pretrained", "candidate: "]
    return by_cell(small[~small["method"].str.match("|".join(anchored))])


def _about(small: pd.DataFrame, own: pd.DataFrame) -> dict[str, Any]:
    """Numbers of cells and seeds, and accuracies beside those that the paper prints."""
    plain = own.xs("plain|none", level="key")["accuracy"]
    guess = [1 / 3 if cell.startswith("motif") else 1 / 2 for cell in plain.index]
    near = plain[(plain < guess) | (plain - guess < 0.05)]
    entries = pd.DataFrame(load("good_shifts_node")["entries"])
    rows = entries.query("method == 'plain' and calibration == 'none' and measure == 'accuracy'")
    theirs = dict(zip(rows["dataset"] + "/" + rows["shift"] + " gcn", rows["mean"], strict=True))
    pairs = {cell: (ours, theirs[cell]) for cell, ours in plain.items() if cell in theirs}
    texts = (f"{c.partition(' ')[0]} {ours:.2f} ({it:.2f})" for c, (ours, it) in pairs.items())
    return {
        "cells": len(plain),
        **{kind: sum(kind in groups(c) for c in plain.index) for kind in ("nodes", "graphs")},
        "searched": sum(name.startswith(SEARCHED) for name in plain.index),
        "near_chance": sum("graphs" in groups(name) for name in near.index),
        "seeds": _range(_seeds(small[small["method"] == "plain"])),
        "accuracies": ", ".join(texts),
    }


def _seeds(table: pd.DataFrame, kind: str = "all") -> list[int]:
    """How many each cell of a group has."""
    numbers = table.groupby("cell")["seed"].nunique().items()
    return [int(n) for cell, n in numbers if kind in groups(str(cell))]


def _range(numbers: list[int]) -> str:
    """The least and the most, once if they are the same."""
    ends = (min(numbers), max(numbers)) if numbers else (0,)
    return " to ".join(str(n) for n in dict.fromkeys(ends))


def _means(own: pd.DataFrame, keys: Iterable[str], shown: list[str]) -> str:
    """Methods, their cost in trainings of the plain network, and measures; the best of each column
    in bold."""
    means = own.groupby("key").mean()
    kept = [key for key in keys if key in means.index and not means.loc[key, SHOWN].isna().all()]
    rows = []
    for key in kept:
        method = key.partition("|")[0].removesuffix(", tempered")
        rows.append([MAIN[key], f"{means['cost'].fillna(1.0).get(f'{method}|none', 1.0):.2f}×"])
    for place in shown:
        values = means.loc[kept, place].round(3)
        best = (values.max if place in HIGHER else values.min)()
        for row, value in zip(rows, values, strict=True):
            row.append(f"**{value:.3f}**" if value == best else f"{value:.3f}")
    ends = [place.removeprefix("id_") for place in shown]
    names = [f"{'ID' if n != p else 'OOD'} {NAMES[n]}" for n, p in zip(ends, shown, strict=True)]
    return markdown(["method", "training", *names], rows)


def _comparisons(own: pd.DataFrame) -> str:
    """Who is better in how many cells, and both means; of nodes and graphs apart, too."""
    cells = {"shifted": "covariate and size cells", "read": "cells that shift size or degree",
             "nodes": "cells of nodes"}  # fmt: skip
    rows, everywhere = [], {name: claim for name, claim in OURS.items() if claim.group == "all"}
    kinds = [claimed(own, {name: claim._replace(group=kind) for name, claim in everywhere.items()})
             for kind in ("nodes", "graphs")]  # fmt: skip
    for name, count in claimed(own, OURS).items():
        claim = OURS[name]
        better = "higher" if claim.measure in HIGHER else "lower"
        what = f"{better} {NAMES[claim.measure]} than {_side(claim.theirs)}"
        worst = "" if count["worst"] is None else f", at worst {100 * count['worst']:+.1f} points"
        (won, both), *apart = [
            [f"{of['won']} of {of['of']}", f"{of['ours']:.3f} : {of['theirs']:.3f}"] if of else []
            for of in (count, *(kind.get(name) for kind in kinds))
        ]
        row = [_side(claim.ours), what, f"{won} {cells.get(claim.group, 'cells')}"]
        rows.append([*row, f"{both}{worst}", *map(", ".join, apart)])
    return markdown(["", "has a …", "in", "means", "nodes", "graphs"], rows)


def _side(keys: str) -> str:
    if " or " in keys:
        return "the best of `choose(1.2)`'s energy, confidence and disagreement"
    names = {"novelty": "`p.novelty`", "gebm": "GEBM", "gnnsafe": "GNNSafe"}
    return names.get(keys.partition("|")[0]) or MAIN.get(keys) or MAIN[f"{keys[:-4]}copies"]


def _papers(root: Path = ROOT / "results/paper") -> dict[str, str]:
    """The tables of the paper of which there are figures, as Markdown and LaTeX, by file."""
    found = [Store(path).read() for path in sorted(root.glob("*.csv"))]
    figures, made = summarised(long(pd.concat(found, ignore_index=True))), dict[str, str]()
    for number in LAYOUTS:
        result = BenchResult(number, "paper", figures, {})
        parts = [text for block in result.blocks().values() for text, *_ in block.cells.values()]
        if {*parts} - {"–"}:
            made[f"results/paper/{number}.md"] = result.to_markdown()
            made[f"results/paper/{number}.tex"] = result.to_latex()
    return made


# -- docs/replication.md ---------------------------------------------------------------------------


def _replication(found: dict[str, pd.DataFrame], about: dict[str, Any]) -> str:
    """The paper's claims, each with what was found."""
    filled = dict(about)
    for prefix, table in found.items():
        trained = table["method"] == ("plain, last epoch" if prefix == "paper_" else "L1")
        done = table.loc[trained, ["cell", "seed"]].drop_duplicates()
        rows = table.merge(done, on=["cell", "seed"])  # all methods on the same seeds
        counts = claimed(by_cell(rows), CLAIMS)
        filled |= {f"{prefix}{name}": _count(counts.get(name)) for name in CLAIMS}
        added = counts.get("pretrained_cost")
        filled[f"{prefix}added"] = "not measured" if added is None else f"{added['ours'] - 1:.2f}"
        for kind in ("all", "nodes", "graphs", "sizes"):
            seeds = _seeds(rows, kind)
            filled[f"{prefix}{kind}"] = len(seeds)
            filled[f"{prefix}seeds_{kind}"] = f"{_range(seeds)} seed{'s' * (set(seeds) != {1})}"
    return str(NOTES["replication"].format(**filled).strip() + "\n")


def _count(count: dict[str, Any] | None) -> str:
    """In how many cells a network of the paper is better, and both means."""
    if count is None:
        return "not measured yet"
    means = f"{count['theirs']:.3f} → {count['ours']:.3f}"
    worst = "" if count["worst"] is None else f"; at worst {100 * count['worst']:+.1f} points"
    return f"{count['won']} of {count['of']} cells ({means}{worst})"


# -- the picture ---------------------------------------------------------------------------------


def headline(small: pd.DataFrame) -> str:
    """The loss of every cell by itself, relative to a temperature from copies: an SVG that is the
    same every time."""
    style: Any = {"font.size": 8, "axes.axisbelow": True, "legend.frameon": False,
                  "svg.fonttype": "none", "svg.hashsalt": "gduq"}  # fmt: skip
    file, losses = io.StringIO(), _own(small)["nll"].unstack().round(3)
    with matplotlib.rc_context(style):
        options: Any = {"metadata": {"Date": None}, "facecolor": "white"}
        _drawn(losses).savefig(file, format="svg", **options)
    return "\n".join(map(str.rstrip, file.getvalue().splitlines())) + "\n"


def _drawn(losses: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(7.2, 1.0 + 0.14 * len(losses)), layout="constrained")
    axes, names = figure.subplots(), {"ensemble of 3|copies": "ensemble of three",
                                      "choose 1.2|copies": "gduq.choose(budget=1.2)"}  # fmt: skip
    ratios = losses[list(names)].div(losses["plain|copies"], axis=0).rename(columns=names)
    ratios = ratios.sort_values("gduq.choose(budget=1.2)")
    axes.axvline(1.0, color="grey", lw=1)
    for name, colour in zip(ratios, ("grey", "#009e73"), strict=True):
        axes.plot(ratios[name], range(len(ratios)), "o", color=colour, ms=4, label=name)
    axes.set_yticks(range(len(ratios)), ratios.index)
    axes.set_xlabel("loss (NLL) under shift, relative to a temperature from copies")
    axes.legend()
    return figure


def main() -> None:
    """Make all pages from ``results/``."""
    found = tables()
    for name, text in {**pages(*found), "results/headline.svg": headline(found[0])}.items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
