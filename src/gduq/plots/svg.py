"""Figures as SVG text that stands inside a page and takes its colours from it."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from html import escape
from typing import TYPE_CHECKING, Any

from gduq.plots.style import COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["inline", "to_svg"]

_PAGE = {colour.lower(): f"var(--s{i})" for i, colour in enumerate(COLOURS[:-1])} | {
    GREY: "var(--soft)",
    "#000000": "var(--ink)",
    "#ffffff": "var(--card)",
}
_NOISE = re.compile(
    r"<!--.*?-->|<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>"
    r"|font-family: [^;\"]*;? ?|(?<=>)\s+(?=<)",
    re.DOTALL,
)


def to_svg(figure: Figure, label: str) -> str:
    """A Matplotlib figure for a page with the colours ``--s0`` to ``--s5``, ``--ink`` and so on.

    Text stays text, nothing is loaded or run, and two figures of a page share no name.

    Args:
        figure: The figure.
        label: What it shows, for readers who cannot see it.

    Example:
        >>> import torch
        >>> from gduq.plots import risk_coverage
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1) * 2, target=torch.tensor([0, 1] * 20))
        >>> svg = to_svg(risk_coverage(p), "Risk & coverage")
        >>> svg[:9], "&amp; coverage" in svg, "coverage</text>" in svg, "#0072b2" in svg
        ('<svg view', True, True, False)
    """
    import matplotlib

    file = io.StringIO()
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "gduq"}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's font draws it
        figure.draw_without_rendering()  # once for ticks, once for where they leave room
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    body = _NOISE.sub("", text[text.index("<svg") :])
    start = body.index(">") + 1
    width, height = (figure.get_size_inches() * 72).tolist()
    return inline(_own(body[start : body.rindex("</svg>")], label), width, height, label)


def inline(body: str, width: float, height: float, label: str) -> str:
    """An SVG element around what is drawn, with a description."""
    said = escape(label)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{said}">{body}</svg>'


def _own(body: str, label: str) -> str:
    """With the colours and fonts of the page, and names that only this figure has."""
    body = body.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', body))
    key = hashlib.sha256((label + body).encode()).hexdigest()[:8]
    body = re.sub(r' id="([\w.:-]+)"', lambda m: f' id="{m[1]}-{key}"' * (m[1] in used), body)
    body = re.sub(r'(url\(#|href="#)([\w-]+)', rf"\1\2-{key}", body)
    return re.sub(r"#[0-9a-f]{6}\b", lambda m: _PAGE.get(m[0], m[0]), body)
