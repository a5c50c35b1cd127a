"""Tables as data, and as Markdown and LaTeX: the one writer of all tables that people read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Cell", "Style", "Table", "count", "number", "plain", "to_latex", "to_markdown"]

Found = tuple[float, float, float]  # a number and the ends of its interval
Style = Literal["number", "share", "points"]  # as it is, in percent, in percent with its sign
_STYLES = {"number": (1.0, ".3f"), "share": (100.0, ".1f"), "points": (100.0, "+.1f")}


@dataclass(frozen=True)
class Cell:
    """What a table shows in one place, and what it is sorted by."""

    text: str
    value: float | None = None  # None: sorted by the text
    detail: str = ""  # its interval
    mark: Literal["", "better", "worse"] = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


@dataclass(frozen=True)
class Table:
    """A table with a caption; the first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        places = range(len(self.columns))
        return [any(row[i].value is not None for row in self.rows) for i in places]


def count(rows: int) -> Cell:
    """A whole number."""
    return Cell(f"{rows:,}", float(rows))


def number(
    found: Found | float, style: Style = "number", mark: str = "", spread: float = math.nan
) -> Cell:
    """A number with its interval, if it has one, and its spread over runs, if there were several.

    Example:
        >>> number((0.1234, 0.1, 0.2), spread=0.01)
        Cell(text='0.123 ± 0.010', value=0.1234, detail='0.100 to 0.200', mark='')
        >>> number((0.5, 0.25, 0.75), "share").text, number(-0.125, "points").text
        ('50.0', '−12.5')
    """
    value, *ends = found if isinstance(found, tuple) else (found, math.nan, math.nan)
    if math.isnan(value):
        return Cell("–", math.nan)
    factor, digits = _STYLES[style]
    shown, low, high = (_signed(f"{factor * v:{digits}}") for v in (value, *ends))
    detail = f"{low} to {high}"
    if math.isnan(ends[0]):  # where an interval was asked for, too few rows give none
        detail = "–" if isinstance(found, tuple) else ""
    apart = "" if math.isnan(spread) else f" ± {factor * spread:{digits.lstrip('+')}}"
    return Cell(shown + apart, value, detail, mark)  # type: ignore[arg-type]


def _signed(shown: str) -> str:
    """With a true minus, and none before a zero."""
    return shown.lstrip("+-") if not shown.strip("+-0.") else shown.replace("-", "−")


def to_markdown(table: Table, level: int = 3) -> str:
    r"""A Markdown table under a heading; what a name holds is shown, not interpreted.

    Example:
        >>> print(to_markdown(Table("T", ("name", "ECE"), ((Cell("a|b"), number(0.5)),))))
        ### T
        <BLANKLINE>
        | name | ECE |
        |---|---:|
        | a\|b | 0.500 |
    """
    head = [plain(c) for c in table.columns]
    rule = ["---:" if n else "---" for n in table.numeric]
    rows = [[plain(str(cell)) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    lines.insert(1, "|" + "|".join(rule) + "|")
    note = ["", plain(table.note)] if table.note else []
    heading = [f"{'#' * level} {plain(table.title)}", ""] if table.title else []
    return "\n".join([*heading, *lines, *note])


def to_latex(table: Table) -> str:
    r"""A LaTeX table in the style of the booktabs package.

    Example:
        >>> latex = to_latex(Table("T", ("name", "ECE"), ((Cell("50%"), number(0.5)),)))
        >>> print("\n".join(latex.splitlines()[3:8]))
        \begin{tabular}{lr}
        \toprule
        name & ECE \\
        \midrule
        50\% & 0.500 \\
    """
    rows = [" & ".join(_latex(str(cell)) for cell in row) + r" \\" for row in table.rows]
    caption = _latex(f"{table.title}. {table.note}" if table.note else table.title)
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{''.join('r' if n else 'l' for n in table.numeric)}}}",
        r"\toprule", " & ".join(map(_latex, table.columns)) + r" \\", r"\midrule", *rows,
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ])  # fmt: skip


def plain(words: str) -> str:
    """Words for Markdown: nothing in them is Markdown or HTML."""
    return " ".join(words.split()).translate(_MARKDOWN)


def _latex(words: str) -> str:
    return " ".join(words.split()).translate(_LATEX)


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\|`*_<>[]#"})
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "−": "$-$",
        "–": "--",
        "×": r"$\times$",
        "·": r"$\cdot$",
        "▲": r"$\uparrow$",
        "▼": r"$\downarrow$",
        "±": r"$\pm$",
        "Δ": r"$\Delta$",
    }
)
