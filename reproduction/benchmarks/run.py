"""`make bench`: every speed and memory figure, as ratios measured side by side in this run."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import torch

from timing import Row

PARTS = {  # name -> where its rows come from; each a module with rows()
    "core": "core",
    "routes": "routes",
    "data": "data",
    "superpixels": "superpixels",
    "calibrators": "calibrators",
    "metrics": "metrics",
    "serving": "serving",
}


def machine() -> str:
    """The machine in one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        model = lines[0].split(":")[1].strip() if lines else model
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{model}, {torch.get_num_threads()} cores, {versions}"


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| what | measured | bar | |", "|---|---|---|---|"]
    for row in rows:
        note = f" {row['note']}" if row["note"] else ""
        mark = "ok" if row["met"] else "**not met**"
        lines.append(f"| {row['row']} | {row['ratio']:.2f} | {row['bar']} | {mark}{note} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; default: all")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    chosen = parser.parse_args()
    unknown = [part for part in chosen.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    warnings.simplefilter("ignore")
    print(f"On {machine()}.\n", flush=True)
    found: list[Row] = []
    for part in chosen.parts or PARTS:
        rows: Callable[[], Iterator[Row]] = import_module(PARTS[part]).rows
        for row in rows():
            found.append(row)
            print(f"{row['ratio']:8.2f}  {row['bar']:9}  {row['row']}", file=sys.stderr, flush=True)
    print(table(found))
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": machine(), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
