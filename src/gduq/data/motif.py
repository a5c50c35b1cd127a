"""Motif: base graph plus motif, the motif is the class (after GOODMotif; see GOOD, NeurIPS 2022).

A graph is a base (wheel, tree, ladder, star or path of a given width), a five-node motif (house,
cycle or crane) tied to a random base node by one edge, and a few noise edges. A tenth of the labels
is drawn anew, so no classifier is right in more than 93.3 % of the cases. **The motif is the last
five nodes of every graph.**
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gduq._checks import one_of
from gduq.data.cache import cached
from gduq.data.catalog import SHIFTS
from gduq.data.laplacian import add_laplacian
from gduq.data.motif_graphs import MOTIFS, MotifRecipe, build_motif
from gduq.graphs.packed import Packed
from gduq.graphs.splits import Splits
from gduq.shifts.cuts import Cut, leave_out, no_shift
from gduq.shifts.domains import DatasetRows

__all__ = ["draw_recipe", "load_motif"]

VERSION = 2
_TRAIN_RATIOS = (0.99, 0.97, 0.95)  # share of graphs whose base or size follows the motif


def load_motif(
    domain: str, shift: str, root: str | Path | None = None, seed: int = 0, pe: int = 0
) -> Splits:
    """30 000 Motif graphs, cut as in GOOD by ``"basis"`` or ``"size"``; with ``pe`` so many columns
    of Laplacian encoding **instead of** the constant feature ``x``."""
    name = f"motif{'-lpe' if pe else ''}/{domain}/{shift}"
    key = {"name": name, "version": VERSION, "seed": seed, "pe": pe}

    def build() -> Packed:
        generator = torch.Generator().manual_seed(seed)
        recipe, cut = draw_recipe(domain, shift, generator)
        packed = build_motif(recipe, generator, cut)
        return add_laplacian(packed, pe, keep_x=False) if pe else packed

    packed = cached(root, key, build)
    cut = {k.removeprefix("rows/"): v for k, v in packed.extras.items() if k.startswith("rows/")}
    splits = DatasetRows(packed, "graph").splits(
        cut, packed.extras["domain"], name=name, description=_description(domain, shift, pe)
    )
    return splits.with_(class_names=MOTIFS, sources=("generated on this machine",))


# -- what to build ---------------------------------------------------------------------------------


def draw_recipe(
    domain: str, shift: str, generator: torch.Generator, total: int = 30000
) -> tuple[MotifRecipe, Cut]:
    """Bases, widths and motifs of a setting, and which graphs belong to which split."""
    one_of("a Motif domain", domain, ("basis", "size"))
    one_of("a shift", shift, SHIFTS)
    draw = {"covariate": _covariate, "concept": _concept, "no_shift": _no_shift}[shift]
    return draw(domain, generator, total)


def _covariate(domain: str, generator: torch.Generator, total: int) -> tuple[MotifRecipe, Cut]:
    tenth = total // 10
    counts = (total - 2 * tenth, tenth, tenth)
    pools = ((0, 1, 2), (3,), (4,)) if domain == "basis" else ((6, 10, 15), (30,), (70,))
    parts = []
    for count, pool in zip(counts, pools, strict=True):
        chosen = torch.tensor(pool)[_randint(0, len(pool), count, generator)]
        motif = _randint(0, 3, count, generator)
        parts.append(_recipe(domain, chosen, motif, generator))
    return MotifRecipe.concatenate(parts), _cut(counts, int(0.1 * total), generator)


def _concept(domain: str, generator: torch.Generator, total: int) -> tuple[MotifRecipe, Cut]:
    fifth = total // 5
    values = torch.tensor((0, 1, 2) if domain == "basis" else (10, 40, 70))
    parts = []
    for ratio in (*_TRAIN_RATIOS, 0.3, 0.0):
        motif = _randint(0, 3, fifth, generator)
        follows = torch.rand(fifth, generator=generator) < ratio
        index = torch.where(follows, motif, _randint(0, 3, fifth, generator))
        parts.append(_recipe(domain, values[index], motif, generator))
    counts = (3 * fifth, fifth, fifth)
    return MotifRecipe.concatenate(parts), _cut(counts, int(0.15 * counts[0]), generator)


def _no_shift(domain: str, generator: torch.Generator, total: int) -> tuple[MotifRecipe, Cut]:
    motif = torch.arange(3).repeat_interleave(total // 3)
    base = _randint(0, 5, motif.numel(), generator)
    width = 10 + _randint(-5, 6, motif.numel(), generator)
    cut = no_shift(motif.numel(), seed=generator)
    return MotifRecipe(base, width, motif, base if domain == "basis" else width), cut


def _recipe(domain: str, chosen: Tensor, motif: Tensor, generator: torch.Generator) -> MotifRecipe:
    """Base (or nominal size) as chosen; the other one is free."""
    jitter = _randint(-5, 6, motif.numel(), generator)
    if domain == "basis":
        return MotifRecipe(chosen, 10 + jitter, motif, chosen)
    base = _randint(0, 5, motif.numel(), generator)
    return MotifRecipe(base, chosen + jitter, motif, chosen)


def _cut(counts: tuple[int, int, int], holdout: int, generator: torch.Generator) -> Cut:
    pool, val, test = torch.arange(sum(counts)).split(list(counts))
    return leave_out(pool, val, test, holdout, generator)


def _randint(low: int, high: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(low, high, (count,), generator=generator)


def _description(domain: str, shift: str, pe: int) -> str:
    what = "base graph" if domain == "basis" else "size of the base graph"
    how = {
        "covariate": f"training and test differ in the {what}",
        "concept": f"the {what} goes with the motif in training and not in the tests",
        "no_shift": "no shift",
    }[shift]
    features = "The only node feature is the constant 1."
    if pe:
        features = (
            f"Node features are {pe} Laplacian eigenvectors (attribute pe); which encoding the "
            "paper used is not known, this one is our own choice."
        )
    return (
        "Motif: 30000 graphs of a base and a house, cycle or crane; the class is the motif, and a "
        f"tenth of the labels is drawn anew. {how.capitalize()}. {features}"
    )
