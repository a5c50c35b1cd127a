"""A user's own data: from a table, file, folder or dataset to `Splits`, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data import Splits, View
from gduq.data.catalog import limited
from gduq.data.packed import try_pack
from gduq.data.rejected_rows import Reject
from gduq.errors import InputError
from gduq.runs.source_cut import Domain, cut_rows, domain_of, strata_of
from gduq.runs.source_read import Read, has_masks, read_source
from gduq.shifts.domains import DatasetRows
from gduq.targets import Classes, Target, infer_target

if TYPE_CHECKING:
    from gduq.runs.config_parts import DataConfig

__all__ = ["OwnData", "own_data"]

_ROLES = {
    "train": "to learn from",
    "id_val": "like training, to stop and calibrate by",
    "id_test": "like training, to judge it at home",
    "ood_test": "unlike training, to judge it under shift",
}


@dataclass(frozen=True, eq=False)
class OwnData:
    """What became of a user's data.

    Attributes:
        splits: The rows, cut.
        target: What the targets are.
        by: What they were cut by.
        cut: The cut in words, one line per split.
        rejects: Row number and reason of every row that was left out.
    """

    splits: Splits
    target: Target
    by: str
    cut: tuple[str, ...]
    rejects: tuple[tuple[int, Reject], ...]

    @property
    def kind(self) -> str:
        """``"classes"``, ``"labels"`` or ``"values"``."""
        return self.target.kind


@lru_cache(maxsize=2)
def own_data(data: DataConfig) -> OwnData:
    """Read, check and cut what the config names; the last two are kept.

    Args:
        data: With a ``source``.
    """
    read = read_source(data)
    if has_masks(read.graphs):
        return _nodes(data, read)
    return _cut(data, read)


# -- cutting ---------------------------------------------------------------------------------------


def _cut(data: DataConfig, read: Read) -> OwnData:
    graphs = read.graphs
    packed: Sequence[Data] = try_pack(graphs) or graphs
    truth = View(packed).target
    target, names = _target(truth, read)
    by = data.by or ("scaffold" if "smiles" in graphs[0] else "size")
    domain = domain_of(by, graphs, read.fields)
    strata = strata_of(target.kind, truth)
    try:
        cut = cut_rows(domain, strata, data.seed)
    except InputError:
        if data.by is not None or by != "scaffold" or len(graphs) < 40:
            raise
        by, domain = "size", domain_of("size", graphs, None)  # most molecules have one scaffold
        cut = cut_rows(domain, strata, data.seed)
    values = torch.zeros(len(graphs)) if domain is None else domain.values
    splits = DatasetRows(packed, "graph").splits(
        cut, values, name=data.name, description=_description(data, by, read)
    )
    own = {"class_names": names, "target_names": read.target_names, "units": data.units}
    splits = splits.with_(**own, sources=(str(data.source),))
    splits = limited(splits, data.limit, data.seed, target.kind)
    told = None if data.limit else domain  # of all rows
    lines = _lines({name: len(view) for name, view in splits}, cut, told, graphs)
    return OwnData(splits, target, by, lines, tuple(read.rejects))


def _target(truth: Tensor, read: Read) -> tuple[Target, tuple[str, ...]]:
    """What the targets are, and the names of classes that are not just numbered."""
    target = infer_target(truth, len(read.class_names) or None, read.kind)
    if not isinstance(target, Classes):
        return target, ()
    return target, read.class_names or target.names or ()


def _description(data: DataConfig, by: str, read: Read) -> str:
    what = "molecules" if "smiles" in read.graphs[0] else "graphs"
    cut = "at random" if by == "random" else f"by {by}"
    count = len(read.rejects)
    left = f" {count} row{'s are' if count > 1 else ' is'} left out." if count else ""
    return f"{len(read.graphs)} {what} of {data.name}, cut {cut}.{left}"


def _lines(
    sizes: dict[str, int], cut: dict[str, Tensor], domain: Domain | None, graphs: Sequence[Data]
) -> tuple[str, ...]:
    what = "molecules" if "smiles" in graphs[0] else "graphs"
    found = []
    for split, size in sizes.items():
        told = "" if domain is None else f" ({domain.words(cut[split])})"
        found.append(f"{split:<9} {size} {what}{told}, {_ROLES[split]}")
    return tuple(found)


def _nodes(data: DataConfig, read: Read) -> OwnData:
    """One graph that says itself which nodes are for what."""
    (graph,) = read.graphs
    if data.by is not None:
        raise InputError("no --by for a graph with masks of its own", repr(data.by))
    masks = {"train": "train_mask", "id_val": "val_mask", "id_test": "test_mask"}
    missing = [mask for mask in masks.values() if graph.get(mask) is None]
    if missing or any(graph[mask].dim() > 1 for mask in masks.values()):
        raise InputError("train_mask, val_mask and test_mask of one column", missing or "several")
    views = {split: View(graph, graph[mask]) for split, mask in masks.items()}
    target, names = _target(torch.cat([view.target for view in views.values()]), read)
    splits = Splits(
        views["train"],
        views["id_val"],
        views["id_test"],
        name=data.name,
        description=f"{data.name}, cut by its masks.",
        class_names=names,
        sources=(str(data.source),),
    )
    splits = limited(splits, data.limit, data.seed, target.kind)
    sizes = {split: len(view) for split, view in splits}
    lines = tuple(f"{split:<9} {size} nodes, {_ROLES[split]}" for split, size in sizes.items())
    return OwnData(splits, target, "masks", lines, tuple(read.rejects))
