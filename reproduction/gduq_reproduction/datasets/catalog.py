"""The table of names, for `gduq.data.load`. Loaders are imported on use.

`pyproject.toml` points here: the entry point ``reproduction`` of the group ``gduq.datasets``.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq.data.catalog import SHIFTS, Family

if TYPE_CHECKING:
    from gduq.data import Splits

__all__ = ["FAMILIES"]

_GRAPH2GAUSS = "npz file of graph2gauss (PyG CitationFull)"
_SHCHUR = "npz file of gnn-benchmark (PyG Coauthor)"
_GEOM_GCN = "text files of Geom-GCN (PyG WebKB)"
_MNIST = "MNIST images, superpixels by scikit-image ([images])"
_SENTENCES = "SST-2 sentences, spaCy ([text])"
_TABLE = "table of MoleculeNet, read by RDKit ([molecules])"
_TU = "TU collection (PyG TUDataset)"


def _load_from(
    where: str,
    parts: tuple[int, ...],
    own_limit: bool,
    name: list[str],
    root: str | Path | None,
    seed: int,
    limit: int | None,
) -> Splits:
    """Call the loader ``"module:function"`` of this package with some parts of a dataset's name,
    and with ``own_limit`` also with the limit."""
    module, _, function = where.partition(":")
    loader = getattr(import_module(f"gduq_reproduction.datasets.{module}"), function)
    more = (limit,) if own_limit else ()
    return loader(*(name[i] for i in parts), root, seed, *more)  # type: ignore[no-any-return]


def _load(where: str, parts: tuple[int, ...], own_limit: bool = False) -> Any:
    return partial(_load_from, where, parts, own_limit)


_webkb = _load("webkb:load_webkb", (2,))
_citation = _load("citation:load_citation", (0, 1, 2))
_cmnist = _load("images:load_cmnist", (2,), own_limit=True)
_rotmnist = _load("images:load_rotmnist", (1,), own_limit=True)
_sst2 = _load("text:load_sst2", (2,), own_limit=True)
_molecules = _load("molecules:load_molecules", (1, 2))
_tu = _load("tu:load_tu", (1,))


def _graphs(
    rows: int | str, classes: int, domain: str, source: str, load: Any, *shifts: str
) -> Family:
    return Family("graph", f"{rows} graphs", classes, domain, source, load, shifts or SHIFTS)


def _nodes(rows: int, classes: int, domain: str, source: str, load: Any) -> Family:
    return Family("node", f"{rows} nodes", classes, domain, source, load)


FAMILIES: dict[str, Family] = {
    "webkb/university": _nodes(617, 5, "university", _GEOM_GCN, _webkb),
}
for _name, _rows, _classes, _source in (
    ("cora", 19793, 70, _GRAPH2GAUSS),
    ("cora-ml", 2995, 7, _GRAPH2GAUSS),
    ("citeseer", 4230, 6, _GRAPH2GAUSS),
    ("dblp", 17716, 4, _GRAPH2GAUSS),
    ("pubmed", 19717, 3, _GRAPH2GAUSS),
    ("coauthor-cs", 18333, 15, _SHCHUR),
    ("coauthor-physics", 34493, 5, _SHCHUR),
):
    FAMILIES[f"{_name}/word"] = _nodes(_rows, _classes, "word count", _source, _citation)
    FAMILIES[f"{_name}/degree"] = _nodes(_rows, _classes, "degree", _source, _citation)
FAMILIES |= {
    "cmnist/color": _graphs(70000, 10, "colour", _MNIST, _cmnist),
    "rotmnist": _graphs(70000, 10, "angle or noise", _MNIST, _rotmnist, "rotation", "noise"),
    "sst2/length": _graphs(70042, 2, "sentence length", _SENTENCES, _sst2),
}
for _name, _rows, _classes in (
    ("esol", 1128, 0), ("freesolv", 642, 0), ("lipo", 4200, 0), ("bbbp", 2039, 2), ("bace", 1513, 2)
):  # fmt: skip
    FAMILIES[f"molecules/{_name}"] = _graphs(
        _rows, _classes, "scaffold or size", _TABLE, _molecules, "scaffold", "size"
    )
_TU_ROWS: dict[str, int | str] = {
    "NCI1": 4110, "NCI109": 4127, "PROTEINS": 1113, "DD": 1178, "MUTAG": 188, "*": "any number of"
}  # fmt: skip
for _name, _number in _TU_ROWS.items():
    FAMILIES[f"tu/{_name}"] = _graphs(_number, 2, "graph size", _TU, _tu, "size")
