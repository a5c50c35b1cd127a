"""Datasets by name: `load`, and who may add names.

gduq generates two itself, Motif and CBAS. A package adds datasets with an entry point of the group
``gduq.datasets``: a mapping from names to `Family`. Those of the paper come so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from gduq._checks import check_int
from gduq.errors import REPRODUCTION, InputError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from gduq.graphs.splits import Splits
    from gduq.prediction import Target

__all__ = ["Family", "families", "find", "limit_splits", "load", "names"]

SHIFTS = ("covariate", "concept", "no_shift")


@dataclass(frozen=True)
class Family:
    """Datasets that differ in their shift only, the last part of a name.

    ``load`` takes the parts of a name, the root, the seed and the limit, which it may ignore.
    """

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
        root: Folder for processed and downloaded files, see `gduq.data.cache.cache_root`. Raw files
            are looked up under ``GDUQ_DATA`` first, which is never written to.
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
    return limit_splits(family.load(name.split("/"), root, seed, limit), limit, seed)


def names() -> tuple[str, ...]:
    """Every name that `load` knows (and any other ``tu/<NAME>/size``).

    Example:
        >>> names()[:2]
        ('motif/basis/covariate', 'motif/basis/concept')
    """
    listed = {name: family for name, family in families().items() if not name.endswith("/*")}
    return tuple(f"{name}/{shift}" for name, family in listed.items() for shift in family.shifts)


def _motif(name: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.motif import load_motif

    return load_motif(name[1], name[2], root, seed, pe=4 if name[0] == "motif-lpe" else 0)


def _cbas(name: list[str], root: str | Path | None, seed: int, limit: int | None) -> Splits:
    from gduq.data.cbas import load_cbas

    return load_cbas(name[2], seed)


_ON_THE_SPOT = "generated on the spot"
_GENERATED = {
    f"{name}/{domain}": Family("graph", "30000 graphs", 3, differs, _ON_THE_SPOT, _motif)
    for name in ("motif", "motif-lpe")
    for domain, differs in (("basis", "base graph"), ("size", "size of the base"))
} | {"cbas/color": Family("node", "700 nodes", 4, "colour", _ON_THE_SPOT, _cbas)}


@cache
def families() -> Mapping[str, Family]:
    """All datasets that gduq and installed packages offer, by name; ``*`` stands for any last
    part."""
    found: dict[str, Family] = dict(_GENERATED)
    for point in sorted(entry_points(group="gduq.datasets"), key=lambda point: point.name):
        offered = point.load()
        twice = sorted(found.keys() & offered.keys())
        if twice:
            got = f"{twice[0]!r} once more from {point.value}"
            raise InputError("names of datasets that no other package uses", got)
        found |= offered
    return found


def find(name: str) -> Family:
    """The family a name belongs to; an unknown name raises `InputError` with near ones."""
    if not isinstance(name, str):
        raise InputError("the name of a dataset", repr(name), "`gduq data list` shows all.")
    start, _, shift = name.rpartition("/")
    above, _, last = start.rpartition("/")
    family = families().get(start) or (families().get(f"{above}/*") if last else None)
    if family is not None and shift in family.shifts:
        return family
    do = f"{did_you_mean(name, names(), otherwise='')} `gduq data list` shows all.".strip()
    if not any(point.name == "reproduction" for point in entry_points(group="gduq.datasets")):
        do += f" The paper's other datasets are a package of their own. {REPRODUCTION}"
    raise InputError("the name of a dataset", repr(name), do)


def limit_splits(
    splits: Splits, limit: int | None, seed: int, target: Target | None = None
) -> Splits:
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
