"""Who gets which anchor in a training pass: every row its own, or all rows of a graph one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.anchors import GaussianAnchors
from gduq.functional import is_sparse, keep_rows
from gduq.graph import label_rows, num_graphs

if TYPE_CHECKING:
    from gduq.anchored import Anchored

__all__ = ["Owners", "anchor_rows"]


class Owners:
    """The owners of anchors in one pass, each with D draws: rows, or graphs.

    Args:
        model: Whose cut, map, source and scope count.
        graph: The batch.
        draws: D.
        mask: Share of rows (nodes, or whole graphs) whose anchor half is zeroed.
        generator: Source of randomness, or ``None`` for torch's global state.
    """

    def __init__(
        self,
        model: Anchored,
        graph: Data,
        draws: int,
        mask: float,
        generator: torch.Generator | None,
    ) -> None:
        self.model, self.graph, self.draws, self.generator = model, graph, draws, generator
        self.mask_share = mask
        self.node_task = model.cut.node_task(graph)
        self.masked = torch.empty(0)

    def read(self, h: Tensor) -> Tensor:
        """``z`` ``[D, n, m]`` for fresh anchors, and `masked` for the rows of the output."""
        model, rows = self.model, h.size(0)
        source_rows = anchor_rows(h, self.graph)
        model.source.observe(source_rows)
        of_graph = self._graph_of(rows)
        shared = model.scope == "graph" and of_graph is not None
        owners = num_graphs(self.graph) if shared else rows
        masked = self._mask(rows, of_graph)  # [D, rows] or None
        shift = self._shift(source_rows, owners, masked, of_graph if shared else None)
        gain = model.cut.gain(self.graph, shift)
        if gain is not None and not shared:
            z = model.cut.mix(model.linear.residual(h) + shift, self.graph)
        else:
            weight = model.linear.weight[:, : model.linear.in_features]
            z = model.cut.read(h, weight, self.graph) + (shift if gain is None else gain * shift)
        return z if model.linear.bias is None else z + model.linear.bias

    def masked_outputs(self, rows: int) -> Tensor:
        """`masked` for the rows of the output, which tell nodes and graphs apart for sure."""
        of_graph = self._graph_of(rows)
        if self.masked.size(1) == rows or of_graph is None:
            return self.masked
        return self.masked[:, of_graph]

    def _shift(
        self, rows: Tensor, owners: int, masked: Tensor | None, of_graph: Tensor | None
    ) -> Tensor:
        """What the anchors add, ``[D, n, m]``."""
        linear, source = self.model.linear, self.model.source
        draws, of_owner = self.draws, masked
        if masked is not None and of_graph is not None:  # from rows to graphs
            of_owner = masked.new_zeros(draws, owners).index_copy_(1, of_graph, masked)
        flat = None if of_owner is None else of_owner.flatten()
        wide = linear.in_features > linear.out_features
        if isinstance(source, GaussianAnchors) and wide and owners > linear.out_features:
            source.require_rows()
            mean, std = source.mean.to(linear.weight), source.std.to(linear.weight)
            shift = linear.gaussian_shift(mean, std, draws * owners, flat, self.generator)
        else:
            like = rows.values() if is_sparse(rows) else rows
            c = source.draw(rows, draws * owners, self.generator).to(like.dtype)
            shift = linear.shift(c, flat)
        shift = shift.view(draws, owners, -1)
        return shift if of_graph is None else shift[:, of_graph]

    def _graph_of(self, rows: int) -> Tensor | None:
        """The graph each row belongs to, or ``None`` where rows are graphs."""
        if not self.model.cut.needs_graph and not self.node_task:
            return None
        if rows != self.graph.num_nodes:
            return None
        batch = self.graph.get("batch")
        device = self.model.linear.weight.device
        return torch.zeros(rows, dtype=torch.int64, device=device) if batch is None else batch

    def _mask(self, rows: int, of_graph: Tensor | None) -> Tensor | None:
        """Which rows at the cut have no anchor half; also sets `masked` for the output's rows."""
        by_graph = of_graph is not None and (not self.node_task or self.model.scope == "graph")
        units = num_graphs(self.graph) if by_graph else rows
        device = self.model.linear.weight.device
        if not self.mask_share:
            out = rows if self.node_task or of_graph is None else num_graphs(self.graph)
            self.masked = torch.zeros(self.draws, out, dtype=torch.bool, device=device)
            return None
        chosen = torch.rand(self.draws, units, generator=self.generator).to(device)
        chosen = chosen < self.mask_share
        at_cut = chosen[:, of_graph] if by_graph else chosen
        self.masked = at_cut if self.node_task else chosen
        return at_cut


def anchor_rows(h: Tensor, graph: Data) -> Tensor:
    """The rows of ``h`` that anchors may come from: those that carry a training label."""
    rows = label_rows(graph, h.size(0))
    if isinstance(rows, slice):
        if rows.stop is None:
            return h
        return keep_rows(h, torch.arange(h.size(0), device=h.device) < rows.stop)
    return keep_rows(h, rows)
