"""The tables of the paper: a digest for RESULTS.md and a page each with everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results_cells import NAMES, OOD, T2, TS, VANILLA, Method, mean
from results_text import METRICS, Record, Verdicts, column, figure, markdown, number

_DIGEST = ("accuracy", "ece", "ece100", "auroc", "gep_error", "epoch_ratio", "train_ratio",
           "predict_ratio")  # fmt: skip
_EXACT = ("parameters", "anchor-gaussians")  # these are compared figure by figure


def _title(table: Record) -> str:
    row = f"{table['row']}. " if table["row"] is not None else ""
    return f"{row}{table['name']}: {table['title']}"


def _facts(table: Record) -> str:
    """Command, labels and notes of a table."""
    labels = f" Paper: {', '.join(table['labels'])}." if table["labels"] else ""
    failed = f" Failed runs: {'; '.join(table['failures'])}." if table["failures"] else ""
    hours = f", {table['hours']:g} hours of training" if table["hours"] else ""
    return f"`{table['command']}`{hours}.{labels} {table['note']}{failed}".rstrip()


def digest(summary: Mapping[str, Any], table: Record) -> str:
    """What stands of a table in RESULTS.md."""
    name = table["name"]
    if not table["made"]:
        return f"### {_title(table)}\n\n`{table['command']}`: not run."
    records = [r for r in summary["records"] if r["table"] == name and r["mean"] is not None]
    facts = f"{_facts(table)} Full table: [results/{name}.md](results/{name}.md)."
    inner = _agreement(records) if name in _EXACT else _means(records)
    return "\n\n".join(filter(None, [f"### {_title(table)}", facts, inner]))


def _agreement(records: Sequence[Record]) -> str:
    there = [r for r in records if r["paper"] is not None]
    close = [abs(r["mean"] - r["paper"]) <= 0.01 * abs(r["paper"]) for r in there]
    equal = [r["mean"] == r["paper"] for r in there]
    return (
        f"{len(records)} figures, {len(there)} of them in the paper: {sum(equal)} are equal, "
        f"{sum(close)} agree within 1 %."
    )


def _means(records: Sequence[Record]) -> str:
    """A row a method: means over networks, and beside the paper's over those it prints."""
    uncalibrated = [r for r in records if r["split"] in (OOD, "") and _shown(r)]
    asked = {r["metric"] for r in uncalibrated if (r["variant"], r["calibrator"]) == VANILLA}
    metrics = [m for m in _DIGEST if m in asked]  # what other tables lack may stand here too
    if not metrics:
        return ""
    printed = {m for m in metrics if any(_paper(r) for r in uncalibrated if r["metric"] == m)}
    rows = []
    for method in dict.fromkeys(Method(r["variant"], r["calibrator"]) for r in uncalibrated):
        row = [NAMES.get(method, method.variant)]
        for metric in metrics:
            own = [r for r in uncalibrated if r["metric"] == metric
                   and (r["variant"], r["calibrator"]) == method]  # fmt: skip
            row.append(number(mean([r["mean"] for r in own]), metric) if own else "–")
            if metric in printed:
                row.append(_beside([r for r in own if _paper(r)], metric))
        rows.append([row[0], str(_cells(uncalibrated, method)), *row[1:]])
    heads = [h for m in metrics for h in ([METRICS[m], "ours / paper's"][: 1 + (m in printed)])]
    return markdown(["method", "networks", *heads], rows)


def _shown(r: Record) -> bool:
    method = Method(r["variant"], r["calibrator"])
    return r["calibrator"] == "none" or method in (T2, TS)


def _paper(r: Record) -> bool:
    """Whether the paper's figure is of the same measure: its ECE has 100 bins."""
    return r["paper"] is not None and r["metric"] != "ece"


def _cells(records: Sequence[Record], method: Method) -> int:
    own = [r for r in records if (r["variant"], r["calibrator"]) == method]
    return len({(r["dataset"], r["shift"], r["model"]) for r in own})


def _beside(records: Sequence[Record], metric: str) -> str:
    if not records:
        return "–"
    ours, theirs = (number(mean([r[k] for r in records]), metric) for k in ("mean", "paper"))
    return f"{ours} / {theirs} ({len(records)})"


def table_page(summary: Mapping[str, Any], table: Record) -> str:
    """A table in full: a block a cell, a line a method and calibrator."""
    verdicts = Verdicts(summary["tests"])
    own = [r for r in summary["records"] if r["table"] == table["name"]]
    legend = (
        "Mean ± standard deviation over seeds, the paper's figure in brackets (its ECE has 100 "
        "bins). **Bold** better, ▼ worse than vanilla with the same calibrator (paired t-test, "
        "p < 0.05). [All results](../RESULTS.md)."
    )
    parts = [f"# {_title(table)}", _facts(table), legend]
    for heading, records in _grouped(own):
        parts.append(f"## {heading}")
        parts += [_block(part, verdicts) for part in _narrow(records)]
    parts += [f"![{table['title']}]({figure_})" for figure_ in table["figures"]]
    return "\n\n".join(parts) + "\n"


def _grouped(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for r in records:
        groups.setdefault((r["dataset"], r["shift"], r["model"]), []).append(r)
    for group, members in groups.items():
        yield " · ".join(filter(None, group)), members


def _narrow(records: Sequence[Record], most: int = 16) -> Iterator[list[Record]]:
    """The records of a cell, or a part a metric where the table would be too wide."""
    metrics = list(dict.fromkeys(r["metric"] for r in records))
    if len({(r["metric"], r["split"]) for r in records}) <= most:
        yield list(records)
        return
    for metric in metrics:
        yield [r for r in records if r["metric"] == metric]


def _block(records: Sequence[Record], verdicts: Verdicts) -> str:
    columns = list(dict.fromkeys((r["metric"], r["split"]) for r in records))
    lines: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for r in records:
        line = lines.setdefault((r["variant"], r["calibrator"]), {})
        line[r["metric"], r["split"]] = figure(r, verdicts(r))
    body = [[*key, *(line.get(c, "") for c in columns)] for key, line in lines.items()]
    return markdown(["method", "calibrator", *(column(*c) for c in columns)], body)
