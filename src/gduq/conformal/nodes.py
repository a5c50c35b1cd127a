"""Sets of nodes that listen to the nodes around them: scores (DAPS) or thresholds (NAPS)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gduq.conformal.adaptive import APS
from gduq.conformal.split import Scored, chosen_rows
from gduq.errors import InputError, NotFittedError
from gduq.metrics.structure import check_nodes, neighbours
from gduq.prediction.checks import RowChoice

__all__ = ["DAPS", "NAPS", "NodeSets", "weighted_quantile"]

Decay = Literal["uniform", "hyperbolic", "geometric"]

_WEIGHTS: dict[str, Callable[[int], float]] = {
    "uniform": lambda steps: 1.0,
    "hyperbolic": lambda steps: 1.0 / steps,
    "geometric": lambda steps: 2.0**-steps,
}
_BLOCK = 1 << 24  # pairs of a node and a validation node looked at together


class NodeSets(APS):
    """`APS` for nodes: predictions cover **all** nodes of the graph; ``rows`` chooses some.

    Args:
        graph: The graph whose nodes the predictions are about (PyG ``Data``).
        alpha, randomized, nonempty, shift_level, seed: As in `APS`.
    """

    def __init__(self, graph: Any = None, alpha: float = 0.1, **options: Any) -> None:
        super().__init__(alpha, **options)
        name = type(self).__name__
        if graph is not None and not hasattr(graph, "num_nodes"):
            wanted, do = f"a graph (PyG Data) for {name}", f"Pass {name}(graph, alpha=0.1)."
            raise InputError(wanted, type(graph).__name__, do)
        self.graph = graph

    def scored(self, p: Any, rows: RowChoice | None = None) -> Scored:
        """All nodes are scored, and then some are chosen."""
        name = type(self).__name__
        check_nodes(self.graph, p, name, f"Pass {name}(graph=data).")
        whole = super().scored(p)
        scores = self._mixed(whole.scores)
        if rows is None:
            return replace(whole, scores=scores)
        pick = chosen_rows(rows, len(p))
        return Scored(p[pick], whole.rows[pick], scores[pick], pick)

    def _mixed(self, scores: Tensor) -> Tensor:
        """The scores of all nodes ``[n, C]``, mixed with those around them."""
        return scores


class DAPS(NodeSets):
    r"""Diffusion-adaptive prediction sets for nodes (Zargarbashi, Antonelli and Bojchevski, 2023).

    The scores of `APS` are mixed with those of the neighbours :math:`N(i)`,

    .. math:: s'_{ic} = (1 - \delta)\, s_{ic} + \frac{\delta}{|N(i)|} \sum_{j \in N(i)} s_{jc}

    which makes sets smaller in homophilous graphs and keeps coverage.

    Args:
        weight: :math:`\delta`, in [0, 1]; 0 is `APS`.
        graph, alpha, randomized, nonempty, shift_level, seed: As in `NodeSets`.

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


class NAPS(NodeSets):
    r"""Neighbourhood-adaptive prediction sets for nodes (Clarkson, ICML 2023).

    The scores of `APS`, but every node has its own threshold: the `weighted_quantile` of the
    validation nodes within ``hops`` steps. A node whose neighbourhood weighs less than
    :math:`1/\alpha - 1` gets all classes; a validation node is answered for without its own score.

    Args:
        hops: Validation nodes up to so many steps away count.
        decay: The weight of a node d steps away: ``"uniform"`` (1), ``"hyperbolic"`` (1/d) or
            ``"geometric"`` (:math:`2^{-d}`).
        graph, alpha, randomized, nonempty, shift_level, seed: As in `NodeSets`.

    Example:
        >>> from torch_geometric.data import Data
        >>> from gduq.prediction import Prediction
        >>> ring = torch.arange(40)
        >>> data = Data(edge_index=torch.stack([ring, ring.roll(1)]), num_nodes=40)
        >>> p = Prediction(torch.tensor([[4.0, 0.0]] * 40), target=torch.zeros(40).long())
        >>> fitted = NAPS(data, alpha=0.2, hops=4).fit(p, rows=ring < 20)
        >>> fitted(p, rows=[10, 30]).size  # eight known nodes around one, none around the other
        tensor([1, 2])
    """

    def __init__(
        self, graph: Any = None, alpha: float = 0.1, *, hops: int = 2, decay: Decay = "uniform",
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(graph, alpha, **options)
        if hops < 1:
            raise InputError("hops >= 1", hops)
        if decay not in _WEIGHTS:
            raise InputError(f"a decay from {', '.join(_WEIGHTS)}", repr(decay))
        self.hops, self.decay = hops, decay
        self._known: tuple[Tensor, Tensor] | None = None

    def _learn(self, part: Scored) -> None:
        super()._learn(part)
        order = part.true.argsort()  # rising, as `weighted_quantile` reads them
        self._known = part.numbers[order], part.true[order]

    def _threshold(self, part: Scored) -> Tensor:
        return self.thresholds(part.numbers).unsqueeze(1)

    def thresholds(self, nodes: Tensor) -> Tensor:
        """The threshold of every node of these numbers ``[m]``; infinite for all classes."""
        if self._known is None:
            raise NotFittedError("a fitted NAPS", "one without fit", "Call fit(p_val) first.")
        known, scores = self._known
        found = [weighted_quantile(scores, w, self.alpha) for w in self._weights(nodes, known)]
        return torch.cat(found).to(scores)

    def _weights(self, nodes: Tensor, known: Tensor) -> Iterator[Tensor]:
        """Weights ``[some, n]`` of the known nodes for some nodes at a time."""
        count = self.graph.num_nodes
        here, there = (index.cpu().numpy() for index in neighbours(self.graph))
        ones = np.ones(len(here), dtype=np.float32)
        links = sparse.csr_matrix((ones, (here, there)), shape=(count, count))
        for part in nodes.cpu().split(max(1, _BLOCK // max(len(known), count))):
            start = (np.ones(len(part), dtype=np.float32), (np.arange(len(part)), part.numpy()))
            reached = sparse.csr_matrix(start, shape=(len(part), count))
            weights = torch.zeros(len(part), len(known), dtype=torch.float64)
            unseen = torch.from_numpy(reached[:, known.numpy()].toarray()) == 0
            for steps in range(1, self.hops + 1):
                reached = (reached + reached @ links).sign()
                new = torch.from_numpy(reached[:, known.numpy()].toarray()) > 0
                weights[new & unseen] = _WEIGHTS[self.decay](steps)
                unseen &= ~new
            yield weights


def weighted_quantile(scores: Tensor, weights: Tensor, alpha: float) -> Tensor:
    r"""The smallest score up to which at least :math:`1 - \alpha` of the weight lies, or infinity.

    Scores ``[n]`` rise; weights are ``[m, n]``, one row per quantile. Infinity has weight 1.
    """
    upto = weights.double().cumsum(dim=1)
    wanted = (1 - alpha) * (upto[:, -1:] + 1.0)
    place = torch.searchsorted(upto, wanted - 1e-9).squeeze(1)
    ends = torch.cat([scores.cpu(), scores.new_tensor([torch.inf]).cpu()])
    return ends[place]
