"""Datasets by name. gduq generates Motif and CBAS; a package adds others, as those of the paper,
with an entry point of the group ``gduq.datasets``: a mapping from names to `Family`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from gduq.errors import InputError, check_int, did_you_mean

if TYPE_CHECKING:
    from gduq.graphs.view import Splits
    from gduq.prediction import Target

__all__ = ["Family", "cache_root", "families", "find", "limit_splits", "load", "names"]

SHIFTS = ("covariate", "concept", "no_shift")


@dataclass(frozen=True)
class Family:
    """Datasets that differ in their shift only, the last part of a name. ``load`` takes the parts
    of a name, the root, the seed and the limit, which it may ignore."""

    task: str
    rows: str
    classes: int  # 0 where the target is a value
    domain: str
    source: str
    load: Callable[[list[str], str | Path | None, int, int | None], Splits]
    shifts: tuple[str, ...] = SHIFTS


def load(
    name: str, root: str | Path | None = None, seed: int = 0, limit: int | None = None
) -> Splits:
    """A benchmark by name, cut for training and for judging under shift.

    Args:
        name: One of `names`; ``tu/<NAME>/size`` takes any name of the TU collection.
        root: See `cache_root`. Raw files are looked up under ``GDUQ_DATA`` first.
        seed: Of all that is random: generated graphs, splits, colours.
        limit: Rows (graphs or labelled nodes) in all splits together, drawn in proportion.

    Example:
        >>> splits = load("cbas/color/covariate")
        >>> {split: len(view) for split, view in splits}
        {'train': 420, 'id_val': 70, 'id_test': 70, 'ood_val': 70, 'ood_test': 70}
    """
    family = find(name)
    seed = check_int("seed", seed, least=0)
    limit = None if limit is None else check_int("limit", limit)
    return limit_splits(family.load(name.split("/"), root, seed, limit), limit, seed, None)


def cache_root(root: str | Path | None = None) -> Path:
    """The folder for processed and downloaded files, made if need be: ``root``, else
    ``GDUQ_CACHE``, else the user's cache folder."""
    if root is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        root = os.environ.get("GDUQ_CACHE") or Path(home) / "gduq"
    folder = Path(root).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        do = "Pass root= or set GDUQ_CACHE."
        raise InputError("a folder that can be written as root", error, do) from error
    return folder


def names() -> tuple[str, ...]:
    """Every name that `load` knows (and any other ``tu/<NAME>/size``).

    Example:
        >>> "motif/basis/covariate" in names()
        True
    """
    listed = [(name, one) for name, one in families().items() if not name.endswith("/*")]
    return tuple(f"{name}/{shift}" for name, family in listed for shift in family.shifts)


def _generate(name: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.generated import load_cbas, load_motif

    if name[0] == "cbas":
        return load_cbas(name[2], seed)
    return load_motif(name[1], name[2], seed, pe=4 if name[0] == "motif-lpe" else 0)


@cache
def families() -> Mapping[str, Family]:
    """All datasets that gduq and installed packages offer, by name; ``*`` stands for any last
    part."""
    spot, found = "generated on the spot", dict[str, Family]()
    for name in ("motif", "motif-lpe"):
        for domain, differs in (("basis", "base graph"), ("size", "size of the base")):
            family = Family("graph", "30000 graphs", 3, differs, spot, _generate)
            found[f"{name}/{domain}"] = family
    found["cbas/color"] = Family("node", "700 nodes", 4, "colour", spot, _generate)
    for point in sorted(entry_points(group="gduq.datasets"), key=lambda point: point.name):
        found = point.load() | found  # a name that is taken keeps its meaning
    return found


def find(name: str) -> Family:
    """The family a name belongs to; an unknown name raises `InputError` with near ones."""
    start, _, shift = str(name).rpartition("/")
    above, _, last = start.rpartition("/")
    family = families().get(start) or (families().get(f"{above}/*") if last else None)
    if family is not None and shift in family.shifts:
        return family
    do = f"{did_you_mean(name, names(), otherwise='')} `gduq data list` shows all.".strip()
    if not any(point.name == "reproduction" for point in entry_points(group="gduq.datasets")):
        do += " The paper's others are a package; in a clone of gduq: pip install ./reproduction"
    raise InputError("the name of a dataset", repr(name), do)


def limit_splits(splits: Splits, limit: int | None, seed: int, target: Target | None) -> Splits:
    """``limit`` rows in all splits together: each in proportion, and so its classes (of values,
    its fifths); ``target`` is what the targets are, where that is known."""
    if limit is None:
        return splits
    import torch

    from gduq.prediction import infer_target
    from gduq.shifts.cuts import limit_rows

    strata = {}
    for name, view in splits:
        with suppress(InputError):  # graphs without labels
            known = target or infer_target(view.target, len(splits.class_names) or None)
            strata[name] = known.strata(view.target)
    kept = limit_rows({name: torch.arange(len(view)) for name, view in splits}, limit, seed, strata)
    kept = {name: rows.sort().values for name, rows in kept.items()}  # as masks have them
    views = {name: view.take(kept[name]) for name, view in splits}
    domains = {name: values[kept[name]] for name, values in splits.domains.items()}
    return splits.with_(**views, domains=domains)
