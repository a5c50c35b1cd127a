"""Sets of nodes of one graph; those that listen to a node's neighbours: DAPS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gduq.conformal.adaptive import APS
from gduq.conformal.split import PredictionSets
from gduq.errors import InputError
from gduq.metrics.rows import Rows, read
from gduq.metrics.structure import neighbours

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DAPS", "NodeSets"]

Nodes = Tensor | slice | Sequence[int]


class NodeSets(APS):
    """`APS` for nodes: predictions cover **all** nodes of the graph, in order
    (``gduq.predict(model, data)``); ``rows`` chooses the nodes to fit on and to answer for.

    Args:
        graph: The graph whose nodes the predictions are about (PyG ``Data``).
        alpha, randomized, nonempty, shift_level, seed: As in `APS`.
    """

    def __init__(
        self,
        graph: Any = None,
        alpha: float = 0.1,
        *,
        randomized: bool = True,
        nonempty: bool = True,
        shift_level: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(
            alpha, randomized=randomized, nonempty=nonempty, shift_level=shift_level, seed=seed
        )
        name = type(self).__name__
        if graph is not None and not hasattr(graph, "num_nodes"):
            raise InputError(
                f"a graph (PyG Data) for {name}",
                type(graph).__name__,
                f"Pass {name}(graph, alpha=0.1).",
            )
        self.graph = graph

    def fit(self, p_val: Any, rows: Nodes | None = None) -> Self:
        """Find the threshold on the nodes ``rows`` (mask, slice or numbers; all by default)."""
        self._check_classes(p_val)
        part, chosen, scores, _ = self._chosen(p_val, rows)
        _ = part.labels
        return self._fit(chosen, part, scores)

    def __call__(self, p: Any, rows: Nodes | None = None) -> PredictionSets:
        """The sets of the nodes ``rows``."""
        self._check_fitted(p)
        part, chosen, scores, _ = self._chosen(p, rows)
        return self._sets(chosen, part, scores)

    def _chosen(self, p: Any, rows: Nodes | None) -> tuple[Rows, Any, Tensor, Tensor]:
        """Some nodes, their prediction, their scores, mixed before the choice, and numbers."""
        nodes, scores = self._scored(p)
        if rows is None:
            return nodes, p, scores, torch.arange(len(nodes))
        pick = _numbers(rows, len(nodes))
        target = None if nodes.target is None else nodes.target[pick]
        return Rows(nodes.logits[pick], target), p[pick], scores[pick], pick

    def _scored(self, p: Any) -> tuple[Rows, Tensor]:
        """All nodes and their scores ``[n, C]``; u is the same for fitting and applying."""
        name = type(self).__name__
        if self.graph is None:
            raise InputError(f"a graph for {name}", "none", f"Pass {name}(graph=data).")
        nodes = read(p, labelled=False)
        if len(nodes) != self.graph.num_nodes:
            raise InputError(
                f"a prediction for each of the {self.graph.num_nodes} nodes of the graph",
                f"{len(nodes)} rows",
                f"Predict all nodes and choose with rows=; {name} is for node tasks.",
            )
        return nodes, self._scores(nodes, self._uniform(nodes))


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

    def _scored(self, p: Any) -> tuple[Rows, Tensor]:
        nodes, scores = super()._scored(p)
        here, there = neighbours(self.graph)
        sums = torch.zeros_like(scores).index_add_(0, here, scores[there])
        count = here.bincount(minlength=len(nodes)).unsqueeze(1)
        around = torch.where(count > 0, sums / count.clamp_min(1), scores)
        return nodes, (1 - self.weight) * scores + self.weight * around


def _numbers(rows: Any, nodes: int) -> Tensor:
    """Rows as a calibrator takes them (mask, slice, numbers, from the end too), as node numbers."""
    if isinstance(rows, slice):
        pick = torch.arange(nodes)[rows]
    else:
        pick = torch.as_tensor(rows)
        if pick.dtype == torch.bool:
            if pick.shape != (nodes,):
                raise InputError(f"a mask of {nodes} entries, one per node", list(pick.shape))
            pick = pick.nonzero().flatten()
        if pick.is_floating_point() and pick.numel():
            raise InputError("rows as a mask, a slice or integers", pick.dtype)
    if pick.numel() == 0:
        raise InputError("at least one row", "an empty choice of rows")
    if int(pick.min()) < -nodes or int(pick.max()) >= nodes:
        wrong = int(pick.max()) if int(pick.max()) >= nodes else int(pick.min())
        raise InputError(f"node numbers from 0 to {nodes - 1}", wrong)
    return pick % nodes
