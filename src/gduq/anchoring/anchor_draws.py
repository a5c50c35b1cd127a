"""Which row gets which anchor in a training pass: every row its own, or all rows of a graph one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gduq.anchoring.anchors import GaussianAnchors
from gduq.anchoring.points import Point
from gduq.graph import label_rows, num_graphs, row_batch
from gduq.graph.sparse import is_sparse, keep_rows
from gduq.randomness import generator_device

if TYPE_CHECKING:
    from gduq.anchoring.bank import Banked

__all__ = ["AnchorDraws", "anchor_rows"]


class AnchorDraws:
    """The anchors of one pass: D draws for every row, or for every graph.

    The point, map, source and recipe of the model count. A share ``mask`` of rows (nodes, or whole
    graphs) has its anchor half zeroed. Without a generator torch's global state is drawn from.
    """

    def __init__(
        self, model: Banked, graph: Any, draws: int, mask: float, generator: torch.Generator | None
    ) -> None:
        self.model, self.graph, self.draws, self.generator = model, graph, draws, generator
        self.mask_share = mask
        self._chosen: Tensor | None = None  # [D, rows or graphs]
        # nodes of an answered graph, and rows that share an anchor, are masked together
        point = model.point
        self._shared = model.recipe.scope == "graph" and point.rows != "graph"
        self._by_graph = self._shared or point.rows != point.answers

    def read(self, h: Tensor) -> Tensor:
        """``z`` ``[D, n, m]`` for fresh anchors."""
        model, point, rows = self.model, self.model.point, h.size(0)
        source_rows = anchor_rows(point, h, self.graph)
        model.source.observe(source_rows)
        of_graph = row_batch(self.graph, point.rows, rows) if self._by_graph else None
        masked = self._mask(rows, of_graph)  # [D, n] or None
        shift = self._shift(source_rows, rows, masked, of_graph)
        gain = point.gain(self.graph, shift)
        if gain is not None and not self._shared:
            z = point.mix(model.linear.residual(h) + shift, self.graph)
        else:
            weight = model.linear.weight[:, : model.linear.in_features]
            z = point.read(h, weight, self.graph) + (shift if gain is None else gain * shift)
        return model.linear.biased(z)

    def masked(self, rows: int) -> Tensor:
        """Which of the output's rows were masked ``[D, rows]``."""
        device = self.model.linear.weight.device
        if self._chosen is None:
            return torch.zeros(self.draws, rows, dtype=torch.bool, device=device)
        if not self._by_graph:
            return self._chosen
        return self._chosen[:, row_batch(self.graph, self.model.point.answers, rows)]

    def _mask(self, rows: int, of_graph: Tensor | None) -> Tensor | None:
        """Which rows at the point have no anchor half ``[D, n]``."""
        if not self.mask_share:
            return None
        units = rows if of_graph is None else num_graphs(self.graph)
        where = generator_device(self.generator)
        chosen = torch.rand(self.draws, units, generator=self.generator, device=where)
        self._chosen = chosen.to(self.model.linear.weight.device) < self.mask_share
        return self._chosen if of_graph is None else self._chosen[:, of_graph]

    def _shift(
        self, source_rows: Tensor, rows: int, masked: Tensor | None, of_graph: Tensor | None
    ) -> Tensor:
        """What the anchors add, ``[D, n, m]``."""
        linear, source = self.model.linear, self.model.source
        owners = num_graphs(self.graph) if self._shared else rows
        of_owner = self._chosen if self._shared else masked
        flat = None if of_owner is None else of_owner.flatten()
        count = self.draws * owners
        wide = linear.in_features > linear.out_features
        if isinstance(source, GaussianAnchors) and wide and owners > linear.out_features:
            source.require_rows()
            mean, std = source.mean.to(linear.weight), source.std.to(linear.weight)
            shift = linear.gaussian_shift(mean, std, count, flat, self.generator)
        else:
            like = source_rows.values() if is_sparse(source_rows) else source_rows
            c = source.draw(source_rows, count, self.generator).to(like.dtype)
            shift = linear.shift(c, flat)
        shift = shift.view(self.draws, owners, -1)
        return shift[:, of_graph] if self._shared else shift


def anchor_rows(point: Point, h: Tensor, graph: Any) -> Tensor:
    """The rows of ``h`` that anchors may come from: those that count in training."""
    if point.rows != point.answers:
        return h
    rows = label_rows(graph, h.size(0))
    if isinstance(rows, slice):
        if rows.stop is None:
            return h
        rows = torch.arange(h.size(0), device=h.device) < rows.stop
    return keep_rows(h, rows)
