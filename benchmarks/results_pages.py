"""RESULTS.md and a page a table, from the summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results_cells import (
    GDUQ,
    ID,
    NAMES,
    OOD,
    VANILLA,
    Cell,
    Index,
    Method,
)
from results_tables import digest, table_page
from results_text import (
    Record,
    Verdicts,
    column,
    figure,
    markdown,
    number,
    reached,
    verdict,
    wanted,
)

Summary = Mapping[str, Any]
_READING = """**Reading.** A cell is a dataset with a shift; where several networks were trained on
it, the bars take their mean, and beside the verdicts stands what comes out with every network by
itself.
OOD is the shifted test split (of rotation and noise the strongest), ID the one without shift.
Numbers are means ± standard deviations over seeds. **Bold**: better than vanilla by a paired t-test
over seeds, p < 0.05; ▼: worse. The tests are not corrected for their number: of a hundred
comparisons without any difference about five come out bold or ▼. ECE has 15 bins; the paper's code
has 100. T = 2 halves the logits of the vanilla network; temperature scaling is fitted on
`id_val`, and where it says so half on corrupted copies of those rows (features noised and masked,
edges dropped and rewired)."""
_PAID = (
    "G-ΔUQ pays for all it trains, the plain network it starts from included; the "
    "pretrained ones only for what comes on top of a network that was there before."
)
_COLUMNS: tuple[tuple[str, str, bool], ...] = (  # metric, split, with its deviation
    ("accuracy", OOD, True),
    ("ece", OOD, True),
    ("ece100", OOD, False),
    ("nll", OOD, True),
    ("brier", OOD, False),
    ("aurc", OOD, False),
    ("accuracy", ID, True),
    ("ece", ID, False),
    ("nll", ID, False),
)
_COMPARED = (("accuracy", OOD), ("ece", OOD), ("nll", OOD), ("brier", OOD), ("aurc", OOD),
             ("accuracy", ID), ("ece", ID), ("nll", ID))  # fmt: skip
_HIGHER = ("accuracy",)


def pages(summary: Summary) -> dict[str, str]:
    """File name (from the root of the repository) and text of every page."""
    made = [table for table in summary["tables"] if table["made"]]
    return {
        "RESULTS.md": results_page(summary),
        "results/schedule.md": schedule_page(summary),
        **{f"results/{table['name']}.md": table_page(summary, table) for table in made},
    }


def results_page(summary: Summary) -> str:
    """RESULTS.md."""
    index = Index(summary["records"])
    parts = [
        _head(summary),
        _bars(summary),
        _equal(summary),
        _comparison(index, Verdicts(summary["tests"])),
        _wins(index, Verdicts(summary["tests"])),
        "## The tables\n\nAll figures, with every calibrator, stand in the file named.",
        *(digest(summary, table) for table in summary["tables"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(summary: Summary) -> str:
    about = summary["about"]
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    return f"""# Results

These figures describe the first edition (commit e13c16f); they are measured again with the second \
edition.

Made by `python benchmarks/results.py --root FOLDER` from what `gduq bench` left there; nothing is
typed by hand. The numbers are in [results/summary.json](results/summary.json), one record a figure;
`python benchmarks/results.py --page FILE.html` writes all of it as one page.
Collected {about["date"]}: {about["runs"]} runs, {about["hours"]:g} hours of training on
{about["cpu"]} (a run: {about["machine"]}). {versions}.

