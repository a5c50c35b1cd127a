"""From the tables of `gduq bench` to RESULTS.md, results/ and the README's headline table.

With ``--root`` the tables and runs on disk are collected into ``results/summary.json`` first; all
pages are then made from that file (and from the notes in ``results/notes.toml``) alone. With
``--page FILE`` all of them are also written as one HTML page.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gduq.errors import InputError
from results_bars import bars
from results_html import html_page
from results_pages import pages
from results_picture import picture
from results_readme import readme_block

REPOSITORY = Path(__file__).parents[1]
SUMMARY, NOTES, PICTURE = "results/summary.json", "results/notes.toml", "results/headline.svg"
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->"
_ORDER = ("about", "bars", "schedule", "choices", "tables", "tests", "records")


def to_json(summary: Mapping[str, Any]) -> str:
    """The summary with one record a line, so that a change shows as the lines that changed."""
    parts = []
    for name in _ORDER:
        content = summary[name]
        if isinstance(content, list):
            lines = ",\n".join(_line(item) for item in content)
            parts.append(f'"{name}": [\n{lines}\n]' if content else f'"{name}": []')
        else:
            parts.append(f'"{name}": {_line(content)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_notes(path: Path) -> dict[str, str]:
    """Notes by bar, from a TOML file."""
    try:
        import tomllib  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
    return dict(tomllib.loads(path.read_text(encoding="utf-8"))["bars"]) if path.is_file() else {}


def files(summary: Mapping[str, Any], readme: str) -> dict[str, str]:
    """Everything that follows from a summary: file names and texts.

    Args:
        summary: With its bars.
        readme: The README as it is; what stands between the marks is replaced.
    """
    if BEGIN not in readme or END not in readme.split(BEGIN)[1]:
        raise InputError("the marks of the results in README.md", "none", f"Add {BEGIN}{END}.")
    before, rest = readme.split(BEGIN)
    new = f"{before}{BEGIN}{readme_block(summary)}{END}{rest.split(END)[1]}"
    return {
        SUMMARY: to_json(summary),
        **pages(summary),
        "README.md": new,
        PICTURE: picture(summary),
    }


def write(summary: Mapping[str, Any], folder: Path) -> list[str]:
    """Write `files`, and remove pages of tables that are no longer there."""
    made = files(summary, (folder / "README.md").read_text(encoding="utf-8"))
    (folder / "results").mkdir(exist_ok=True)
    for old in (folder / "results").glob("*.md"):
        if f"results/{old.name}" not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return list(made)


def _copy_figures(summary: Mapping[str, Any], roots: Sequence[Path], folder: Path) -> None:
    for name in (figure for table in summary["tables"] for figure in table["figures"]):
        found = [root / "tables" / name for root in roots if (root / "tables" / name).is_file()]
        if found:
            shutil.copyfile(found[0], folder / "results" / name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--root", type=Path, nargs="+", help="folders of gduq bench; else only pages"
    )
    parser.add_argument("--scale", nargs="+", default=["paper", "small"], help="the first counts")
    parser.add_argument("-o", "--output", type=Path, default=REPOSITORY, help="the repository")
    parser.add_argument("--page", type=Path, help="also write all of it as one HTML page")
    options = parser.parse_args(arguments)
    folder = options.output
    try:
        if options.root:
            from results_collect import collect

            summary = collect(options.root, options.scale)
            (folder / "results").mkdir(exist_ok=True)
            _copy_figures(summary, options.root, folder)
        else:
            summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        summary["bars"] = bars(summary, read_notes(folder / NOTES))
        written = write(summary, folder)
        if options.page is not None:
            text = html_page(pages(summary), picture(summary), folder)
            options.page.parent.mkdir(parents=True, exist_ok=True)
            options.page.write_text(text, encoding="utf-8")
            written.append(str(options.page))
    except (InputError, OSError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    for bar in summary["bars"]:
        print({True: "met    ", False: "NOT MET", None: "unknown"}[bar["met"]], bar["what"])
    print(f"wrote {', '.join(written)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
