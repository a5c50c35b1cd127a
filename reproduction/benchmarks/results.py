"""From the figures of `gduq bench comparison` to the pages that people read.

    gduq bench comparison --scale small --root results
    gduq bench comparison --scale paper --root results
    python reproduction/benchmarks/results.py

reads ``results/comparison-*.csv`` and writes ``results/summary.json``, which holds all that a
page shows, and from it ``RESULTS.md``, ``results/comparison.html``, the block in the README and
``docs/replication.md``, with their pictures. Words stand in ``results/notes.toml``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from gduq.disk import write_text
from gduq_reproduction.comparison.comparison_table import read, table_path
from replication_pictures import replication_pictures
from results_html import comparison_page
from results_pages import readme_block, replication_page, results_page
from results_pictures import headline
from results_store import packed, unpacked
from results_summary import summary

ROOT = Path(__file__).parents[2]
SUMMARY = ROOT / "results/summary.json"
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT / "results", help="Where the tables are.")
    options = parser.parse_args()
    table, published = (read(table_path(options.root, scale)) for scale in ("small", "paper"))
    if not len(table):
        sys.exit(
            f"No figures in {options.root}: gduq bench comparison --scale small --root results"
        )
    write_text(SUMMARY, packed(summary(table, published)))
    found = unpacked(SUMMARY.read_text(encoding="utf-8"))
    for name, text in pages(found).items():
        write_text(ROOT / name, text)
    print(*("{what}: {got} ({wanted}) {met}".format(**bar) for bar in found["bars"]), sep="\n")


def pages(found: dict[str, Any]) -> dict[str, str]:
    """Every file that is made from the summary, by name."""
    notes = tomllib.loads((ROOT / "results/notes.toml").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    start, rest = readme.split(BEGIN)
    return {
        "RESULTS.md": results_page(found, notes),
        "README.md": start + BEGIN + readme_block(found) + END + rest.split(END)[1],
        "docs/replication.md": replication_page(found, notes),
        "results/comparison.html": comparison_page(found),
        "results/headline.svg": headline(found),
        **replication_pictures(found),
    }


if __name__ == "__main__":
    main()
