"""From the figures of `gduq bench comparison` to the pages that people read.

    gduq bench comparison --scale small --root results
    gduq bench comparison --scale paper --root results
    python benchmarks/results.py

reads ``results/comparison-*.csv`` and writes ``results/summary.json``, which holds all that a
page shows, and from it ``RESULTS.md``, ``results/cells.md``, the picture, the block in the README
and the pictures of ``docs/replication.md``. Words about bars stand in ``results/notes.toml``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from gduq.disk import write_json, write_text
from gduq.paper.comparison.bars import bars, cell_means
from gduq.paper.comparison.cells import cells
from gduq.paper.comparison.comparison_result import SHOWN, overview
from gduq.paper.comparison.comparison_table import read, table_path
from gduq.paper.comparison.scoring import CALIBRATORS
from gduq.paper.printed import lookup
from results_pictures import headline, replication_pictures

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->"
MAIN = {  # method and level: what people call it
    ("plain", "none"): "the network as it is",
    ("T = 2", "none"): "its logits halved (T = 2)",
    ("plain", "validation"): "temperature scaling",
    ("plain", "copies"): "temperature from shifted copies too",
    ("density", "copies"): "density-aware calibration",
    ("mc dropout", "copies"): "MC dropout",
    ("laplace", "copies"): "last-layer Laplace",
    ("head ensemble", "copies"): "ten heads",
    ("head ensemble, masked", "copies"): "ten heads, masked, no anchors",
    ("anchored head", "copies"): "gduq.anchor(net)",
    ("choose 1.2", "copies"): "gduq.choose(budget=1.2)",
    ("choose 1.5", "copies"): "gduq.choose(budget=1.5)",
    ("choose 2.5", "copies"): "gduq.choose(budget=2.5)",
    ("choose 1.2, tempered", "copies"): "gduq.choose(budget=1.2), one more temperature",
    ("choose 2.5, tempered", "copies"): "gduq.choose(budget=2.5), one more temperature",
    ("ensemble of 3", "copies"): "ensemble of three",
}
README_ROWS = (
    ("plain", "none"),
    ("plain", "validation"),
    ("plain", "copies"),
    ("ensemble of 3", "copies"),
    ("choose 1.2", "copies"),
    ("choose 2.5", "copies"),
)
_ANCHORED = ("NFA", "L1", "L2", "readout", "pretrained")
_PUBLISHED = ("plain", "T = 2", "ensemble of 3", *_ANCHORED)
_PUBLISHED += tuple(f"{m}, last epoch" for m in _PUBLISHED)
_PLAIN, _SCALED, _COPIES = "plain|none", "plain|validation", "plain|copies"
COMPARED = {  # of the paper's claims: cells, its network, what it is held against, measure
    "nfa_ece": ("nodes", "NFA|none", _PLAIN, "ece"),
    "nfa_accuracy": ("nodes", "NFA|none", _PLAIN, "accuracy"),
    "nfa_nll": ("nodes", "NFA|none", _PLAIN, "nll"),
    "nfa_ts": ("nodes", "NFA|validation", _SCALED, "ece"),
    "nfa_copies": ("nodes", "NFA|copies", _COPIES, "nll"),
    "l1_nodes": ("nodes", "L1|copies", _COPIES, "nll"),
    "l2_nodes": ("nodes", "L2|copies", _COPIES, "nll"),
    "l1_ece": ("sizes", "L1|none", _PLAIN, "ece"),
    "l2_ece": ("sizes", "L2|none", _PLAIN, "ece"),
    "readout_sizes": ("sizes", "readout|none", _PLAIN, "ece"),
    "readout_sizes_accuracy": ("sizes", "readout|none", _PLAIN, "accuracy"),
    "readout_ece": ("graphs", "readout|none", _PLAIN, "ece"),
    "readout_accuracy": ("graphs", "readout|none", _PLAIN, "accuracy"),
    "readout_ts": ("graphs", "readout|validation", _SCALED, "ece"),
    "readout_copies": ("graphs", "readout|copies", _COPIES, "nll"),
    "pretrained_ece": ("graphs", "pretrained|none", "readout|none", "ece"),
    "pretrained_nll": ("graphs", "pretrained|copies", "readout|copies", "nll"),
    "nfa_ensemble": ("nodes", "NFA|copies", "ensemble of 3|copies", "nll"),
    "readout_ensemble": ("graphs", "readout|copies", "ensemble of 3|copies", "nll"),
    "mixture_nodes": ("nodes", "NFA|none", "NFA, mean logits|none", "nll"),
    "mixture_graphs": ("graphs", "readout|none", "readout, mean logits|none", "nll"),
    "rule_nodes": ("nodes", "NFA, paper rule|none", "NFA|none", "ece"),
    "rule_graphs": ("graphs", "readout, paper rule|none", "readout|none", "ece"),
    "released_t2": ("all", "pretrained, released rule|none", "T = 2|none", "ece"),
    "msp_nodes": ("nodes", "NFA|none", _PLAIN, "msp"),
    "msp_graphs": ("graphs", "readout|none", _PLAIN, "msp"),
    "epistemic_nodes": ("nodes", "NFA|none", "ensemble of 3|copies", "errors"),
}
NAMES = {
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "ece_debiased": "ECE, debiased",
    "aurc": "AURC",
    "accuracy": "accuracy",
    "cost": "training",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT / "results", help="Where the table is.")
    options = parser.parse_args()
    table = read(table_path(options.root, "small"))
    if not len(table):
        sys.exit(
            f"No figures in {options.root}: gduq bench comparison --scale small --root results"
        )
    published = read(table_path(options.root, "paper"))
    write_json(ROOT / "results/summary.json", summary(table, published))
    for name, text in pages(json.loads((ROOT / "results/summary.json").read_text())).items():
        write_text(ROOT / name, text)
    print(*(f"{bar.what}: {bar.got} ({bar.wanted}) {bar.met}" for bar in bars(table)), sep="\n")


# -- what pages show -------------------------------------------------------------------------------


def summary(table: pd.DataFrame, published: pd.DataFrame) -> dict[str, Any]:
    """All figures that a page shows; ``published`` are those of paper scale."""
    seeds = table.groupby("cell")["seed"].nunique()
    known = {cell.name: cell for cell in cells("small")}
    paper = table[table["part"] == "paper"].groupby("cell")["seed"].nunique()
    return {
        "about": {
            "cells": len(seeds),
            "seeds": [int(seeds.min()), int(seeds.max())],
            "nodes": sum(known[name].on_nodes for name in seeds.index),
            "searched": sum(known[name].search for name in seeds.index),
            "paper_seeds": [int(paper.min()), int(paper.max())],
        },
        "bars": [asdict(bar) for bar in bars(table)],
        "means": {split: _means(table, split) for split in ("ood_test", "id_test")},
        "cells": _by_cell(table),
        "paper": _paper(table),
        "detection": _detection(table),
        "published": _published(published),
    }


def _key(method: str, level: str) -> str:
    return f"{method}|{level}"


def _means(table: pd.DataFrame, split: str) -> dict[str, dict[str, float]]:
    """Means over the cells that all methods have; with the cost of training."""
    own = table[table["part"] == "methods"]
    found = overview(own, split)
    cost = own[own["split"] == "training"].groupby(["method", "cell"])["cost"].mean()
    means = {_key(*key): _rounded(row.to_dict()) for key, row in found.iterrows()}
    by_method = cost.groupby("method").mean()
    for key, numbers in means.items():
        method = key.partition("|")[0].removesuffix(", tempered")
        if method in by_method:
            numbers["cost"] = round(float(by_method[method]), 3)
    return means


def _by_cell(table: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """Per cell the main methods on OOD test rows."""
    means = cell_means(table).reset_index()
    means = means[means["split"] == "ood_test"]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in means.to_dict("records"):
        if (row["method"], row["level"]) in MAIN:
            numbers = {name: row[name] for name in (*SHOWN, "errors")}
            key = _key(row["method"], row["level"])
            found.setdefault(row["cell"], {})[key] = _rounded(numbers)
    return found


def _paper(table: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """Per cell what the paper trains from scratch, in all readings, and what it is held against, on
    OOD test rows of the seeds that both have."""
    done = table[table["part"] == "paper"][["cell", "seed"]].drop_duplicates()
    own = table.merge(done, on=["cell", "seed"])
    main = {_key(*key) for key in MAIN}
    rows = own[own["split"] == "ood_test"]
    kept = (rows["part"] == "paper") | (rows["method"] + "|" + rows["level"]).isin(main)
    means = rows[kept].groupby(["cell", "method", "level"])[[*SHOWN, "errors"]].mean()
    msp, found = _msp(own), dict[str, dict[str, dict[str, float]]]()
    for (cell, method, level), row in means.iterrows():
        numbers = row.to_dict() | msp.get((cell, method), {})
        found.setdefault(cell, {})[_key(method, level)] = _rounded(numbers)
    return found


def _msp(table: pd.DataFrame) -> dict[tuple[str, str], dict[str, float]]:
    """AUROC of ID against OOD by the largest probability, per cell and method."""
    rows = table[(table["split"] == "detection") & (table["level"] == "msp")]
    means = rows.groupby(["cell", "method"])["auroc"].mean()
    return {key: {"msp": value} for key, value in means.items()}


def _detection(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Per cell the AUROC of ID against OOD of the scores of `choose(1.2)` and of energies."""
    rows = table[table["split"] == "detection"]
    rows = rows[rows["method"].isin(("choose 1.2", "gnnsafe", "gebm", "gebm, with edges"))]
    names = rows["level"].where(rows["method"] == "choose 1.2", rows["method"])
    means = rows.assign(score=names).groupby(["cell", "score"])["auroc"].mean().unstack()
    return {cell: _rounded(row.dropna().to_dict()) for cell, row in means.iterrows()}


