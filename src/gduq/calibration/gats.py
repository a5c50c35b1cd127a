"""GATS: a temperature for each node by attention over its neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, remove_self_loops, scatter, softmax

from gduq.calibration.graph import COOLEST, GraphCalibrator
from gduq.calibration.lesson import Lesson
from gduq.errors import InputError
from gduq.metrics.structure import distance
from gduq.prediction import Prediction  # noqa: F401  (for the example)
from gduq.prediction.checks import RowChoice, row_index

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GATS"]


@dataclass(eq=False)
class GATS(GraphCalibrator):
    r"""Graph attention temperature scaling (Hsu et al., NeurIPS 2022).

    .. math:: T_i = \frac1H \sum_{h=1}^{H} \mathrm{softplus}\Big(\omega\,\delta_i
        + \sum_{j \in N(i) \cup \{i\}} \alpha_{ij}\,\gamma_j\,\theta_h^\top \tilde z_j\Big) + T_0

    * :math:`\tilde z_j`: the node's logits, scaled to 0 … 1 and sorted;
    * :math:`\delta_i`: its confidence minus the mean confidence of its neighbours;
    * :math:`\alpha_{ij}`: attention, the softmax over j of
      :math:`\mathrm{LeakyReLU}(z_i^\top z_j / (\gamma_i \gamma_j))` on scaled logits;
    * :math:`\gamma_j`: one learnt value for training nodes, one for nodes a step away from them, 1
      for all others.

    Fitted by NLL with L-BFGS, on logits after plain temperature scaling. For node tasks. Keeps
    every label of a single hypothesis.

    Args:
        graph: The graph whose nodes the predictions are about.
        prior: Deviation of the prior on every parameter; its pull fades as rows grow.
        steps: Most L-BFGS iterations.
        seed: Of the heads' start.
        train_rows: The nodes the model was trained on (mask or indices).
        heads: H.

    Example:
        >>> ring = torch.arange(40)
        >>> data = Data(edge_index=torch.stack([ring, ring.roll(1)]), num_nodes=40)
        >>> p = Prediction(torch.tensor([[4.0, 0.0]] * 40), target=ring % 4 // 3)
        >>> cal = GATS(data, train_rows=ring < 5).fit(p, rows=ring < 20)
        >>> cal(p, rows=ring >= 20).confidence.mean()
        tensor(0.75...)
    """

    state_names: ClassVar[tuple[str, ...]] = (
        "scale",
        "heads",
        "confidence",
        "offset",
        "closeness",
    )

    prior: float = 1.0
    train_rows: RowChoice | None = field(default=None, repr=False, metadata={"saved": False})
    heads: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads < 1:
            raise InputError("heads >= 1", self.heads)

    def on(self, graph: Data, train_rows: RowChoice | None = None) -> Self:
        """The same calibrator for another graph and its training nodes."""
        other = super().on(graph)
        other.train_rows = train_rows
        return other

    def unseen(self, graph: Data) -> Self:
        """The same calibrator for a graph without training nodes."""
        return self.on(graph, train_rows=[])

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        self._check_rows(lesson.whole)
        if not self._trained(len(lesson.whole)).any():
            raise InputError("at least one training node", "none", "Pass train_rows=.")
        return super()._fit(lesson)

    def _network(self, classes: int, neutral: bool) -> nn.Module:
        generator = None if neutral else torch.Generator().manual_seed(self.seed)
        return _Attention(classes, self.heads, generator)

    def _inputs(self, graph: Data, logits: Tensor) -> tuple[Tensor, ...]:
        nodes, edges = len(logits), remove_self_loops(graph.edge_index.cpu())[0]
        close = self._closeness(edges, nodes)
        confidence = logits.softmax(dim=-1).amax(dim=-1)
        around = scatter(confidence[edges[0]], edges[1], dim_size=nodes, reduce="mean")
        degree = torch.bincount(edges[1], minlength=nodes)
        relative = torch.where(degree > 0, confidence - around, 0.0)
        low, high = logits.aminmax(dim=-1, keepdim=True)
        scaled = (logits - low) / (high - low).clamp_min(1e-12)
        loops, _ = add_self_loops(edges, num_nodes=nodes)
        similar = torch.einsum("ec,ec->e", scaled[loops[0]], scaled[loops[1]])
        return scaled.sort(dim=-1).values, relative, close, loops, similar

    def _closeness(self, edges: Tensor, nodes: int) -> Tensor:
        """0 for training nodes, 1 for nodes a step away, 2 for all others, ``[N]``."""
        start = self._trained(nodes)
        if not start.any():
            return torch.full((nodes,), 2)
        return distance(Data(edge_index=edges, num_nodes=nodes), start).clamp(max=2).long()

    def _trained(self, nodes: int) -> Tensor:
        """The mask of training nodes ``[N]``."""
        if self.train_rows is None:
            raise InputError(
                "the training nodes for GATS", "none", "Pass train_rows=, a mask or node numbers."
            )
        start = torch.zeros(nodes, dtype=torch.bool)
        start[row_index(self.train_rows, nodes)] = True
        return start


class _Attention(nn.Module):
    """The network of `GATS`; all parameters zero means T = 1."""

    def __init__(self, classes: int, heads: int, generator: torch.Generator | None) -> None:
        super().__init__()
        weight = torch.zeros(classes, heads, dtype=torch.float64)
        if generator is not None:  # heads must differ at the start, or they never will
            weight.normal_(0.0, 0.1, generator=generator)
        self.heads = nn.Parameter(weight)
        self.confidence = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.offset = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.closeness = nn.Parameter(torch.zeros(2, dtype=torch.float64))  # log gamma

    def forward(
        self, ordered: Tensor, relative: Tensor, close: Tensor, edges: Tensor, similar: Tensor
    ) -> Tensor:
        gamma = F.pad(self.closeness, (0, 1)).exp()[close]  # [N]
        source, sink = edges
        score = F.leaky_relu(similar / (gamma[source] * gamma[sink]), 0.2)
        attention = softmax(score, sink, num_nodes=len(ordered))
        message = ((ordered @ self.heads) * gamma[:, None])[source] * attention[:, None]
        gathered = scatter(message, sink, dim_size=len(ordered), reduce="sum")  # [N, H]
        heat = F.softplus(gathered + self.confidence * relative[:, None]).mean(dim=-1)
        return (heat + self.offset + (1.0 - math.log(2.0))).clamp(COOLEST, 1.0 / COOLEST)
