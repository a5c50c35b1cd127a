"""From the summary to ``results/comparison.html``: all figures, on one page without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gduq_reproduction.comparison.comparison_result import SHOWN
from gduq_reproduction.comparison.scoring import CALIBRATORS, LEVELS
from results_claims import groups
from results_names import (
    ANCHORED,
    CALIBRATED,
    CONTROLS,
    FEW,
    HIGHER,
    LAST,
    MAIN,
    MEASURED,
    METHODS,
    NETWORKS,
    READINGS,
    SPLITS,
    Found,
    cost_of,
    counted,
    joined,
)

Values = Sequence[float | None]
_KINDS = ("nodes", "graphs")
_SCORES = (
    "novelty",
    "representation alone",
    "structure alone",
    "energy",
    "msp",
    "epistemic",
    "gnnsafe",
    "gebm",
    "gebm, with edges",
)


class Row(NamedTuple):
    """A name, and texts with whether they are the best."""

    name: str
    texts: Sequence[tuple[str, bool]]


class Body(NamedTuple):
    """Rows that belong together."""

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Grid:
    """A table; columns come in groups."""

    name: str
    title: str
    groups: Sequence[tuple[str, Sequence[str]]]
    bodies: Sequence[Body]
    open: bool = False

    @property
    def width(self) -> int:
        return sum(len(columns) for _, columns in self.groups)


class Section(NamedTuple):
    """A part of the page."""

    name: str
    title: str
    lead: str
    grids: Sequence[Grid]


def comparison_page(found: Found) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    sections = [_means(found), _cells(found), _detection(found), _paper(found), _published(found)]
    template = environment.get_template("comparison.html.j2")
    return template.render(about=found["about"], sections=sections)


# -- parts of tables -------------------------------------------------------------------------------


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _best_of(values: Values, higher: bool) -> float | None:
    return (max if higher else min)((v for v in values if v is not None), default=None)


def _by_row(name: str, values: Values, higher: bool) -> Row:
    """The best of the row is marked."""
    best = _best_of(values, higher)
    return Row(name, [(_text(v), v is not None and v == best) for v in values])


def _by_column(name: str, rows: Mapping[str, Values], higher: Sequence[bool]) -> Body:
    """The best of each column is marked."""
    columns = zip(*rows.values(), strict=True)
    best = [_best_of(c, up) for c, up in zip(columns, higher, strict=True)]
    marked = {
        row: [(_text(v), v is not None and v == b) for v, b in zip(values, best, strict=True)]
        for row, values in rows.items()
    }
    return Body(name, [Row(row, texts) for row, texts in marked.items()])


def _both_splits(means: Found, key: str) -> list[float | None]:
    return [means[split].get(key, {}).get(m) for split in SPLITS for m in SHOWN]


def _split_groups() -> list[tuple[str, list[str]]]:
    return [(name, [MEASURED[m] for m in SHOWN]) for name in SPLITS.values()]


def _kind_bodies(names: Iterable[str], row: Callable[[str], Row]) -> list[Body]:
    """One body for cells of nodes and one for those of graphs."""
    cells = list(names)
    bodies = [Body(kind, [row(c) for c in cells if kind in groups(c)]) for kind in _KINDS]
    return [body for body in bodies if body.rows]


def _reading(method: str, reading: str) -> str:
    return f"{NETWORKS[method]}, {READINGS[reading]}"


# -- sections --------------------------------------------------------------------------------------


def _means(found: Found) -> Section:
    """All methods, all levels, both splits."""
    higher = [m in HIGHER for _ in SPLITS for m in SHOWN]
    bodies = []
    for level in LEVELS:
        keys = [m for m in METHODS if joined(m, level) in found["means"]["ood_test"]]
        rows = {m: _both_splits(found["means"], joined(m, level)) for m in keys}
        body = _by_column(CALIBRATED[level], rows, higher)
        priced = [
            Row(METHODS[m], [(f"{cost_of(found, m):.2f}×", False), *texts])
            for m, texts in body.rows
        ]
        bodies.append(Body(body.name, priced))
    grid = Grid("all", "Means over all cells", [("", ["training"]), *_split_groups()], bodies, True)
    lead = (
        "The best of each column at a level of calibration is in bold. Training is processor time "
        "relative to the plain network's own, which is included. gduq.choose calibrates its "
        "members on shifted copies, so it has no other level."
    )
    return Section("means", "All methods at three levels of calibration", lead, [grid])


def _cells(found: Found) -> Section:
    """Every cell by itself, one table per measure."""
    grids = []
    for i, measure in enumerate((*SHOWN, "errors")):

        def row(cell: str, measure: str = measure) -> Row:
            of, seeds = found["cells"][cell], found["seeds"][cell]["methods"]
            values = [of.get(joined(*key), {}).get(measure) for key in MAIN]
            return _by_row(f"{cell} ({seeds})", values, measure in HIGHER)

        bodies = _kind_bodies(found["cells"], row)
        columns = [("", list(MAIN.values()))]
        grids.append(Grid(f"cells-{measure}", MEASURED[measure], columns, bodies, i == 0))
    lead = (
        "OOD test rows; the number of seeds in brackets. The best of each row is in bold. All but "
        "the first three columns are calibrated on validation rows and shifted copies of them. The "
        "AUROC of disagreement is 0.5 for a method with one hypothesis."
    )
    return Section("cells", "Every cell", lead, grids)


def _detection(found: Found) -> Section:
    """AUROCs of telling ID from OOD test rows."""

    def scored(cell: str) -> Row:
        return _by_row(cell, [found["detection"][cell].get(s) for s in _SCORES], True)

    def by_network(cell: str) -> Row:
        of = found["paper_msp"][cell]
        return _by_row(cell, [of.get(m) for m in (*CONTROLS, *ANCHORED)], True)

    names = [NETWORKS[m] for m in (*CONTROLS, *ANCHORED)]
    grids = [
        Grid("scores", "Scores of gduq.choose(budget=1.2), and energies of the plain network",
             [("", list(_SCORES))], _kind_bodies(found["detection"], scored), True),
        Grid("largest", "The largest probability (MSP) of the paper's networks",
             [("", names)], _kind_bodies(found["paper_msp"], by_network)),
    ]  # fmt: skip
    lead = "AUROC of telling ID from OOD test rows. Energies are those of nodes, as published."
    return Section("detection", "Which rows are shifted", lead, grids)


def _paper(found: Found) -> Section:
    """The paper's own anchors, trained from scratch."""
    grids = [_paper_means(found, kind) for kind in _KINDS if kind in found["paper_means"]]
    grids += [_paper_cells(found, measure, kind) for measure in FEW for kind in _KINDS]
    lead = (
        "Anchors as in the paper, trained from scratch at the small scale of RESULTS.md, beside "
        "plain networks and ensembles of the same cells and seeds. The hypotheses are read in four "
        "ways: their probabilities are averaged, or their logits, or these are rescaled by their "
        "spread with the rule of the paper or that of the released code."
    )
    return Section("paper", "The paper's own anchors in all readings", lead, grids)


