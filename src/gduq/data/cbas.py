"""CBAS: coloured BA-Shapes, one graph of 700 nodes and 4 classes (after GOODCBAS).

300 nodes of a preferential-attachment graph (class 0) carry 80 houses (middle, bottom and roof:
classes 1, 2, 3). A node's only features are the four channels of its colour.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from gduq._checks import one_of
from gduq.data.catalog import SHIFTS
from gduq.graphs.view import Splits, View
from gduq.shifts.cuts import leave_out, make_splits

__all__ = ["CLASS_NAMES", "load_cbas"]

CLASS_NAMES = ("base", "middle", "bottom", "roof")
_BASE, _HOUSES = 300, 80
_HOUSE = ((0, 1), (0, 3), (0, 4), (1, 2), (1, 4), (2, 3))
_HOUSE_LABELS = (1, 1, 2, 2, 3)
_COVARIATE_COLOURS = (  # five of training, then ood_val and ood_test
    (1.0, 0.0, 0.0, 0.5),
    (0.0, 1.0, 0.0, 0.7),
    (0.0, 0.0, 1.0, 0.3),
    (1.0, 1.0, 0.0, 0.4),
    (0.0, 1.0, 1.0, 0.6),
    (1.0, 0.0, 1.0, 1.0),
    (0.0, 0.0, 0.0, 0.1),
)
_CONCEPT_COLOURS = (*_COVARIATE_COLOURS[:3], (1.0, 1.0, 0.0, 0.2))  # one per class
_RATIOS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.3, 0.0)  # colour follows the class


def load_cbas(shift: str, seed: int = 0) -> Splits:
    """CBAS with the domain colour; ``shift`` is covariate, concept or no_shift."""
    one_of("a shift", shift, SHIFTS)
    generator = torch.Generator().manual_seed(seed)
    first = _BASE + 5 * torch.arange(_HOUSES)[:, None]  # [80, 1]
    inside = (first[None] + torch.tensor(_HOUSE).t()[:, None]).flatten(1)  # [2, 480]
    ties = torch.randperm(_BASE, generator=generator)[:_HOUSES]
    edges = [_preferential(_BASE, 5, generator), inside, torch.stack([ties, first.flatten()])]
    y = torch.cat([torch.zeros(_BASE).long(), torch.tensor(_HOUSE_LABELS).repeat(_HOUSES)])
    edge_index = to_undirected(torch.cat(edges, 1), num_nodes=y.numel())
    order = torch.randperm(y.numel(), generator=generator)
    colour = torch.zeros_like(y)
    if shift == "covariate":
        for number, rows in enumerate(torch.split(order, [112] * 5 + [70, 70])):
            colour[rows] = number
        x = torch.tensor(_COVARIATE_COLOURS)[colour]
        cut = leave_out(order[:560], order[560:630], order[630:], 70, generator)
    elif shift == "concept":
        for ratio, rows in zip(_RATIOS, torch.split(order, [84] * 5 + [140, 140]), strict=True):
            follows = torch.rand(rows.numel(), generator=generator) < ratio
            free = torch.randint(0, 4, (rows.numel(),), generator=generator)
            colour[rows] = torch.where(follows, y[rows], free)
        x = torch.tensor(_CONCEPT_COLOURS)[colour]
        cut = leave_out(order[:420], order[420:560], order[560:], 140, generator)
    else:
        x, parts = torch.ones(y.numel(), 4), order.split([420, 140, 140])
        cut = dict(zip(("train", "id_val", "id_test"), parts, strict=True))
    text = f"CBAS: houses on a random graph; the class is a node's place. Shift of colour: {shift}."
    nodes = View(Data(x, edge_index, y=y), torch.ones_like(y, dtype=torch.bool))
    splits = make_splits(nodes, cut, colour, name=f"cbas/color/{shift}", description=text)
    return splits.with_(class_names=CLASS_NAMES)


def _preferential(nodes: int, each: int, generator: torch.Generator) -> Tensor:
    """A preferential-attachment graph: every new node draws ``each`` ends by degree, with
    replacement; self-loops go (repeated edges go when the graph is made undirected)."""
    source = torch.cat([torch.arange(each), torch.arange(each, nodes).repeat_interleave(each)])
    target = torch.zeros_like(source)
    target[:each] = torch.randperm(each, generator=generator)
    for new in range(each, nodes):
        known = each * (new - each + 1)  # edges whose two ends are settled
        ends = torch.cat([source[: known + each], target[:known]])
        draw = torch.randint(0, ends.numel(), (each,), generator=generator)
        target[known : known + each] = ends[draw]
    return torch.stack([source, target])[:, source != target]
