"""Tables as data, and as Markdown and LaTeX: the one writer of all tables that people read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Cell", "Table", "number", "plain", "share", "text", "to_latex", "to_markdown"]

Found = tuple[float, float, float]  # a number and the ends of its interval


@dataclass(frozen=True)
class Cell:
    """What a table shows in one place, and what it is sorted by."""

    text: str
    value: float | None = None  # None: sorted by the text
    detail: str = ""  # its interval
    mark: Literal["", "better", "worse"] = ""


@dataclass(frozen=True)
class Table:
    """A table with a caption; the first column names the rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    numeric: tuple[bool, ...] = field(init=False)

    def __post_init__(self) -> None:
        columns = zip(*self.rows, strict=True) if self.rows else ()
        numeric = tuple(any(c.value is not None for c in column) for column in columns)
        object.__setattr__(self, "numeric", numeric or (False,) * len(self.columns))


def text(value: object) -> Cell:
    """A cell of words."""
    return Cell(str(value))


def number(found: Found | float, digits: int = 3, mark: str = "", spread: float = math.nan) -> Cell:
    """A number with its interval, if it has one, and its spread over runs, if there were several.

    Example:
        >>> number((0.1234, 0.1, 0.2))
        Cell(text='0.123', value=0.1234, detail='0.100 to 0.200', mark='')
        >>> number(0.1234, spread=0.01).text
        '0.123 ± 0.010'
    """
    return _cell(found, 1.0, f".{digits}f", mark, spread)


def share(
    found: Found | float, mark: str = "", signed: bool = False, spread: float = math.nan
) -> Cell:
    """A share as percentage (or percentage points) with its interval and spread, if it has any.

    Example:
        >>> share((0.5, 0.25, 0.75)).text, share(-0.125, signed=True).text
        ('50.0', '−12.5')
    """
    return _cell(found, 100.0, "+.1f" if signed else ".1f", mark, spread)


def _cell(found: Found | float, factor: float, style: str, mark: str, spread: float) -> Cell:
    value, low, high = found if isinstance(found, tuple) else (found, math.nan, math.nan)
    if math.isnan(value):
        return Cell("–", math.nan)
    shown = [_signed(f"{factor * v:{style}}") for v in (value, low, high)]
    detail = "" if math.isnan(low) else f"{shown[1]} to {shown[2]}"
    if isinstance(found, tuple) and not detail:
        detail = "–"  # an interval was asked for, and too few rows give none
    apart = "" if math.isnan(spread) else f" ± {factor * spread:{style.lstrip('+')}}"
    return Cell(shown[0] + apart, value, detail, mark)  # type: ignore[arg-type]


def _signed(shown: str) -> str:
    """With a true minus, and none before a zero."""
    return shown.lstrip("+-") if not shown.strip("+-0.") else shown.replace("-", "−")


# -- out -----------------------------------------------------------------------------------------


def to_markdown(table: Table, level: int = 3) -> str:
    r"""A Markdown table under a heading; what a name holds is shown, not interpreted.

    Example:
        >>> print(to_markdown(Table("T", ("name", "ECE"), ((text("a|b"), number(0.5)),))))
        ### T
        <BLANKLINE>
        | name | ECE |
        |---|---:|
        | a\|b | 0.500 |
    """
    head = [plain(c) for c in table.columns]
    rule = ["---:" if n else "---" for n in table.numeric]
    rows = [[plain(_whole(cell)) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    lines.insert(1, "|" + "|".join(rule) + "|")
    note = ["", plain(table.note)] if table.note else []
    heading = [f"{'#' * level} {plain(table.title)}", ""] if table.title else []
    return "\n".join([*heading, *lines, *note])


def to_latex(table: Table) -> str:
    r"""A LaTeX table in the style of the booktabs package.

    Example:
        >>> print(to_latex(Table("T", ("name", "ECE"), ((text("50%"), number(0.5)),))))
        \begin{table}
        \centering
        \caption{T}
        \begin{tabular}{lr}
        \toprule
        name & ECE \\
        \midrule
        50\% & 0.500 \\
        \bottomrule
        \end{tabular}
        \end{table}
    """
    rows = [" & ".join(_latex(_whole(cell)) for cell in row) + r" \\" for row in table.rows]
    caption = _latex(f"{table.title}. {table.note}" if table.note else table.title)
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{''.join('r' if n else 'l' for n in table.numeric)}}}",
        r"\toprule", " & ".join(map(_latex, table.columns)) + r" \\", r"\midrule", *rows,
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ])  # fmt: skip


def _whole(cell: Cell) -> str:
    return f"{cell.text} ({cell.detail})" if cell.detail else cell.text


def plain(words: str) -> str:
    r"""Words for Markdown: nothing in them is Markdown or HTML.

    Example:
        >>> print(plain("a * b"))
        a \* b
    """
    return _replaced(" ".join(words.split()), [(c, f"\\{c}") for c in "\\|`*_<>[]#"])


_LATEX = (
    *((c, f"\\{c}") for c in "&%$#_{}"),
    ("\\", r"\textbackslash{}"),
    ("~", r"\textasciitilde{}"),
    ("^", r"\textasciicircum{}"),
    ("<", r"\textless{}"),
    (">", r"\textgreater{}"),
    ("−", "$-$"),
    ("–", "--"),
    ("×", r"$\times$"),
    ("·", r"$\cdot$"),
    ("▲", r"$\uparrow$"),
    ("▼", r"$\downarrow$"),
    ("±", r"$\pm$"),
    ("Δ", r"$\Delta$"),
)


def _latex(words: str) -> str:
    return _replaced(" ".join(words.split()), _LATEX)


def _replaced(words: str, pairs: Iterable[tuple[str, str]]) -> str:
    table: dict[str, str] = dict(pairs)
    return "".join(table.get(c, c) for c in words)
