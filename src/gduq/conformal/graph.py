"""Sets of nodes of one graph; those that listen to a node's neighbours: DAPS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gduq.conformal.adaptive import APS
from gduq.conformal.split import Scored, chosen_rows
from gduq.errors import InputError
from gduq.metrics.structure import neighbours
from gduq.prediction.checks import RowChoice

__all__ = ["DAPS", "NodeSets"]


class NodeSets(APS):
    """`APS` for nodes: predictions cover **all** nodes of the graph, in order
    (``gduq.predict(model, data)``); ``rows`` chooses the nodes to fit on and to answer for.

    Args:
        graph: The graph whose nodes the predictions are about (PyG ``Data``).
        alpha, randomized, nonempty, shift_level, seed: As in `APS`.
    """

    def __init__(self, graph: Any = None, alpha: float = 0.1, **options: Any) -> None:
        super().__init__(alpha, **options)
        name = type(self).__name__
        if graph is not None and not hasattr(graph, "num_nodes"):
            raise InputError(
                f"a graph (PyG Data) for {name}",
                type(graph).__name__,
                f"Pass {name}(graph, alpha=0.1).",
            )
        self.graph = graph

    def scored(self, p: Any, rows: RowChoice | None = None) -> Scored:
        """All nodes are scored, and then some are chosen."""
        name = type(self).__name__
        if self.graph is None:
            raise InputError(f"a graph for {name}", "none", f"Pass {name}(graph=data).")
        if len(p) != self.graph.num_nodes:
            raise InputError(
                f"a prediction for each of the {self.graph.num_nodes} nodes of the graph",
                f"{len(p)} rows",
                f"Predict all nodes and choose with rows=; {name} is for node tasks.",
            )
        whole = super().scored(p)
        scores = self._mixed(whole.scores)
        if rows is None:
            return replace(whole, scores=scores)
        pick = chosen_rows(rows, len(p))
        return Scored(p[pick], whole.rows.take(pick), scores[pick], pick)

    def _mixed(self, scores: Tensor) -> Tensor:
        """The scores of all nodes ``[n, C]``, mixed with those around them."""
        return scores


class DAPS(NodeSets):
    r"""Diffusion-adaptive prediction sets for nodes (Zargarbashi, Antonelli and Bojchevski, 2023).

    The scores of `APS` are mixed with those of the neighbours :math:`N(i)`,

    .. math:: s'_{ic} = (1 - \delta)\, s_{ic} + \frac{\delta}{|N(i)|} \sum_{j \in N(i)} s_{jc}

    which makes sets smaller in homophilous graphs. Coverage is kept: the mixing treats validation
    and test nodes alike. Predictions cover **all** nodes of the graph, in order
    (``gduq.predict(model, data)``); ``rows`` chooses the nodes to fit on and to answer for.

    Args:
        graph: The graph whose nodes the predictions are about (PyG ``Data``).
        weight: :math:`\delta`, in [0, 1]; 0 is `APS`.
        alpha, randomized, nonempty, shift_level, seed: As in `APS`.

    Example:
        >>> from torch_geometric.data import Data
        >>> from gduq.prediction import Prediction
        >>> ring = torch.arange(40)
        >>> data = Data(edge_index=torch.stack([ring, ring.roll(1)]), num_nodes=40)
        >>> p = Prediction(torch.tensor([[2.0, 0.0]] * 40), target=torch.zeros(40).long())
        >>> sets = DAPS(data, alpha=0.2).fit(p, rows=ring < 20)(p, rows=ring >= 20)
        >>> len(sets), sets.coverage > 0.5
        (20, True)
    """

    def __init__(
        self, graph: Any = None, alpha: float = 0.1, *, weight: float = 0.5, **options: Any
    ) -> None:
        super().__init__(graph, alpha, **options)
        if not 0 <= weight <= 1:
            raise InputError("weight from 0 to 1", weight)
        self.weight = weight

    def _mixed(self, scores: Tensor) -> Tensor:
        here, there = neighbours(self.graph)
        sums = torch.zeros_like(scores).index_add_(0, here, scores[there])
        count = here.bincount(minlength=len(scores)).unsqueeze(1)
        around = torch.where(count > 0, sums / count.clamp_min(1), scores)
        return (1 - self.weight) * scores + self.weight * around
