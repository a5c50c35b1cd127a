"""Small charts as SVG text that takes its colours from the page, so that dark mode works."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Frame", "picture", "tag", "ticks"]

Pairs = Iterable[tuple[float, float]]


def tag(name: str, content: str = "", **attributes: object) -> str:
    """An element; attributes are escaped, the content is taken as it is.

    Example:
        >>> tag("text", escape("a<b"), class_="tick", x=1.25)
        '<text class="tick" x="1.2">a&lt;b</text>'
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_shown(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{pairs}>{content}</{name}>"


def _shown(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def picture(body: str, width: float, height: float, label: str) -> str:
    """A picture with a description for readers who cannot see it."""
    return tag("svg", body, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)


def ticks(low: float, high: float, wished: int = 5) -> list[float]:
    """Round numbers between two ends.

    Example:
        >>> ticks(0, 1)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / wished
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * s for s in (1, 2, 2.5, 5, 10) if power * s >= 0.999 * rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """Where data lies on a picture.

    Args:
        x: Ends of the horizontal axis.
        y: Ends of the vertical axis.
        width: Width of the picture.
        height: Height of the picture.
        top: Upper end of the plot on the picture.
        bottom: Space under the plot.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    width: float = 320.0
    height: float = 250.0
    top: float = 10.0
    bottom: float = 40.0
    left: float = 52.0
    right: float = 12.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """A point of the data on the picture."""
        (x0, x1), (y0, y1) = self.x, self.y
        wide, high = self.width - self.left - self.right, self.height - self.top - self.bottom
        across = (x - x0) / ((x1 - x0) or 1.0)
        up = (y - y0) / ((y1 - y0) or 1.0)
        return self.left + wide * across, self.top + high * (1 - up)

    def line(self, points: Pairs, class_: str) -> str:
        """A line through points of the data."""
        return tag("polyline", points=_joined(self.at(*p) for p in points), class_=class_)

    def area(self, points: Pairs, class_: str) -> str:
        """An area with points of the data as its corners."""
        return tag("polygon", points=_joined(self.at(*p) for p in points), class_=class_)

    def dot(self, x: float, y: float, class_: str, radius: float = 3.5) -> str:
        """A round mark."""
        across, down = self.at(x, y)
        return tag("circle", cx=across, cy=down, r=radius, class_=class_)

    def axes(self, xlabel: str = "", ylabel: str = "", xticks: Sequence[float] = ()) -> str:
        """Grid, numbers and names of both axes."""
        parts = []
        for y in ticks(*self.y, wished=4):
            _, down = self.at(self.x[0], y)
            parts.append(self.line([(self.x[0], y), (self.x[1], y)], "grid"))
            parts.append(_words(f"{y:g}", self.left - 6, down + 4, "end"))
        for x in xticks or ticks(*self.x, wished=5):
            across, _ = self.at(x, self.y[0])
            parts.append(_words(f"{x:g}", across, self.height - self.bottom + 15, "middle"))
        parts.append(self.base(xlabel))
        half = (self.top + self.height - self.bottom) / 2
        turned = f"rotate(-90 12 {half:.1f})"
        parts.append(tag("text", escape(ylabel), x=12, y=half, transform=turned,
                         text_anchor="middle", class_="name"))  # fmt: skip
        return "".join(parts)

    def base(self, name: str = "") -> str:
        """The lower end of the plot, with the name of the horizontal axis."""
        ends = [(self.x[0], self.y[0]), (self.x[1], self.y[0])]
        middle = (self.left + self.width - self.right) / 2
        words = _words(name, middle, self.height - 6, "middle", "name") if name else ""
        return self.line(ends, "axis") + words


def _words(words: str, x: float, y: float, anchor: str, class_: str = "tick") -> str:
    return tag("text", escape(words), x=x, y=y, text_anchor=anchor, class_=class_)


def _joined(points: Pairs) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
