"""RESULTS.md and the pages of all tables as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 90rem; }
p, li { max-width: 60rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem; padding: .6rem 0; border-bottom: 1px solid
  var(--line); position: sticky; top: 0; background: Canvas; z-index: 1; }
section { padding-top: 1rem; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid
  var(--soft); }
td:first-child { min-width: 10rem; }
td:nth-child(n+3) { white-space: nowrap; }
th { position: sticky; top: 0; background: Canvas; }
img, svg { max-width: 100%; height: auto; }
code { background: var(--soft); padding: 0 .25em; border-radius: 3px; }
"""


def html_page(pages: Mapping[str, str], picture: str, folder: Path) -> str:
    """One page of all ``pages`` (file name: markdown), with the picture on top.

    Args:
        pages: As `results_pages.pages` makes them; the first is the summary.
        picture: SVG.
        folder: The repository, where figures are read from.
    """
    names = {name: _anchor(name) for name in pages}
    links = "".join(f'<a href="#{a}">{escape(a)}</a>' for a in names.values())
    sections = "\n".join(
        f'<section id="{names[name]}">{_html(text, name, names, folder)}</section>'
        for name, text in pages.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>gduq: results</title>'
        f"<style>{_STYLE}</style></head><body><nav>{links}</nav>"
        f"<figure>{picture}</figure>\n{sections}\n</body></html>\n"
    )


def _anchor(name: str) -> str:
    return Path(name).stem.lower()


def _html(text: str, name: str, names: Mapping[str, str], folder: Path) -> str:
    html: str = MarkdownIt("commonmark").enable("table").render(text)
    html = html.replace("<table>", '<div class="wide"><table>')
    html = html.replace("</table>", "</table></div>")
    here = Path(name).parent

    def link(found: re.Match[str]) -> str:  # to another section; files are not at hand
        target = (here / found[1]).as_posix()
        return f'<a href="#{names[target]}">{found[2]}</a>' if target in names else found[2]

    def image(found: re.Match[str]) -> str:
        file = folder / here / found[1]
        if not file.is_file():
            return found[0]
        kind = "svg+xml" if file.suffix == ".svg" else file.suffix[1:]
        return f'src="data:image/{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"'

    html = re.sub(r'<a href="([^"#:]+)">(.*?)</a>', link, html)
    return re.sub(r'src="([^":]+)"', image, html)