def _published(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Per cell of paper scale: seeds, and means of what its tables show on OOD test rows."""
    rows = table[(table["split"] == "ood_test") & table["method"].isin(_PUBLISHED)]
    found: dict[str, dict[str, Any]] = {}
    for cell, part in rows.groupby("cell", sort=False):
        whole = part.groupby("seed")["part"].nunique()
        seeds = whole[whole == whole.max()].index  # of all parts that the cell has
        if part["part"].nunique() < 2:
            continue
        means = part[part["seed"].isin(seeds)].groupby(["method", "level"])[
            ["ece", "accuracy", "nll"]
        ]
        numbers = {_key(*key): _rounded(row.to_dict()) for key, row in means.mean().iterrows()}
        found[str(cell)] = {"seeds": len(seeds), "figures": numbers}
    return found


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {name: round(float(value), 4) for name, value in numbers.items()}


# -- pages -----------------------------------------------------------------------------------------


def pages(found: dict[str, Any]) -> dict[str, str]:
    """Every file that is made from the summary, by name."""
    notes = tomllib.loads((ROOT / "results/notes.toml").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    start, rest = readme.split(BEGIN)
    return {
        "RESULTS.md": results_page(found, notes),
        "docs/replication.md": replication_page(found, notes),
        "results/cells.md": cells_page(found),
        "results/headline.svg": headline(found, README_ROWS, MAIN),
        "README.md": start + BEGIN + readme_block(found) + END + rest.split(END)[1],
        **replication_pictures(found),
    }


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def table_of_means(found: dict[str, Any]) -> str:
    """The main methods; the best of each column in bold."""
    ood, home = found["means"]["ood_test"], found["means"]["id_test"]
    kept = [key for key in MAIN if _key(*key) in ood]
    columns = {
        f"OOD {NAMES[name]}": {key: ood[_key(*key)][name] for key in kept} for name in SHOWN
    } | {f"ID {NAMES[name]}": {key: home[_key(*key)][name] for key in kept} for name in ("nll",)}
    best = {
        name: (max if "accuracy" in name else min)(values.values())
        for name, values in columns.items()
    }
    rows = []
    for key in kept:
        shown = [
            f"**{v[key]:.3f}**" if f"{v[key]:.3f}" == f"{best[name]:.3f}" else f"{v[key]:.3f}"
            for name, v in columns.items()
        ]
        rows.append([MAIN[key], f"{ood[_key(*key)].get('cost', 1.0):.2f}×", *shown])
    return markdown(["method", "training", *columns], rows)


def table_of_bars(found: dict[str, Any]) -> str:
    said = {True: "yes", False: "**no**", None: "open"}
    rows = [[bar["what"], bar["wanted"], bar["got"], said[bar["met"]]] for bar in found["bars"]]
    return markdown(["claim", "bar", "found", "holds"], rows)


def table_of_kinds(found: dict[str, Any]) -> str:
    """Nodes and graphs apart: in how many cells NLL and Brier score are lower."""
    known = {cell.name: cell for cell in cells("small")}
    rows = []
    for kind in ("nodes", "graphs"):
        of = [v for c, v in found["cells"].items() if known[c].on_nodes == (kind == "nodes")]
        for budget in ("1.2", "1.5", "2.5"):
            shown = [
                f"{sum(v[f'choose {budget}|copies'][m] < v[rival][m] for v in of)} of {len(of)}"
                for rival in ("plain|validation", "plain|copies", "ensemble of 3|copies")
                for m in ("nll", "brier")
            ]
            rows.append([kind, f"choose({budget})", *shown])
    rivals = ("temperature scaling", "shifted copies", "ensemble of three")
    head = ["cells", "lower than …", *(f"{r}: {m}" for r in rivals for m in ("NLL", "Brier"))]
    return markdown(head, rows)


def results_page(found: dict[str, Any], notes: dict[str, Any]) -> str:
    about, low_high = found["about"], found["about"]["seeds"]
    seeds = str(low_high[0]) if low_high[0] == low_high[1] else "{} to {}".format(*low_high)
    met = sum(bool(bar["met"]) for bar in found["bars"])
    filled = {
        "cells": about["cells"],
        "nodes": about["nodes"],
        "graphs": about["cells"] - about["nodes"],
        "searched": about["searched"],
        "seeds": seeds,
        "met": met,
        "bars": len(found["bars"]),
        "table": table_of_means(found),
        "claims": table_of_bars(found),
        "kinds": table_of_kinds(found),
    }
    return str(notes["page"]).format(**filled).strip() + "\n"


def replication_page(found: dict[str, Any], notes: dict[str, Any]) -> str:
    """The paper's claims, each with what was found; the words stand in the notes."""
    names = list(found["paper"])
    known = {cell.name: cell for cell in cells("small")}
    groups = {
        "nodes": [c for c in names if known[c].on_nodes],
        "sizes": [c for c in names if c.startswith("tu/")],
        "graphs": [c for c in names if not known[c].on_nodes],
        "all": names,
    }
    filled: dict[str, Any] = {name: len(group) for name, group in groups.items()}
    filled["seeds"] = " to ".join(str(n) for n in dict.fromkeys(found["about"]["paper_seeds"]))
    for name, (group, ours, theirs, measure) in COMPARED.items():
        rows = [found["paper"][cell] for cell in groups[group]]
        filled[name] = _against(rows, ours, theirs, measure)
    filled["published"] = published_tables(found)
    return str(notes["replication"]).format(**filled).strip() + "\n"


def published_tables(found: dict[str, Any]) -> str:
    """What the published networks give: calibration errors and accuracy, and all calibrators."""
    if not found["published"]:
        return "They have not been trained yet: `gduq bench comparison --scale paper`.\n"
    nodes = {c: of for c, of in found["published"].items() if not c.startswith("tu/")}
    sizes = {c: of for c, of in found["published"].items() if c.startswith("tu/")}
    columns = {
        "ECE": ("ece", "{}|none"),
        "ECE, temperature": ("ece", "{}|validation"),
        "ECE, shifted copies": ("ece", "{}|copies"),
        "ECE, last epoch": ("ece", "{}, last epoch|none"),
        "accuracy": ("accuracy", "{}|none"),
        "accuracy, last epoch": ("accuracy", "{}, last epoch|none"),
        "NLL, shifted copies": ("nll", "{}|copies"),
    }
    parts = [_published_table(nodes, columns)] if nodes else []
    names = [n for n in CALIBRATORS if any(f"plain|{n}" in of["figures"] for of in nodes.values())]
    if names:
        head = ["calibrator", *(f"{cell}: plain → NFA" for cell in nodes)]
        rows = [
            [
                name,
                *(_change(of["figures"], f"plain|{name}", f"NFA|{name}") for of in nodes.values()),
            ]
            for name in names
        ]
        parts.append(
            "ECE under every calibrator of the paper's tables of nodes:\n\n" + markdown(head, rows)
        )
    if sizes:
        few = {name: by for name, by in columns.items() if "last" not in name}
        parts.append(_published_table(sizes, few))
    return "\n".join(parts)


def _published_table(cells: dict[str, Any], columns: dict[str, tuple[str, str]]) -> str:
    rows = []
    for cell, of in cells.items():
        for method in ("plain", *_ANCHORED, "ensemble of 3"):
            known = of["figures"]
            if f"{method}|none" in known:
                found = [known.get(key.format(method), {}).get(n) for n, key in columns.values()]
                numbers = map(_number, [*found, *_printed(cell, method)])
                seeds = f"{of['seeds']} seed{'s' * (of['seeds'] > 1)}"
                rows.append([f"{cell} ({seeds})", method, *numbers])
    return markdown(["cell", "network", *columns, "paper's ECE", "paper's accuracy"], rows)


def _printed(cell: str, method: str) -> list[float | None]:
    """What the paper prints, in 100 bins, of the last epoch and logits averaged and rescaled."""
    dataset, _, shift = cell.partition(" ")[0].rpartition("/")
    variant = {"plain": "vanilla", "NFA": "nfa"}.get(method, method)
    where = {"dataset": dataset, "shift": shift, "variant": variant, "calibrator": "none"}
    found = [
        lookup(["good_shifts_node", "good_shifts_big"], **where, split="ood_test", metric=metric)
        for metric in ("ece", "accuracy")
    ]
    return [None if one is None else one.mean for one in found]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _change(of: dict[str, Any], before: str, after: str) -> str:
    return (
        f"{of[before]['ece']:.3f} → {of[after]['ece']:.3f}" if before in of and after in of else ""
    )


def _against(rows: list[dict[str, Any]], ours: str, theirs: str, measure: str) -> str:
    """In how many cells a network of the paper is better, and both means."""
    pairs = [(of[ours][measure], of[theirs][measure]) for of in rows
             if ours in of and theirs in of]  # fmt: skip
    if not pairs:
        return "not measured"
    up = measure in ("accuracy", "errors", "msp")
    wins = sum(a > b if up else a < b for a, b in pairs)
    ours_mean, theirs_mean = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    return f"{wins} of {len(pairs)} cells ({theirs_mean:.3f} → {ours_mean:.3f})"


def cells_page(found: dict[str, Any]) -> str:
    """Every cell by itself."""
    parts = ["# Every cell of the comparison\n"]
    parts.append(
        "OOD test rows, means over seeds. Lower is better but for accuracy. `python "
        "benchmarks/results.py` makes this page from `results/comparison-small.csv`, which holds "
        "every seed, level of calibration and split.\n"
    )
    columns = [_key(*key) for key in MAIN]
    for name in ("nll", "brier", "ece", "accuracy", "errors"):
        title = "AUROC of epistemic for errors" if name == "errors" else NAMES[name]
        rows = [
            [cell, *(f"{of[key][name]:.3f}" if key in of else "" for key in columns)]
            for cell, of in found["cells"].items()
        ]
        parts += [f"## {title}\n", markdown(["cell", *MAIN.values()], rows)]
    scores = ["novelty", "energy", "msp", "epistemic", "gnnsafe", "gebm", "gebm, with edges"]
    rows = [
        [cell, *(f"{of[s]:.3f}" if s in of else "" for s in scores)]
        for cell, of in found["detection"].items()
    ]
    parts += ["## AUROC of telling ID from OOD test rows\n", markdown(["cell", *scores], rows)]
    parts.append("## The paper's own anchors, from scratch: OOD NLL\n")
    methods = ["NFA", "L1", "L2", "readout", "pretrained"]
    readings = {"mixture": "", "mean logits": ", mean logits", "paper rule": ", paper rule"}
    for level in ("none", "copies"):
        head = ["cell", *(f"{m}, {r}" for m in methods for r in readings)]
        rows = [
            [cell, *(_shown(of, f"{m}{r}|{level}") for m in methods for r in readings.values())]
            for cell, of in found["paper"].items()
        ]
        said = "as it comes" if level == "none" else "temperature from validation rows and copies"
        parts += [f"Calibration: {said}.\n", markdown(head, rows)]
    return "\n".join(parts)


def _shown(of: dict[str, dict[str, float]], key: str) -> str:
    return f"{of[key]['nll']:.3f}" if key in of else ""


def readme_block(found: dict[str, Any]) -> str:
    """Four rows and four columns, and where to see all of it."""
    ood = found["means"]["ood_test"]
    rows = [
        [
            MAIN[key],
            f"{ood[_key(*key)].get('cost', 1.0):.1f}×",
            f"{ood[_key(*key)]['nll']:.3f}",
            f"{ood[_key(*key)]['brier']:.3f}",
            f"{ood[_key(*key)]['accuracy']:.3f}",
        ]
        for key in README_ROWS
    ]
    about = found["about"]
    head = ["under shift, means", "training", "NLL", "Brier score", "accuracy"]
    return (
        markdown(head, rows)
        + f"\nMeans over {about['cells']} cells (a dataset, a shift and a network). Lower is "
        "better, except for accuracy. All methods share the trained networks. All but the first "
        "two rows are calibrated on validation rows and shifted copies of them. "
        "What holds, what does not, and how to make it again: [RESULTS.md](RESULTS.md).\n"
    )


if __name__ == "__main__":
    main()
