"""The rooms as boxes in rows, with arrows to what each stands on: an SVG without a library."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from html import escape
from itertools import pairwise

__all__ = ["Room", "picture"]

ABREAST = 4  # most rooms in one row
WIDE, HIGH, GAP, DROP = 180, 86, 12, 30  # of a room, and between rooms and rows
LINE, LINES = 28, 4  # letters in a line of a room, and lines

Way = list[tuple[int, str]]  # of an arrow, from the room it starts at: row and place


@dataclass(frozen=True)
class Room:
    """A box of the picture: a package, or the part of one that has a layer of its own."""

    name: str
    says: str
    on: frozenset[str]  # rooms that it imports from
    ground: bool = False  # a file that imports no folder: anybody may stand on it


def picture(found: Mapping[str, Room]) -> str:
    """The rooms in rows, each above those it imports from; arrows that others imply are left out.

    Rows come from the imports, the order within a row from where a room's neighbours are. The
    ground lies below a line, without arrows.
    """
    ground = [one for one in found.values() if one.ground]
    names = {one.name for one in ground}
    below = _needed({n: one.on - names for n, one in found.items() if n not in names})
    rows, ways = _rows(below)
    middle = _middles(rows, ways)
    width, high = _width(rows), len(rows) * (HIGH + DROP) - DROP + 2 * GAP
    body = [_arrow(way, middle, len(rows)) for way in ways]
    for level, row in enumerate(rows):
        boxes = [(found[name], middle[level, name]) for name in row if name in found]
        body += [_box(one, x - WIDE / 2, _top(level, len(rows))) for one, x in boxes]
    body.append(f'<path class="line" d="M{GAP} {high}H{width - GAP}"/>')
    body.append(f'<text class="says" x="{GAP}" y="{high + 16}">{_GROUND}</text>')
    for i, one in enumerate(ground):
        down, across = divmod(i, ABREAST)
        body.append(_box(one, GAP + across * (WIDE + GAP), high + 2 * GAP + down * (HIGH + GAP)))
    high += 2 * GAP + -(-len(ground) // ABREAST) * (HIGH + GAP)
    label = "The rooms of gduq; arrows point to what a room stands on."
    head = f'viewBox="0 0 {width} {high}" width="{width}" height="{high}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {head} role="img" aria-label="{label}">',
            f"<style>{_STYLE}</style>",
            _HEAD,
            f'<rect class="page" width="{width}" height="{high}" rx="8"/>',
            *body,
            "</svg>\n",
        ]
    )


_GROUND = "The ground: any room may stand on it."
_STYLE = (
    "text{font-family:system-ui,sans-serif;fill:#1b1b1b}.name{font-size:14px;font-weight:600}"
    ".says{font-size:11px}.page{fill:#fff}.room{fill:#eef3f8;stroke:#0072b2}"
    ".line{stroke:#767676;stroke-dasharray:4 4}.tip{fill:#767676}"
    ".way{fill:none;stroke:#767676;stroke-width:1.1}"
)
_HEAD = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
)


def _needed(on: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """What each room stands on directly: the transitive reduction."""
    far: dict[str, set[str]] = {}
    for name in TopologicalSorter(on).static_order():
        far[name] = set(on[name]).union(*(far[other] for other in on[name]))
    return {
        name: {there for there in below if not any(there in far[o] for o in below)}
        for name, below in on.items()
    }


def _rows(below: Mapping[str, set[str]]) -> tuple[list[list[str]], list[Way]]:
    """Rows from the ground up, with places for arrows that pass, and the arrows."""
    level = _levels(below)
    rows: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for name, at in level.items():
        rows[at].append(name)
    ways = []
    for name in level:
        for there in sorted(below[name]):
            path = [(level[name], name)]
            for at in range(level[name] - 1, level[there], -1):
                path.append((at, f"to {there}"))  # one place for all that go there
                if f"to {there}" not in rows[at]:
                    rows[at].append(f"to {there}")
            ways.append([*path, (level[there], there)])
    return rows, ways


def _levels(below: Mapping[str, set[str]]) -> dict[str, int]:
    """The row of every room: above what it needs, and near those who need it."""
    order = list(TopologicalSorter(below).static_order())
    level: dict[str, int] = {}
    for name in order:
        level[name] = max((level[there] + 1 for there in below[name]), default=0)
        while list(level.values()).count(level[name]) > ABREAST:
            level[name] += 1
    for name in reversed(order):
        above = [level[other] for other in order if name in below[other]]
        if len(above) >= len(below[name]) > 0 and above:
            free = [at for at in range(level[name], min(above))
                    if at == level[name] or list(level.values()).count(at) < ABREAST]  # fmt: skip
            level[name] = max(free)
    return level


def _middles(rows: list[list[str]], ways: list[Way]) -> dict[tuple[int, str], float]:
    """Where the middle of every place is, after all have moved towards their neighbours."""
    near: dict[tuple[int, str], list[tuple[int, str]]] = {}
    for path in ways:
        for one, two in pairwise(path):
            near.setdefault(one, []).append(two)
            near.setdefault(two, []).append(one)
    middle: dict[tuple[int, str], float] = {}
    for level, row in enumerate(rows):
        _place(level, row, middle, dict.fromkeys(row, _width(rows) / 2), _width(rows))
    for turn in range(40):
        down = turn % 2 == 0
        for level in reversed(range(len(rows))) if down else range(len(rows)):
            wish = {}
            for name in rows[level]:
                found = [
                    middle[n]
                    for n in near.get((level, name), ())
                    if turn > 30 or (n[0] > level) is down
                ]
                wish[name] = sum(found) / len(found) if found else middle[level, name]
            rows[level].sort(key=lambda name, wish=wish: (wish[name], name))
            _place(level, rows[level], middle, wish, _width(rows))
    return middle


def _size(name: str) -> int:
    return GAP if name.startswith("to ") else WIDE


def _width(rows: list[list[str]]) -> int:
    return max(sum(_size(name) + GAP for name in row) for row in rows) + GAP


def _place(
    level: int,
    row: list[str],
    middle: dict[tuple[int, str], float],
    wish: Mapping[str, float],
    width: int,
) -> None:
    """Places from left to right, by least squares where they want to be (pooled neighbours)."""
    starts = [GAP + sum(_size(name) + GAP for name in row[:i]) for i in range(len(row))]
    free = width - starts[-1] - _size(row[-1]) - GAP
    pools: list[list[float]] = []  # how far from their starts, and how many
    for name, start in zip(row, starts, strict=True):
        pools.append([wish[name] - _size(name) / 2 - start, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            value, count = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + value * count) / (last[1] + count)
            last[1] += count
    moved = [min(max(value, 0.0), free) for value, count in pools for _ in range(int(count))]
    for name, start, by in zip(row, starts, moved, strict=True):
        middle[level, name] = start + by + _size(name) / 2


def _top(level: int, rows: int) -> float:
    return GAP + (rows - 1 - level) * (HIGH + DROP)


def _box(one: Room, left: float, top: float) -> str:
    words = textwrap.wrap(one.says, LINE, max_lines=LINES, placeholder=" …", break_long_words=False)
    lines = "".join(
        f'<text class="says" x="{left + 9:.0f}" y="{top + 35 + 14 * i:.0f}">{escape(line)}</text>'
        for i, line in enumerate(words)
    )
    return (
        f'<rect class="room" x="{left:.0f}" y="{top:.0f}" width="{WIDE}" height="{HIGH}" rx="5"/>'
        f'<text class="name" x="{left + 9:.0f}" y="{top + 19:.0f}">{escape(one.name)}</text>{lines}'
    )


def _arrow(path: Way, middle: Mapping[tuple[int, str], float], rows: int) -> str:
    """A line down through the gaps between rooms."""
    level, name = path[0]
    x, y = middle[level, name], _top(level, rows) + HIGH
    steps = [f"M{x:.0f} {y:.0f}"]
    for level, name in path[1:]:
        to, top = middle[level, name], _top(level, rows)
        half = (y + top) / 2
        steps.append(f"C{x:.0f} {half:.0f} {to:.0f} {half:.0f} {to:.0f} {top - 1:.0f}")
        x, y = to, top + HIGH
        if name.startswith("to "):
            steps.append(f"V{y:.0f}")
    return f'<path class="way" d="{"".join(steps)}" marker-end="url(#tip)"/>'
