"""Every dataset by name: `load` and the one table of names. Loaders are imported on use."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gduq.data.whole import whole
from gduq.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from gduq.data.view import Splits, View

__all__ = ["FAMILIES", "Family", "find", "limited", "load", "names"]

SHIFTS = ("covariate", "concept", "no_shift")
_GENERATED = "generated on the spot"
_GRAPH2GAUSS = "npz file of graph2gauss (PyG CitationFull)"
_SHCHUR = "npz file of gnn-benchmark (PyG Coauthor)"
_TU = "TU collection (PyG TUDataset)"
_MOLECULES = "table of MoleculeNet, read by RDKit ([molecules])"
_MNIST = "MNIST images, superpixels by scikit-image ([images])"


@dataclass(frozen=True)
class Family:
    """Datasets that differ in their shift only; the last part of a name is the shift.

    ``classes`` is 0 where the target is a value.
    """

    task: str
    rows: str
    classes: int
    domain: str
    source: str
    load: Callable[[list[str], str | Path | None, int, int | None], Splits]
    shifts: tuple[str, ...] = SHIFTS


def load(
    name: str, root: str | Path | None = None, seed: int = 0, limit: int | None = None
) -> Splits:
    """A benchmark by name, cut for training and for judging under shift.

    Args:
        name: One of `names`, such as ``"motif/basis/covariate"``; ``tu/<NAME>/size`` takes any name
            of the TU collection.
        root: Folder for processed and downloaded files; ``None`` means ``GDUQ_CACHE``, else the
            user's cache folder. Raw files are looked up under ``GDUQ_DATA`` first, which is never
            written to.
        seed: Of all that is random: generated graphs, splits, colours.
        limit: Rows (graphs or labelled nodes) in all splits together, drawn in proportion; ``None``
            for all.

    Example:
        >>> import tempfile
        >>> splits = load("cbas/color/covariate", root=tempfile.mkdtemp())
        >>> {split: len(view) for split, view in splits}
        {'train': 420, 'id_val': 70, 'id_test': 70, 'ood_val': 70, 'ood_test': 70}
    """
    family = find(name)
    seed = whole("seed", seed, least=0)
    limit = None if limit is None else whole("limit", limit)
    return family.load(name.split("/"), root, seed, limit)


def names() -> tuple[str, ...]:
    """Every name that `load` knows (and any other ``tu/<NAME>/size``).

    Example:
        >>> names()[:2]
        ('motif/basis/covariate', 'motif/basis/concept')
    """
    return tuple(f"{name}/{s}" for name, family in FAMILIES.items() for s in family.shifts)


def find(name: str) -> Family:
    """The family a name belongs to; an unknown name raises `InputError` with near ones."""
    if not isinstance(name, str):
        raise InputError("the name of a dataset", repr(name), "`gduq data list` shows all.")
    start, _, shift = name.rpartition("/")
    if start in FAMILIES and shift in FAMILIES[start].shifts:
        return FAMILIES[start]
    if start.startswith("tu/") and start.count("/") == 1 and len(start) > 3 and shift == "size":
        return FAMILIES["tu/NCI1"]
    known = {one.lower(): one for one in names()}
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4)
    near = near or [one for one in known if one.startswith(name.lower().split("/")[0])][:5]
    near = [known[one] for one in near]
    hint = f"Near: {', '.join(near)}. " if near else ""
    raise InputError("the name of a dataset", repr(name), f"{hint}`gduq data list` shows all.")


# -- one small function a loader: imports stay here ------------------------------------------------


def _motif(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.motif import load_motif

    pe = 4 if parts[0] == "motif-lpe" else 0
    return limited(load_motif(parts[1], parts[2], root, seed, pe), limit, seed)


def _cbas(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.cbas import load_cbas

    return limited(load_cbas(parts[2], root, seed), limit, seed)


def _webkb(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.webkb import load_webkb

    return limited(load_webkb(parts[2], root, seed), limit, seed)


def _citation(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.citation import load_citation

    return limited(load_citation(parts[0], parts[1], parts[2], root, seed), limit, seed)


def _tu(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.tu import load_tu

    return limited(load_tu(parts[1], root, seed), limit, seed)


def _cmnist(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.images import load_cmnist

    return load_cmnist(parts[2], root, seed, limit)


def _rotmnist(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.images import load_rotmnist

    return load_rotmnist(parts[1], root, seed, limit)


def _sst2(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.text import load_sst2

    return load_sst2(parts[2], root, seed, limit)


def _molecules(parts: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.molecules import load_molecules

    return limited(load_molecules(parts[1], parts[2], root, seed), limit, seed)


def limited(splits: Splits, limit: int | None, seed: int) -> Splits:
    """``limit`` rows in all splits together: each in proportion, and so its classes."""
    if limit is None:
        return splits
    import torch

    from gduq.data.subset import shrink

    labels = {name: view.target for name, view in splits if _has_classes(view)}
    kept = shrink({name: torch.arange(len(view)) for name, view in splits}, limit, seed, labels)
    kept = {name: rows.sort().values for name, rows in kept.items()}  # as masks have them
    views = {name: view.take(kept[name]) for name, view in splits}
    domains = {name: values[kept[name]] for name, values in splits.domains.items()}
    return splits.with_(**views, domains=domains)


def _has_classes(view: View) -> bool:
    try:
        target = view.target
    except InputError:  # graphs without labels
        return False
    return target.numel() == len(view) and not target.is_floating_point()


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
}
