"""Sets whose threshold comes from the nodes around: NAPS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gduq.conformal.graph import NodeSets
from gduq.conformal.split import Scored
from gduq.errors import InputError, NotFittedError
from gduq.metrics.structure import neighbours

__all__ = ["NAPS", "weighted_quantile"]

Decay = Literal["uniform", "hyperbolic", "geometric"]

_WEIGHTS: dict[str, Callable[[int], float]] = {
    "uniform": lambda steps: 1.0,
    "hyperbolic": lambda steps: 1.0 / steps,
    "geometric": lambda steps: 2.0**-steps,
}
_BLOCK = 1 << 24  # pairs of a node and a validation node looked at together


class NAPS(NodeSets):
    r"""Neighbourhood-adaptive prediction sets for nodes (Clarkson, ICML 2023).

    The scores of `APS`, but every node has its own threshold: the :math:`1 - \alpha` quantile of
    the validation nodes within ``hops`` steps, weighted by how far they are, with weight 1 at
    infinity for the node itself. Nodes need not be exchangeable: the more alike those near each
    other are distributed, the less coverage can be lost (Barber et al., 2023). It pays where a
    model's reliability changes over the graph.

    A node whose neighbourhood weighs less than :math:`1/\alpha - 1` gets all classes: so little
    evidence promises nothing. Take more steps if there are many of them. A validation node is
    answered for without its own score.

    Args:
        graph: The graph whose nodes the predictions are about (PyG ``Data``).
        hops: Validation nodes up to so many steps away count.
        decay: The weight of a node d steps away: ``"uniform"`` (1), ``"hyperbolic"`` (1/d) or
            ``"geometric"`` (:math:`2^{-d}`).
        alpha, randomized, nonempty, shift_level, seed: As in `APS`.

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
        self,
        graph: Any = None,
        alpha: float = 0.1,
        *,
        hops: int = 2,
        decay: Decay = "uniform",
        **options: Any,
    ) -> None:
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

    One more score, infinite and of weight 1, is among them; with equal weights of 1 this is
    `gduq.conformal.conformal_quantile`.

    Args:
        scores: ``[n]``, rising.
        weights: ``[m, n]``, one row for each quantile.
        alpha: In (0, 1).

    Example:
        >>> weighted_quantile(torch.arange(1.0, 10.0), torch.ones(1, 9), alpha=0.1)
        tensor([9.])
    """
    upto = weights.double().cumsum(dim=1)
    wanted = (1 - alpha) * (upto[:, -1:] + 1.0)
    place = torch.searchsorted(upto, wanted - 1e-9).squeeze(1)
    ends = torch.cat([scores.cpu(), scores.new_tensor([torch.inf]).cpu()])
    return ends[place]
