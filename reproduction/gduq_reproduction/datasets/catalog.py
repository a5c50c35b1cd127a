"""The table of names, for `gduq.data.load`. Loaders are imported on use.

`pyproject.toml` points here: the entry point ``reproduction`` of the group ``gduq.datasets``.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gduq.data.catalog import SHIFTS, Family

if TYPE_CHECKING:
    from gduq.data import Splits

__all__ = ["FAMILIES"]

_SOURCES = {  # the loader, which parts of the name it takes, and what it reads
    "webkb": ("webkb:load_webkb", (2,), "text files of Geom-GCN (PyG WebKB)"),
    "citation": ("citation:load_citation", (0, 1, 2), "npz file (PyG CitationFull, Coauthor)"),
    "cmnist": ("images:load_cmnist", (2,), "MNIST images, superpixels by scikit-image ([images])"),
    "rotmnist": ("images:load_rotmnist", (1,), "MNIST images, superpixels ([images])"),
    "motif": ("motif:load_motif", (1, 2), "generated"),
    "sst2": ("text:load_sst2", (2,), "SST-2 sentences, spaCy ([text])"),
    "molecules": ("molecules:load_molecules", (1, 2), "table of MoleculeNet, read by RDKit"),
    "tu": ("tu:load_tu", (1,), "TU collection (PyG TUDataset)"),
}


def _load(
    where: str, parts: tuple[int, ...], name: list[str], root: str | Path | None, seed: int,
    limit: int | None,
) -> Splits:  # fmt: skip
    """Call a loader with some parts of a dataset's name; images and text make ``limit`` graphs
    only, of others rows are left out later."""
    module, _, function = where.partition(":")
    loader = getattr(import_module(f"gduq_reproduction.datasets.{module}"), function)
    more = (limit,) if module in ("images", "text") else ()
    return loader(*(name[i] for i in parts), root, seed, *more)  # type: ignore[no-any-return]


def _family(
    kind: str, rows: int | str, classes: int, domain: str, shifts: tuple[str, ...] = SHIFTS
) -> Family:
    task = "node" if kind in ("webkb", "citation") else "graph"
    where, parts, source = _SOURCES[kind]
    load = partial(_load, where, parts)
    return Family(task, f"{rows} {task}s", classes, domain, source, load, shifts)


# fmt: off
_CITATION = {"cora": (19793, 70), "cora-ml": (2995, 7), "citeseer": (4230, 6), "dblp": (17716, 4),
             "pubmed": (19717, 3), "coauthor-cs": (18333, 15), "coauthor-physics": (34493, 5)}
_MOLECULES = {"esol": (1128, 0), "freesolv": (642, 0), "lipo": (4200, 0), "bbbp": (2039, 2),
              "bace": (1513, 2)}  # rows, and classes if there are any
_TU: dict[str, int | str] = {"NCI1": 4110, "NCI109": 4127, "PROTEINS": 1113, "DD": 1178,
                             "MUTAG": 188, "*": "any number of"}
_CUTS = ("scaffold", "size")
FAMILIES: dict[str, Family] = {
    "webkb/university": _family("webkb", 617, 5, "university"),
    **{
        f"{name}/{short}": _family("citation", *counts, domain)
        for name, counts in _CITATION.items()
        for short, domain in (("word", "word count"), ("degree", "degree"))
    },
    "cmnist/color": _family("cmnist", 70000, 10, "colour"),
    "rotmnist": _family("rotmnist", 70000, 10, "angle or noise", ("rotation", "noise")),
    **{f"motif-exact/{domain}": _family("motif", 30000, 3, domain) for domain in ("basis", "size")},
    "sst2/length": _family("sst2", 70042, 2, "sentence length"),
    **{f"molecules/{name}": _family("molecules", *counts, "scaffold or size", _CUTS)
       for name, counts in _MOLECULES.items()},
    **{f"tu/{name}": _family("tu", rows, 2, "graph size", ("size",)) for name, rows in _TU.items()},
}
# fmt: on