{_READING}"""


# -- bars -----------------------------------------------------------------------------------------


def _bars(summary: Summary) -> str:
    bars = summary["bars"]
    met = sum(bar["met"] is True for bar in bars)
    rows = []
    for bar in bars:
        asked = [p for p in bar["parts"] if p["wanted"] is not None]
        rows.append([bar["what"], "; ".join(map(reached, asked)),
                     "; ".join(map(wanted, asked)), verdict(bar["met"])])  # fmt: skip
    table = markdown(["bar", "reached", "wanted", ""], rows)
    notes = "\n".join(filter(None, map(_about_bar, bars)))
    said = "\n\n".join(filter(None, [_said(bars, True), _said(bars, False), _said(bars, None)]))
    return (
        f"## What holds, what does not\n\n{met} of {len(bars)} bars are met; they were set "
        "before the first experiment. G-ΔUQ with its defaults, under shift:\n\n"
        f"{said}\n\n{table}\n\n"
        "What else was seen, and every network on the losing side (ours against theirs):\n\n"
        f"{notes}"
    )


def _said(bars: Sequence[Record], met: bool | None) -> str:
    """The bars with a verdict, in words."""
    heads = {True: "Holds", False: "Does not hold", None: "Not measured, or not in full"}
    own = [bar["what"] for bar in bars if bar["met"] is met]
    return f"**{heads[met]}:** {'; '.join(own)}." if own else ""


def _about_bar(bar: Record) -> str:
    lost = [f"{x['cell']} ({number(x['ours'])} against {number(x['theirs'])})"
            for x in bar["losing"]]  # fmt: skip
    also = [reached(p) for p in bar["parts"] if p["wanted"] is None and p["value"] is not None]
    said = [
        bar["note"],
        f"Also seen: {'; '.join(also)}." if also else "",
        f"Lost: {'; '.join(lost)}." if lost else "",
    ]
    text = " ".join(filter(None, said))
    return f"- *{bar['what']}*: {text}" if text else ""


# -- how it was made ------------------------------------------------------------------------------


def _equal(summary: Summary) -> str:
    return (
        "## Equal treatment\n\nEpochs, learning rate, batches and the rule that picks the epoch "
        f"({_selection(summary)}) are those of vanilla for every method. {_unequal(summary)}"
        f"{_in_turn(summary)} "
        "Data, widths, epochs and seeds of all: [results/schedule.md](results/schedule.md). "
        "How the defaults of G-ΔUQ were chosen: [docs/choices.md](docs/choices.md). "
        f"{_chosen(summary)}"
    )


def schedule_page(summary: Summary) -> str:
    """results/schedule.md: on what and how long every network was trained."""
    rows = []
    for s in summary["schedule"]:
        sizes = "/".join(str(s["rows"].get(k, "–")) for k in ("train", "id_val", ID, OOD))
        own = ", ".join(f"{k} {v}" for k, v in s["gduq"].items())
        numbers = [f"{s[k]:g}" for k in ("epochs", "hidden", "layers", "lr", "weight_decay")]
        batch = "whole graph" if s["task"] == "node" else str(s["batch_size"])
        parts = [_below(s, variant) for variant in ("gduq", "gduq-pretrained")]
        rows.append([f"{s['dataset']} {s['shift']}, {s['model']}", s["scale"], *numbers, batch,
                     sizes, str(s["seeds"]), *parts, own or "–"])  # fmt: skip
    heads = ["network", "scale", "epochs", "width", "layers", "learning rate", "weight decay",
             "batch", "rows: train/val/ID/OOD", "seeds",
             "epochs below G-ΔUQ", "epochs below G-ΔUQ, pretrained", "G-ΔUQ"]  # fmt: skip
    return (
        f"# Schedules\n\nOf all methods alike. {_unequal(summary)}{_in_turn(summary)} {_PAID}\n\n"
        f"{markdown(heads, rows)}\n"
    )


def _below(s: Record, variant: str) -> str:
    """Epochs of the plain network that a head is put on."""
    return str(s.get("below", {}).get(variant) or "–")


def _in_turn(summary: Summary) -> str:
    """What is to be said if G-ΔUQ stands on a network that was trained shorter."""
    if not any(s.get("below", {}).get("gduq", 0) for s in summary["schedule"]):
        return ""
    return (
        " gduq puts an anchored head on a plain network that is trained a little shorter than "
        "vanilla, so that the head costs nothing extra."
    )


def _selection(summary: Summary) -> str:
    rules = sorted({s["select"] for s in summary["schedule"]})
    words = {"last": "the last one", "best": "the best on id_val"}
    return " or ".join(words.get(rule, rule) for rule in rules)


def _unequal(summary: Summary) -> str:
    found: dict[str, set[str]] = {}
    for s in summary["schedule"]:
        for variant, changes in s["unequal"].items():
            found.setdefault(variant, set()).update(f"{k} {v}" for k, v in changes.items())
    if not found:
        return "There is no exception."
    said = "; ".join(f"{variant} ({', '.join(sorted(c))})" for variant, c in found.items())
    return f"**Exceptions:** {said}."


def _chosen(summary: Summary) -> str:
    counts: dict[str, dict[str, int]] = {}
    for choice in summary["choices"]:
        own = counts.setdefault(choice["variant"], {})
        for name, times in choice["chosen"].items():
            own[name] = own.get(name, 0) + times
    said = [
        f"{variant} {', '.join(f'{n} {k}×' for n, k in sorted(own.items(), key=lambda x: -x[1]))}"
        for variant, own in counts.items()
    ]
    if not said:
        return ""
    return (
        "The best calibrator is chosen run by run, alike for both, among none and those of the "
        "table that are fitted, by NLL on the half of `id_val` that it was not fitted on, halves "
        "taking turns; half of that NLL is of the clean rows, half of corrupted copies of the same "
        "rows. CaGCN and GATS read the graph around the rows, cannot be tried on copies and are "
        f"not among them. Chosen were: {'; '.join(said)}."
    )


# -- the main comparison --------------------------------------------------------------------------


def _comparison(index: Index, verdicts: Verdicts) -> str:
    heads = ["network", "method", *(column(m, s) for m, s, _ in _COLUMNS), "training", "prediction"]
    rows = []
    for cell in index.cells:
        methods = [m for m in NAMES if index.mean(cell, m, "ece") is not None]
        for i, method in enumerate(methods):
            found = [(index.record(cell, method, m, s), spread) for m, s, spread in _COLUMNS]
            texts = [figure(r, verdicts(r), spread, paper=False) for r, spread in found]
            name = NAMES[method] if method != GDUQ else f"**{NAMES[method]}**"
            rows.append([str(cell) if i == 0 else "", name, *texts,
                         *_costs(index, cell, method)])  # fmt: skip
    return (
        "## Every network\n\nTraining and prediction: seconds of the runs over vanilla's, on a "
        f"shared machine; the table runtime has them in one process. {_PAID}\n\n"
        f"{markdown(heads, rows)}"
    )


def _costs(index: Index, cell: Cell, method: Method) -> list[str]:
    plain = method if method.calibrator == "none" else VANILLA
    found = []
    for metric in ("train_seconds", "predict_seconds"):
        ours, base = index.mean(cell, plain, metric, ""), index.mean(cell, VANILLA, metric, "")
        found.append(f"{ours / base:.2f}×" if ours is not None and base else "–")
    return found


def _wins(index: Index, verdicts: Verdicts) -> str:
    """How often a method is better than vanilla, by the mean and by the test."""
    rows = []
    for method in (m for m in NAMES if m != VANILLA):
        texts = []
        for metric, split in _COMPARED:
            pairs = index.pairs(method, VANILLA, metric, split)
            if not pairs:
                texts.append("–")
                continue
            sign = 1 if metric in _HIGHER else -1
            better = sum(sign * (a - b) > 0 for a, b in pairs.values())
            said = [verdicts(index.record(c, method, metric, split)) for c in pairs]
            tested = f"{said.count('better')} / {said.count('worse')}"
            texts.append(f"{better} of {len(pairs)} ({tested})")
        if any(text != "–" for text in texts):
            rows.append([NAMES[method], *texts])
    heads = ["method", *(column(m, s) for m, s in _COMPARED)]
    return (
        "## Wins over vanilla\n\nNetworks with a better mean, of all; in brackets those better / "
        "worse by the paired test.\n\n" + markdown(heads, rows)
    )
