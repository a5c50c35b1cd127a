"""The picture of the README: OOD ECE of every cell, a mark a method, as SVG without any library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from results_cells import ENSEMBLE, GDUQ, NAMES, T2, TS, VANILLA, Cell, Index, Method

# Okabe and Ito's colours, and a shape each: no two methods differ by colour alone.
MARKS: dict[Method, tuple[str, str]] = {
    VANILLA: ("#000000", "ring"),
    T2: ("#E69F00", "square"),
    TS: ("#009E73", "triangle"),
    ENSEMBLE: ("#0072B2", "diamond"),
    GDUQ: ("#D55E00", "disc"),
}
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _GAP = 720, 218, 24, 64, 18, 10
_GREY, _PALE = "#555555", "#dddddd"


def data(summary: Mapping[str, Any]) -> dict[Cell, dict[Method, float]]:
    """What is drawn: the OOD ECE of each method on every cell that has vanilla and G-ΔUQ."""
    index, found = Index(summary["records"]), {}
    for cell in index.cells:
        values = {m: v for m in MARKS if (v := index.mean(cell, m, "ece")) is not None}
        if VANILLA in values and GDUQ in values:
            found[cell] = values
    return found


def picture(summary: Mapping[str, Any]) -> str:
    """The SVG file."""
    drawn, index = data(summary), Index(summary["records"])
    tables = [index.table(cell) for cell in drawn]
    top = max((v for values in drawn.values() for v in values.values()), default=1.0)
    most = max(0.1, math.ceil(top * 10) / 10)
    places, height = _places(tables)
    body = [_axis(most, height), *_legend()]
    for (cell, values), y in zip(drawn.items(), places, strict=True):
        low, high = min(values.values()), max(values.values())
        body.append(_text(_name(cell), _LEFT - 10, y + 4, "end"))
        body.append(_line(_across(low, most), y, _across(high, most), y, _PALE, 2))
        under = sorted(values, key=lambda m: m != GDUQ)  # the largest mark hides no other
        body += [_mark(m, _across(values[m], most), y) for m in under]
    total = height + 44
    label = f"OOD ECE of {len(MARKS)} methods on {len(drawn)} networks; lower is better"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{total}" '
        f'viewBox="0 0 {_WIDTH} {total}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(label)}">\n'
        f'<rect width="{_WIDTH}" height="{total}" fill="#ffffff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _places(tables: Sequence[str]) -> tuple[list[int], int]:
    """The height of every row, with a gap between tables, and that of the axis."""
    found, y = [], _TOP
    for i, table in enumerate(tables):
        y += _ROW + (_GAP if i and table != tables[i - 1] else 0)
        found.append(y)
    return found, y + _ROW


def _name(cell: Cell) -> str:
    """A cell in few letters."""
    dataset = cell.dataset.removeprefix("tu/").replace("motif-lpe", "motif")
    return f"{dataset} {cell.shift} · {cell.model}"


def _across(value: float, most: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / most


def _axis(most: float, height: int) -> str:
    step = 0.1 if most > 0.3 else 0.05
    parts = []
    for i in range(round(most / step) + 1):
        x = _across(i * step, most)
        parts.append(_line(x, _TOP + 4, x, height, "#eeeeee" if i else _GREY))
        parts.append(_text(f"{i * step:.2f}".rstrip("0").rstrip("."), x, height + 16, "middle"))
    middle = _across(most / 2, most)
    name = "expected calibration error under shift (15 bins, mean over seeds); lower is better"
    return "\n".join([*parts, _text(name, middle, height + 34, "middle")])


def _legend() -> list[str]:
    parts, x, y = [], 16, 24
    for method in MARKS:
        name = NAMES[method]
        width = 36 + round(5.7 * len(name))
        parts += [_mark(method, x, y), _text(name, x + 11, y + 4, "start", method == GDUQ)]
        x += width
    return parts


def _mark(method: Method, x: float, y: float) -> str:
    colour, shape = MARKS[method]
    if shape in ("ring", "disc"):
        size = 4.2 if shape == "ring" else 5.4
        fill = "#ffffff" if shape == "ring" else colour
        return (f'<circle cx="{x:.1f}" cy="{y}" r="{size}" fill="{fill}" stroke="{colour}" '
                'stroke-width="1.5"/>')  # fmt: skip
    corners = {
        "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        "triangle": ((-4.8, 4), (4.8, 4), (0, -4.8)),
        "diamond": ((-5.2, 0), (0, -5.2), (5.2, 0), (0, 5.2)),
    }[shape]
    points = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners)
    return f'<polygon points="{points}" fill="{colour}" fill-opacity="0.85"/>'


def _line(x: float, y: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return (f'<line x1="{x:.1f}" y1="{y}" x2="{x2:.1f}" y2="{y2}" stroke="{colour}" '
            f'stroke-width="{width}"/>')  # fmt: skip


def _text(words: str, x: float, y: float, anchor: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y}" text-anchor="{anchor}"'
    return f'<text {place} fill="#222222"{weight}>{escape(words)}</text>'