def _paper_means(found: Found, kind: str) -> Grid:
    names = {m: NETWORKS[m] for m in (*CONTROLS, "T = 2")}
    names |= {m + reading: _reading(m, reading) for m in ANCHORED for reading in READINGS}
    means, higher = found["paper_means"][kind], [m in HIGHER for _ in SPLITS for m in SHOWN]
    bodies = []
    for level in LEVELS:
        keys = {m: joined(m, level) for m in names if joined(m, level) in means["ood_test"]}
        rows = {names[m]: _both_splits(means, key) for m, key in keys.items()}
        bodies.append(_by_column(CALIBRATED[level], rows, higher))
    title = f"Means over cells of {kind}"
    return Grid(f"paper-{kind}", title, _split_groups(), bodies, open=kind == "nodes")


def _paper_cells(found: Found, measure: str, kind: str) -> Grid:
    """One measure on OOD test rows, with a body per level of calibration."""
    cells = {c: of for c, of in found["paper"].items() if kind in groups(c)}
    anchored = [m for m in ANCHORED if any(m in of for of in cells.values())]
    columns = [*CONTROLS, *(m + reading for m in anchored for reading in READINGS)]
    bodies = []
    for level in LEVELS:
        column = joined(measure, level)
        rows = {c: [of.get(m, {}).get(column) for m in columns] for c, of in cells.items()}
        shown = [
            _by_row(f"{cell} ({found['seeds'][cell]['paper']})", values, measure in HIGHER)
            for cell, values in rows.items()
        ]
        bodies.append(Body(CALIBRATED[level], shown))
    heads = [("", [NETWORKS[m] for m in CONTROLS])]
    heads += [(NETWORKS[m], list(READINGS.values())) for m in anchored]
    title = f"OOD {MEASURED[measure]}, every cell of {kind}"
    return Grid(f"paper-{measure}-{kind}", title, heads, bodies)


