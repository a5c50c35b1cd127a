"""Tables for people: Markdown, LaTeX and CSV of bench records."""

from __future__ import annotations

import csv as csv_module
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gduq.runs.scores import HIGHER

if TYPE_CHECKING:
    from gduq.paper.bench_result import BenchResult

__all__ = ["cell", "csv", "latex", "markdown", "markdown_table", "win_counts"]

Record = Mapping[str, Any]
_MARKS = {"better": " ▲", "worse": " ▼"}
_LEGEND = (
    "Mean ± standard deviation over seeds, the paper's figure in brackets. ▲ better, ▼ worse than "
    "vanilla with the same calibrator (paired t-test over seeds, p < 0.05)."
)
_SPECIAL = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}


def cell(r: Record) -> str:
    """One number as it is printed.

    Example:
        >>> r = {"mean": 0.5, "std": 0.01, "paper": 0.6, "paper_std": 0.02, "verdict": "better"}
        >>> cell({**r, "metric": "accuracy"})
        '0.500 ± 0.010 ▲ [0.6 ± 0.02]'
    """
    text = "failed" if r["mean"] is None else _number(r["mean"], r["metric"])
    if r["std"] is not None:
        text += f" ± {_number(r['std'], r['metric'])}"
    text += _MARKS.get(r["verdict"], "")
    if r["paper"] is not None:
        spread = "" if r["paper_std"] is None else f" ± {r['paper_std']:g}"
        text += f" [{_number(r['paper'], r['metric'], exact=True)}{spread}]"
    return text


def _number(value: float, metric: str, exact: bool = False) -> str:
    if metric == "parameters":
        return f"{value:.0f}"
    if exact:
        return f"{value:g}"
    return f"{value:.3g}" if metric.endswith(("seconds", "ratio")) else f"{value:.3f}"


def csv(records: Iterable[Record], columns: Sequence[str]) -> str:
    """One line per record; lists as JSON."""
    file = io.StringIO()
    writer = csv_module.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for r in records:
        row = [r[c] for c in columns]
        writer.writerow(json.dumps(v) if isinstance(v, list) else v for v in row)
    return file.getvalue()


def _blocks(records: Sequence[Record]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Heading, columns and lines of each dataset, shift and model."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for r in records:
        groups.setdefault((r["dataset"], r["shift"], r["model"]), []).append(r)
    for group, members in groups.items():
        columns = list(dict.fromkeys((r["metric"], r["split"]) for r in members))
        lines: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
        for r in members:
            line = lines.setdefault((r["variant"], r["calibrator"]), {})
            line[r["metric"], r["split"]] = cell(r)
        heads = [f"{metric}, {split}" if split else metric for metric, split in columns]
        body = [[*key, *(line.get(c, "") for c in columns)] for key, line in lines.items()]
        yield " · ".join(filter(None, group)), ["variant", "calibrator", *heads], body


def markdown(result: BenchResult) -> str:
    """The whole table in Markdown."""
    parts = [f"# {result.name}: {result.title} (scale: {result.scale})"]
    parts += [*([_LEGEND] if any(r["versus"] for r in result.records) else []), *result.notes]
    for heading, columns, body in _blocks(result.records):
        parts.append(f"## {heading}\n\n" + markdown_table(columns, body))
    wins = result.wins()
    if wins:
        columns = list(wins[0])
        lines = [[str(w[c]) for c in columns] for w in wins]
        parts.append("## Against vanilla\n\n" + markdown_table(columns, lines))
    if result.failures:
        failed = [f"- {name}: `{_last(text)}`" for name, text in result.failures.items()]
        parts.append("## Failed runs\n\n" + "\n".join(failed))
    parts += [f"![{result.title}]({figure})" for figure in result.figures]
    return "\n\n".join(parts) + "\n"


def markdown_table(columns: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Columns and lines as a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(v.replace("|", "\\|") for v in row) + " |" for row in body]
    return "\n".join(lines)


def latex(result: BenchResult) -> str:
    """A ``tabular`` a dataset, shift and model, for the package booktabs."""
    parts = [f"% gduq bench {result.name} --scale {result.scale}"]
    for heading, columns, body in _blocks(result.records):
        lines = [" & ".join(map(_escaped, row)) + r" \\" for row in body]
        parts.append(
            "\n".join(
                [
                    r"\begin{table}[ht]\centering",
                    rf"\caption{{{_escaped(f'{result.title}: {heading}')}}}",
                    rf"\begin{{tabular}}{{ll{'r' * (len(columns) - 2)}}}\toprule",
                    " & ".join(map(_escaped, columns)) + r" \\\midrule",
                    *lines,
                    r"\bottomrule\end{tabular}\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    text = text.replace("\\", r"\textbackslash ")
    text = "".join(_SPECIAL.get(letter, letter) for letter in text)
    marks = {"±": r"$\pm$", "▲": r"$\uparrow$", "▼": r"$\downarrow$", "·": r"$\cdot$"}
    for mark, command in marks.items():
        text = text.replace(mark, command)
    return text.replace("G-ΔUQ", r"G-$\Delta$UQ")


def win_counts(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Per variant and metric: cells compared, better by mean, better and worse by the test."""
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    records = list(records)
    means = {_place(r, r["variant"], r["calibrator"]): r["mean"] for r in records}
    for r in records:
        if not r["versus"] or r["variant"] == "vanilla" or r["mean"] is None:
            continue
        other = means.get(_place(r, *r["versus"].split(", ")))
        if other is None:
            continue
        key = (r["variant"], r["metric"])
        empty = {"variant": key[0], "metric": key[1], "cells": 0, "better mean": 0}
        count = counts.setdefault(key, {**empty, "better": 0, "worse": 0})
        count["cells"] += 1
        gain = r["mean"] - other if r["metric"] in HIGHER else other - r["mean"]
        count["better mean"] += gain > 0
        count["better"] += r["verdict"] == "better"
        count["worse"] += r["verdict"] == "worse"
    return list(counts.values())


def _place(r: Record, variant: str, calibrator: str) -> tuple[str, ...]:
    where = tuple(r[k] for k in ("dataset", "shift", "model", "split", "metric"))
    return (*where, variant, calibrator)


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].replace("`", "'")
