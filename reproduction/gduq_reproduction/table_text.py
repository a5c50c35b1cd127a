"""Tables for people: Markdown, LaTeX and CSV of bench records."""

from __future__ import annotations

import csv as csv_module
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gduq import text_tables
from gduq.text_tables import Cell, Table
from gduq_reproduction.run_scores import HIGHER

if TYPE_CHECKING:
    from gduq_reproduction.bench_result import BenchResult

__all__ = ["cell", "csv", "failed_runs", "latex", "markdown", "table_of", "win_counts"]

Record = Mapping[str, Any]
_MARKS = {"better": " ▲", "worse": " ▼"}
_LEGEND = (
    "Mean ± standard deviation over seeds, the paper's figure in brackets. ▲ better, ▼ worse than "
    "vanilla with the same calibrator (paired t-test over seeds, p < 0.05)."
)


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


def table_of(title: str, columns: Sequence[str], body: Iterable[Sequence[str | Cell]]) -> Table:
    """Columns and lines as a table for `gduq.text_tables`."""
    rows = tuple(tuple(v if isinstance(v, Cell) else Cell(v) for v in row) for row in body)
    return Table(title, tuple(columns), rows)


def _blocks(records: Sequence[Record]) -> Iterator[Table]:
    """One table per dataset, shift and model."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for r in records:
        groups.setdefault((r["dataset"], r["shift"], r["model"]), []).append(r)
    for group, members in groups.items():
        columns = list(dict.fromkeys((r["metric"], r["split"]) for r in members))
        lines: dict[tuple[str, str], dict[tuple[str, str], Cell]] = {}
        for r in members:
            line = lines.setdefault((r["variant"], r["calibrator"]), {})
            line[r["metric"], r["split"]] = Cell(cell(r), r["mean"])
        heads = [f"{metric}, {split}" if split else metric for metric, split in columns]
        body = [[*key, *(line.get(c, "") for c in columns)] for key, line in lines.items()]
        yield table_of(" · ".join(filter(None, group)), ["variant", "calibrator", *heads], body)


def markdown(result: BenchResult) -> str:
    """The whole table in Markdown."""
    parts = [f"# {result.name}: {result.title} (scale: {result.scale})"]
    parts += [*([_LEGEND] if any(r["versus"] for r in result.records) else []), *result.notes]
    tables = list(_blocks(result.records))
    wins = result.wins()
    if wins:
        body = [[str(value) for value in w.values()] for w in wins]
        tables.append(table_of("Against vanilla", list(wins[0]), body))
    parts += [text_tables.to_markdown(table, level=2) for table in tables]
    parts += failed_runs(result)
    parts += [f"![{result.title}]({figure})" for figure in result.figures]
    return "\n\n".join(parts) + "\n"


def failed_runs(result: BenchResult) -> list[str]:
    """A part of the page with the last line of every failure, if there is any."""
    said = {name: text.strip().splitlines()[-1:] for name, text in result.failures.items()}
    lines = [f"- {name}: `{' '.join(last).replace('`', chr(39))}`" for name, last in said.items()]
    return ["## Failed runs\n\n" + "\n".join(lines)] if lines else []


def latex(result: BenchResult) -> str:
    """One ``tabular`` per dataset, shift and model, for the package booktabs."""
    tables = [replace(t, title=f"{result.title}: {t.title}") for t in _blocks(result.records)]
    head = f"% gduq bench {result.name} --scale {result.scale}"
    return "\n\n".join([head, *map(text_tables.to_latex, tables)]) + "\n"


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
