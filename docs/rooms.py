"""What docs/architecture.md says of the house, from the house: ``python docs/rooms.py``.

Writes the picture ``docs/rooms.svg``, the table of rooms, the files in which things named as
``file.py::Name`` live today, and the examples of ``docs/extend`` into ``docs/extend.md``. A test
compares what is written with what is so. What counts as an import, and the layers, are those of
``tests/test_house.py``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from rooms_picture import Room, picture  # noqa: E402
from tests.test_house import FILES, LAYER, MODULES, imports, room  # noqa: E402

__all__ = ["DOCS", "EXAMPLES", "NAMED", "defined", "named_by", "rooms", "written"]

DOCS = ROOT / "docs"
EXAMPLES = sorted((DOCS / "extend").glob("*.py"))
NAMED = re.compile(r"`([\w/]+\.py)::([\w.]+)`")
_TABLE = "<!-- rooms: written by docs/rooms.py -->\n", "<!-- end of rooms -->\n"


@cache
def written() -> dict[Path, str]:
    """All files this script writes, as they should be."""
    pages = {
        name: (DOCS / name).read_text(encoding="utf-8") for name in ("architecture.md", "extend.md")
    }
    found = rooms()
    return {
        DOCS / "rooms.svg": picture(found),
        DOCS / "architecture.md": _with_places(_with_table(pages["architecture.md"], found)),
        DOCS / "extend.md": _with_places(_with_examples(pages["extend.md"])),
    }


# -- rooms ---------------------------------------------------------------------------------------


def rooms() -> dict[str, Room]:
    """All rooms by name, the lowest first."""
    members: dict[tuple[str, int], list[str]] = {}
    for module in MODULES:
        place = room(module)
        assert place is not None, f"{module} has no layer in tests/test_house.py"
        members.setdefault((place.split(".")[0], LAYER[place]), []).append(module)
    names = {key: _name(key[0], found, members) for key, found in members.items()}
    home = {module: names[key] for key, found in members.items() for module in found}
    on: dict[str, set[str]] = {name: set() for name in names.values()}
    for module in MODULES:
        split = len({home[m] for m in MODULES if m.startswith(f"{module}.")} - {home[module]}) > 0
        if not split:  # the front door of a package in several layers is in none of them
            on[home[module]] |= {home[m] for m in _used(module)} - {home[module]}
    files = {name for name in on if (FILES["gduq"].parent / f"{name}.py").is_file()}
    found: dict[str, Room] = {}
    for key in sorted(members, key=lambda key: (key[1], key[0])):
        name = names[key]
        ground = name in files and all(found[there].ground for there in on[name])
        found[name] = Room(name, _says(name), frozenset(on[name]), ground)
    return found


def _name(package: str, found: list[str], members: Mapping[tuple[str, int], list[str]]) -> str:
    """The package's name; of a package in several layers only the largest part has it."""
    parts = [part for (name, _), part in members.items() if name == package]
    if found is max(parts, key=len):
        return package
    inner = [module for module in found if module != f"gduq.{package}"]
    return inner[0].removeprefix("gduq.")


def _says(name: str) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(_tree(f"gduq.{name}")) or ""
    first = re.split(r"(?<=[.:])\s", " ".join(text.split("\n\n")[0].split()))
    joined = " ".join(first[:2]) if first[0].endswith(":") else first[0]
    return joined.replace("`", "").rstrip(".:")


def _used(module: str) -> set[str]:
    """The modules that a module takes something from, front doors looked through."""
    named = named_by(module)
    doors = {name for name in named if any(other.startswith(f"{name}.") for other in named)}
    found = {_home(name) for name in named - doors}
    return {name for name in found if name in MODULES} - {module}


def _home(name: str) -> str:
    """Where a name lives that a package's front door hands on."""
    package, _, last = name.rpartition(".")
    if name in FILES or package not in FILES or FILES[package].name != "__init__.py":
        return name if name in FILES else package
    for node in ast.walk(_tree(package)):
        if isinstance(node, ast.ImportFrom) and last in {a.asname or a.name for a in node.names}:
            return _home(f"{node.module}.{last}")
    return package


def _with_table(page: str, found: Mapping[str, Room]) -> str:
    lines = ["| room | what lives there | imports from |", "|---|---|---|"]
    for one in reversed(found.values()):
        on = ", ".join(sorted(one.on - {"errors"})) or "nothing"
        lines.append(f"| {one.name} | {one.says.replace('|', '&#124;')} | {on} |")
    begin, end = _TABLE
    table = "\n".join(lines)
    return f"{page.split(begin)[0]}{begin}\n{table}\n\n{end}{page.split(end)[1]}"


# -- places --------------------------------------------------------------------------------------


@cache
def named_by(module: str) -> frozenset[str]:
    """The full names that a module imports."""
    return frozenset(imports(module))


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@cache
def defined(module: str) -> frozenset[str]:
    """Functions, classes, their methods and constants that a module defines."""
    found: set[str] = set()
    for node in _tree(module).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (n.name for n in node.body if isinstance(n, ast.FunctionDef))
            found |= {f"{node.name}.{name}" for name in inner}
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            named = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for name in named if isinstance(name, ast.Name)}
    return frozenset(found)


def _with_places(page: str) -> str:
    """``file.py::Name`` with the file that defines the name today; one in the same room first."""
    paths = {m: path.relative_to(ROOT / "src" / "gduq").as_posix() for m, path in FILES.items()}

    def place(match: re.Match[str]) -> str:
        homes = [paths[m] for m in FILES if match[2] in defined(m)]
        near = [path for path in homes if path.split("/")[0] == match[1].split("/")[0]]
        for found in ([match[1]] if match[1] in homes else [], near, homes):
            if len(found) == 1:
                return f"`{found[0]}::{match[2]}`"
        return match[0]

    return NAMED.sub(place, page)


def _with_examples(page: str) -> str:
    """Every block of code that starts like an example is that example."""
    for path in EXAMPLES:
        code = path.read_text(encoding="utf-8").rstrip()
        start = "```python\n" + code.splitlines()[0] + "\n"
        before, rest = page.split(start)
        page = f"{before}```python\n{code}\n```{rest.split('```', 1)[1]}"
    return page


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
