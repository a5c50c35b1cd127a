"""Which files and folders hold graphs: told without torch, before anything is read."""

from __future__ import annotations

from pathlib import Path

from gduq.data.table import SHEETS, is_table
from gduq.errors import InputError

__all__ = ["FORMATS", "check_source", "tu_name"]

FORMATS = "a .csv or .tsv table, a .safetensors file of graphs, or a TU folder"


def check_source(path: Path) -> None:
    """Raise unless there is a file or folder that can be read."""
    if not path.exists():
        raise InputError(FORMATS, f"{path}, which does not exist")
    if path.is_dir():
        tu_name(path)
    elif not path.is_file() or not (is_table(path) or path.suffix == ".safetensors"):
        do = "Save it as CSV." if path.suffix in SHEETS else ""
        if path.suffix in (".pt", ".pth", ".pkl", ".pickle"):
            do = "A pickle could run any code: load it yourself, then gduq.data.save(graphs, path)."
        raise InputError(FORMATS, path.name, do)


def tu_name(folder: Path) -> tuple[Path, str]:
    """The folder that holds ``NAME_A.txt``, which may be ``raw`` inside, and the name."""
    found = [*folder.glob("*_A.txt"), *folder.glob("raw/*_A.txt")]
    if len(found) != 1:
        got = f"{len(found)} of them" if found else "none"
        raise InputError(f"a TU folder with one NAME_A.txt in {folder}", got, f"Pass {FORMATS}.")
    return found[0].parent, found[0].name.removesuffix("_A.txt")
