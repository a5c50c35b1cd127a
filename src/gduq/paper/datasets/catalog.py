"""The table of names, for `gduq.data.load`. Loaders are imported on use.

`pyproject.toml` points here: the entry point ``paper`` of the group ``gduq.datasets``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gduq.data.catalog import Family, limited

if TYPE_CHECKING:
    from pathlib import Path

    from gduq.data.view import Splits

__all__ = ["FAMILIES"]

_GENERATED = "generated on the spot"
_GRAPH2GAUSS = "npz file of graph2gauss (PyG CitationFull)"
_SHCHUR = "npz file of gnn-benchmark (PyG Coauthor)"
_TU = "TU collection (PyG TUDataset)"
_MOLECULES = "table of MoleculeNet, read by RDKit ([molecules])"
_MNIST = "MNIST images, superpixels by scikit-image ([images])"


# -- one small function a loader: imports stay here ------------------------------------------------


def _motif(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.paper.datasets.motif import load_motif

    pe = 4 if parts[0] == "motif-lpe" else 0
    return limited(load_motif(parts[1], parts[2], root, seed, pe), limit, seed)


def _cbas(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.paper.datasets.cbas import load_cbas

    return limited(load_cbas(parts[2], root, seed), limit, seed)


def _webkb(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.paper.datasets.webkb import load_webkb

    return limited(load_webkb(parts[2], root, seed), limit, seed)


def _citation(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.paper.datasets.citation import load_citation

    return limited(load_citation(parts[0], parts[1], parts[2], root, seed), limit, seed)


def _tu(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.paper.datasets.tu import load_tu

    return limited(load_tu(parts[1], root, seed), limit, seed)


def _cmnist(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.paper.datasets.images import load_cmnist

    return load_cmnist(parts[2], root, seed, limit)


def _rotmnist(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.paper.datasets.images import load_rotmnist

    return load_rotmnist(parts[1], root, seed, limit)


def _sst2(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.paper.datasets.text import load_sst2

    return load_sst2(parts[2], root, seed, limit)


def _molecules(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.paper.datasets.molecules import load_molecules

    return limited(load_molecules(parts[1], parts[2], root, seed), limit, seed)


FAMILIES: dict[str, Family] = {
    "motif/basis": Family("graph", "30000 graphs", 3, "base graph", _GENERATED, _motif),
    "motif/size": Family("graph", "30000 graphs", 3, "size of the base", _GENERATED, _motif),
    "motif-lpe/basis": Family("graph", "30000 graphs", 3, "base graph", _GENERATED, _motif),
    "motif-lpe/size": Family("graph", "30000 graphs", 3, "size of the base", _GENERATED, _motif),
    "cbas/color": Family("node", "700 nodes", 4, "colour", _GENERATED, _cbas),
    "webkb/university": Family(
        "node", "617 nodes", 5, "university", "text files of Geom-GCN (PyG WebKB)", _webkb
    ),
    "cora/word": Family("node", "19793 nodes", 70, "word count", _GRAPH2GAUSS, _citation),
    "cora/degree": Family("node", "19793 nodes", 70, "degree", _GRAPH2GAUSS, _citation),
    "cora-ml/word": Family("node", "2995 nodes", 7, "word count", _GRAPH2GAUSS, _citation),
    "cora-ml/degree": Family("node", "2995 nodes", 7, "degree", _GRAPH2GAUSS, _citation),
    "citeseer/word": Family("node", "4230 nodes", 6, "word count", _GRAPH2GAUSS, _citation),
    "citeseer/degree": Family("node", "4230 nodes", 6, "degree", _GRAPH2GAUSS, _citation),
    "dblp/word": Family("node", "17716 nodes", 4, "word count", _GRAPH2GAUSS, _citation),
    "dblp/degree": Family("node", "17716 nodes", 4, "degree", _GRAPH2GAUSS, _citation),
    "pubmed/word": Family("node", "19717 nodes", 3, "word count", _GRAPH2GAUSS, _citation),
    "pubmed/degree": Family("node", "19717 nodes", 3, "degree", _GRAPH2GAUSS, _citation),
    "coauthor-cs/word": Family("node", "18333 nodes", 15, "word count", _SHCHUR, _citation),
    "coauthor-cs/degree": Family("node", "18333 nodes", 15, "degree", _SHCHUR, _citation),
    "coauthor-physics/word": Family("node", "34493 nodes", 5, "word count", _SHCHUR, _citation),
    "coauthor-physics/degree": Family("node", "34493 nodes", 5, "degree", _SHCHUR, _citation),
    "cmnist/color": Family("graph", "70000 graphs", 10, "colour", _MNIST, _cmnist),
    "rotmnist": Family(
        "graph", "70000 graphs", 10, "angle or noise", _MNIST, _rotmnist, ("rotation", "noise")
    ),
    "sst2/length": Family(
        "graph", "70042 graphs", 2, "sentence length", "SST-2 sentences, spaCy ([text])", _sst2
    ),
    "molecules/esol": Family(
        "graph", "1128 graphs", 0, "scaffold or size", _MOLECULES, _molecules, ("scaffold", "size")
    ),
    "molecules/freesolv": Family(
        "graph", "642 graphs", 0, "scaffold or size", _MOLECULES, _molecules, ("scaffold", "size")
    ),
    "molecules/lipo": Family(
        "graph", "4200 graphs", 0, "scaffold or size", _MOLECULES, _molecules, ("scaffold", "size")
    ),
    "molecules/bbbp": Family(
        "graph", "2039 graphs", 2, "scaffold or size", _MOLECULES, _molecules, ("scaffold", "size")
    ),
    "molecules/bace": Family(
        "graph", "1513 graphs", 2, "scaffold or size", _MOLECULES, _molecules, ("scaffold", "size")
    ),
    "tu/NCI1": Family("graph", "4110 graphs", 2, "graph size", _TU, _tu, ("size",)),
    "tu/NCI109": Family("graph", "4127 graphs", 2, "graph size", _TU, _tu, ("size",)),
    "tu/PROTEINS": Family("graph", "1113 graphs", 2, "graph size", _TU, _tu, ("size",)),
    "tu/DD": Family("graph", "1178 graphs", 2, "graph size", _TU, _tu, ("size",)),
    "tu/MUTAG": Family("graph", "188 graphs", 2, "graph size", _TU, _tu, ("size",)),
    "tu/*": Family("graph", "any number of graphs", 2, "graph size", _TU, _tu, ("size",)),
}
