"""The pictures of the results, as SVG: one for README and RESULTS, and those of the replication."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from gduq.plots.style import COLOURS, GREY

Key = tuple[str, str]
_FOLDER = "docs/pictures"


def headline(found: Mapping[str, Any], shown: Sequence[Key], names: Mapping[Key, str]) -> str:
    """Left: the mean loss of each way, with its price. Right: every cell by itself."""
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    keys = list(shown)
    ood = found["means"]["ood_test"]
    values = [ood["|".join(key)]["nll"] for key in keys]
    costs = [ood["|".join(key)].get("cost", 1.0) for key in keys]
    colours = [COLOURS[2] if "choose" in key[0] else GREY for key in keys]
    left.barh(range(len(keys)), values, color=colours)
    left.set_yticks(
        range(len(keys)),
        [f"{names[k]}\n{c:.1f}× training" for k, c in zip(keys, costs, strict=True)],
    )
    left.invert_yaxis()
    left.set_xlabel("mean loss (NLL) under shift")
    for i, value in enumerate(values):
        left.text(value, i, f" {value:.2f}", va="center", ha="left")
    left.set_xlim(0, 1.18 * max(values))
    ratios = _ratios(found["cells"], ("choose 1.2", "copies"), ("plain", "copies"))
    order = sorted(ratios, key=ratios.__getitem__)
    others = _ratios(found["cells"], ("ensemble of 3", "copies"), ("plain", "copies"))
    right.axvline(1.0, color=GREY, lw=1)
    right.plot([others[c] for c in order], range(len(order)), "o", color=GREY, ms=4,
               label="ensemble of three")  # fmt: skip
    right.plot([ratios[c] for c in order], range(len(order)), "o", color=COLOURS[2], ms=5,
               label="choose(budget=1.2)")  # fmt: skip
    right.set_yticks(range(len(order)), order, fontsize=6)
    right.set_xlabel("relative to a temperature from copies")
    right.legend(loc="lower right", fontsize=7)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return _svg(figure)


def _ratios(
    cells: Mapping[str, Any], ours: Key, theirs: Key, measure: str = "nll"
) -> dict[str, float]:
    a, b = "|".join(ours), "|".join(theirs)
    return {c: of[a][measure] / of[b][measure] for c, of in cells.items() if a in of and b in of}


def replication_pictures(found: Mapping[str, Any]) -> dict[str, str]:
    """One picture per claim of the paper, by file."""
    if not found["paper"]:
        return {}
    return {
        f"{_FOLDER}/replication-accuracy.svg": _against(found, "accuracy", "none"),
        f"{_FOLDER}/replication-ece.svg": _against(found, "ece", "none"),
        f"{_FOLDER}/replication-nll.svg": _against(found, "nll", "copies"),
        f"{_FOLDER}/replication-readings.svg": _readings(found),
    }


def _against(found: Mapping[str, Any], measure: str, level: str) -> str:
    """Every anchored network of the paper beside the plain one, cell by cell."""
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.subplots()
    plain = {c: of[f"plain|{level}"][measure] for c, of in found["paper"].items()}
    order = sorted(plain, key=plain.__getitem__)
    axes.plot(
        [plain[c] for c in order], range(len(order)), "|", color="black", ms=11, label="plain"
    )
    for i, name in enumerate(("NFA", "L1", "L2", "readout", "pretrained")):
        own = {c: found["paper"][c].get(f"{name}|{level}") for c in order}
        there = [(row[measure], j) for j, row in enumerate(own.values()) if row]
        if there:
            axes.plot(*zip(*there, strict=True), "o", ms=4, color=COLOURS[i], label=name)
    axes.set_yticks(range(len(order)), order, fontsize=7)
    axes.set_xlabel(f"OOD {measure if measure != 'nll' else 'NLL'}")
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return _svg(figure)


def _readings(found: Mapping[str, Any]) -> str:
    """Mixture, mean logits and the rescaling rules: mean OOD NLL over cells, as they come."""
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    axes = figure.subplots()
    readings = {"mixture": "", "mean logits": ", mean logits", "paper's rule": ", paper rule",
                "released rule": ", released rule"}  # fmt: skip
    names = [n for n in ("NFA", "L1", "L2", "readout", "pretrained")
             if any(f"{n}|none" in of for of in found["paper"].values())]  # fmt: skip
    width = 0.8 / len(readings)
    for i, (label, suffix) in enumerate(readings.items()):
        values = []
        for name in names:
            rows = [of[f"{name}{suffix}|none"]["nll"] for of in found["paper"].values()
                    if f"{name}{suffix}|none" in of]  # fmt: skip
            values.append(sum(rows) / len(rows))
        places = [j + (i - 1.5) * width for j in range(len(names))]
        axes.bar(places, values, width, color=COLOURS[i], label=label)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("mean OOD NLL")
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return _svg(figure)


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "gduq"}):
        figure.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