def _published(found: Found) -> Section:
    """The published networks under all calibrators, in all readings, and what the paper prints."""
    grids = [_calibrators(found, measure) for measure in ("ece", "nll", "accuracy")]
    grids += [_published_readings(found, measure) for measure in ("ece", "nll", "accuracy")]
    lead = (
        "Networks and schedules as published, on OOD test rows. Weights are picked by validation "
        "loss, or are those of the last epoch, as the paper takes them. The paper prints ECE in "
        "100 bins (here: 15), of the last epoch, with logits averaged and rescaled."
    ) + ("" if found["published"] else " They have not been trained yet.")
    return Section("published", "The published networks with all calibrators", lead, grids)


def _published_bodies(
    found: Found, rows: Callable[[Found, Found], Mapping[str, Values]]
) -> list[Body]:
    """One per cell; ``rows`` gets its figures and the printed ones."""
    bodies = []
    for cell, of in found["published"].items():
        shown = rows(of, found["printed"].get(cell, {}))
        kept = [Row(name, [(_text(v), False) for v in values]) for name, values in shown.items()
                if any(v is not None for v in values)]  # fmt: skip
        bodies.append(Body(f"{cell}, {counted(found['published_seeds'][cell])}", kept))
    return bodies


def _calibrators(found: Found, measure: str) -> Grid:
    """Probabilities are averaged; the paper's figures stand below."""
    levels = (*LEVELS, *CALIBRATORS)
    taken = {NETWORKS[m] + end: m + end for m in NETWORKS for end in ("", LAST)}
    paper = {f"the paper prints: {name}": m for m, name in NETWORKS.items()}

    def rows(of: Found, printed: Found) -> dict[str, Values]:
        return {
            name: [source.get(joined(m, level), {}).get(measure) for level in levels]
            for source, names in ((of, taken), (printed, paper))
            for name, m in names.items()
        }

    columns = [*CALIBRATED.values(), *(name.replace("_", " ") for name in CALIBRATORS)]
    title, bodies = f"OOD {MEASURED[measure]}", _published_bodies(found, rows)
    return Grid(f"published-{measure}", title, [("", columns)], bodies, open=measure == "ece")


def _published_readings(found: Found, measure: str) -> Grid:
    """As they come, beside what the paper prints."""

    def rows(of: Found, printed: Found) -> dict[str, Values]:
        return {
            NETWORKS[m]: [
                *(of.get(f"{m}{reading}{end}|none", {}).get(measure)
                  for end in ("", LAST) for reading in READINGS),
                printed.get(f"{m}|none", {}).get(measure),
            ]
            for m in ANCHORED
        }  # fmt: skip

    readings = list(READINGS.values())
    heads = [("weights picked by validation loss", readings), ("last epoch", readings)]
    title = f"OOD {MEASURED[measure]} in all readings, as it comes"
    bodies = _published_bodies(found, rows)
    return Grid(
        f"published-readings-{measure}", title, [*heads, ("", ["the paper prints"])], bodies
    )
