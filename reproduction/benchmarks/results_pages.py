"""From the summary to the Markdown that people read; its words stand in ``results/notes.toml``."""

from __future__ import annotations

from typing import Any

from gduq_reproduction.comparison.comparison_result import SHOWN
from gduq_reproduction.comparison.scoring import CALIBRATORS
from results_claims import CLAIMS, groups
from results_names import HIGHER, LAST, MAIN, MEASURED, README_ROWS, Found, Key, cost_of, joined

Notes = dict[str, Any]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# -- RESULTS.md and the README ---------------------------------------------------------------------


def results_page(found: Found, notes: Notes) -> str:
    about = found["about"]
    filled = {
        **about,
        "graphs": about["cells"] - about["nodes"],
        "seeds": _range([of["methods"] for of in found["seeds"].values()]),
        "met": sum(bool(bar["met"]) for bar in found["bars"]),
        "bars": len(found["bars"]),
        "table": table_of_means(found),
        "claims": table_of_bars(found),
        "kinds": table_of_kinds(found),
        "accuracies": ", ".join(
            f"{cell.partition(' ')[0]} {ours:.2f} ({printed:.2f})"
            for cell, (ours, printed) in found["accuracies"].items()
        ),
    }
    return str(notes["page"]).format(**filled).strip() + "\n"


def _range(numbers: list[int]) -> str:
    """The least and the most, once if they are the same."""
    ends = (min(numbers), max(numbers)) if numbers else (0,)
    return " to ".join(str(n) for n in dict.fromkeys(ends))


def table_of_means(found: Found) -> str:
    """The main methods; the best of each column in bold."""
    shown = [("ood_test", "OOD", name) for name in SHOWN] + [("id_test", "ID", "nll")]
    kept = [key for key in MAIN if joined(*key) in found["means"]["ood_test"]]
    rows = [[MAIN[key], f"{cost_of(found, key[0]):.2f}×"] for key in kept]
    for split, _, name in shown:
        values = [found["means"][split][joined(*key)][name] for key in kept]
        best = (max if name in HIGHER else min)(values)
        for row, value in zip(rows, values, strict=True):
            row.append(f"**{value:.3f}**" if value == best else f"{value:.3f}")
    head = ["method", "training", *(f"{where} {MEASURED[name]}" for _, where, name in shown)]
    return markdown(head, rows)


def table_of_bars(found: Found) -> str:
    said = {True: "yes", False: "**no**", None: "open"}
    rows = [[bar["what"], bar["wanted"], bar["got"], said[bar["met"]]] for bar in found["bars"]]
    return markdown(["claim", "bar", "found", "holds"], rows)


def table_of_kinds(found: Found) -> str:
    """Nodes and graphs apart: in how many cells NLL and Brier score are lower, and who finds
    errors."""
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


def readme_block(found: Found) -> str:
    """A few rows and columns, and where to see all of it."""
    head = ["under shift, means", "training", "NLL", "Brier score", "accuracy"]
    rows = [_readme_row(found, key) for key in README_ROWS]
    return (
        markdown(head, rows)
        + f"\nMeans over {found['about']['cells']} cells (a dataset, a shift and a network). Lower "
        "is better, except for accuracy. All methods share the trained networks. All but the first "
        "three rows are calibrated on validation rows and shifted copies of them. "
        "What holds, what does not, and how to make it again: [RESULTS.md](RESULTS.md).\n"
    )


def _readme_row(found: Found, key: Key) -> list[str]:
    means = found["means"]["ood_test"][joined(*key)]
    numbers = [f"{means[name]:.3f}" for name in ("nll", "brier", "accuracy")]
    return [MAIN[key], f"{cost_of(found, key[0]):.1f}×", *numbers]


# -- docs/replication.md ---------------------------------------------------------------------------


def replication_page(found: Found, notes: Notes) -> str:
    """The paper's claims, each with what was found."""
    names = [cell for cell, of in found["seeds"].items() if of["paper"]]
    kinds = ("all", "nodes", "graphs", "sizes")
    filled: dict[str, Any] = {kind: sum(kind in groups(c) for c in names) for kind in kinds}
    filled["seeds"] = _range([found["seeds"][cell]["paper"] for cell in names])
    for prefix in ("", "published_"):
        counts = {name: found[f"{prefix}claims"].get(name) for name in CLAIMS}
        filled |= {f"{prefix}{name}": _said(count) for name, count in counts.items()}
        added = counts["pretrained_cost"]
        filled[f"{prefix}added"] = "not measured" if added is None else f"{added['ours'] - 1:.2f}"
    for kind in ("nodes", "sizes"):
        seeds = [count for c, count in found["published_seeds"].items() if kind in groups(c)]
        filled[f"published_{kind}"] = _range(seeds) + " seed" + "s" * (set(seeds) != {1})
    filled |= {"picked": _by_cell(found, ""), "last": _by_cell(found, LAST)}
    filled |= {"calibrated": _calibrated(found), "near_chance": _near_chance(found)}
    return str(notes["replication"]).format(**filled).strip() + "\n"


def _by_cell(found: Found, end: str) -> str:
    """The calibration errors of NFA against the plain network, as published, cell by cell."""
    both = {
        cell.partition(" ")[0]: [own[joined(f"{m}{end}", "none")]["ece"] for m in ("plain", "NFA")]
        for cell, own in found["published"].items()
        if joined(f"NFA{end}", "none") in own
    }
    won = sum(ours < theirs for theirs, ours in both.values())
    means = ", ".join(f"{cell} {theirs:.3f} → {ours:.3f}" for cell, (theirs, ours) in both.items())
    return f"{won} of {len(both)} cells ({means})"


def _calibrated(found: Found) -> str:
    """By cell under how many of the paper's calibrators, none being one, NFA has the lower ECE."""
    levels = ("none", *CALIBRATORS)
    return ", ".join(
        f"{cell.partition(' ')[0]} {sum(won)} of {len(won)}"
        for cell, own in found["published"].items()
        for won in [[own[f"NFA|{level}"]["ece"] < own[f"plain|{level}"]["ece"] for level in levels
                     if f"NFA|{level}" in own]]
        if won
    )  # fmt: skip


def _near_chance(found: Found) -> str:
    """Of how many cells of graphs the plain network is not five points better than a guess."""
    graphs = {c: of["plain"] for c, of in found["paper"].items() if "graphs" in groups(c)}
    guess = {c: 1 / 3 if c.startswith("motif") else 1 / 2 for c in graphs}
    near = sum(of["accuracy|none"] < guess[c] + 0.05 for c, of in graphs.items())
    return f"{near} of {len(graphs)}"


def _said(count: dict[str, Any] | None) -> str:
    """In how many cells a network of the paper is better, and both means."""
    if count is None:
        return "not measured"
    means = f"{count['theirs']:.3f} → {count['ours']:.3f}"
    worst = count.get("worst")
    least = "" if worst is None else f"; at worst {100 * worst:+.1f} points"
    return f"{count['won']} of {count['of']} cells ({means}{least})"
