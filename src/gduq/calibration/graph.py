"""A temperature for each node, by a small graph network: CaGCN and GATS."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric.nn import GCN
from torch_geometric.utils import add_self_loops, remove_self_loops, scatter, softmax

from gduq.calibration.base import (
    CalibrationSet,
    NetworkCalibrator,
    doubles,
    samples_of,
)
from gduq.calibration.monotone import UNIT
from gduq.errors import InputError
from gduq.graphs import Graph, check_graph
from gduq.prediction import ClassPrediction
from gduq.prediction.base import RowChoice, check_nodes, row_index
from gduq.prediction.mixture import weighted_mean

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GATS", "CaGCN", "GraphCalibrator"]

_COOLEST = 0.01
_HIDDEN, _HEADS = 16, 8  # as published


@dataclass(eq=False)
class GraphCalibrator(NetworkCalibrator):
    r"""A temperature for each node from a small graph network, by the NLL of the mixture.

    The network reads the mean logits :math:`\mu / T`, with T of plain temperature scaling, and
    answers with a factor on T; a normal prior pulls it towards 1. Predictions cover **all** nodes
    of its graph, in order (``gduq.predict(model, data)``); ``rows`` chooses the nodes to fit on and
    to answer for. The graph is not saved: bind a restored calibrator to one with `on`.

    Args:
        graph: The graph whose nodes the predictions are about.
        train_rows: The nodes the model was trained on (mask or indices); `GATS` alone reads them.
    """

    needs_graph = True

    graph: Graph | None = field(default=None, repr=False)
    train_rows: RowChoice | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.graph is not None:
            check_graph(self.graph)
            if self.graph.get("edge_index") is None:
                raise InputError("a graph with edge_index", "only adj_t", "Convert it first.")

    def on(self, graph: Graph | None, train_rows: RowChoice | None = ()) -> Self:
        """The same calibrator for another graph; what was learnt is shared."""
        other = copy.copy(self)
        other.graph, other.train_rows = graph, train_rows
        other.__post_init__()
        return other

    @abstractmethod
    def _inputs(self, graph: Graph, logits: Tensor) -> tuple[Tensor, ...]:
        """What the network reads, computed once for all steps."""

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        assert isinstance(data.p, ClassPrediction)
        scale = doubles(1.0 / data.temperature())
        inputs = self._prepared(data.p, scale)

        def loss(network: Callable[..., Tensor]) -> Tensor:
            factor = network(*inputs)[data.index]
            return data.nll(data.samples * (scale / factor)[:, None])

        return self._fitted(data, scale, loss)

    def _map(self, p: ClassPrediction) -> Tensor:
        return samples_of(p) / self.temperature(p)[:, None]

    @torch.no_grad()
    def temperature(self, p: ClassPrediction) -> Tensor:
        """The temperature that each row of ``p`` gets, ``[m]``."""
        self._check(p)
        scale, network = self._state["scale"], self._network(p.num_classes)
        values = {name: self._state[name] for name, _ in network.named_parameters()}
        factor: Tensor = functional_call(network, values, self._prepared(p, scale))
        return factor / scale

    def _prepared(self, p: ClassPrediction, scale: Tensor) -> tuple[Tensor, ...]:
        """The inputs of the network for all nodes of the graph."""
        graph = check_nodes(self.graph, p, type(self).__name__)
        return self._inputs(graph, weighted_mean(samples_of(p), p.weights) * scale)


@dataclass(eq=False)
class CaGCN(GraphCalibrator):
    r"""Logits scaled by a graph convolutional network (CaGCN; Wang et al., NeurIPS 2021).

    .. math:: s'_{ki} = s_{ki}\,\mathrm{softplus}(g_i), \qquad
        g = \hat A\,\mathrm{ReLU}(\hat A \mu W_1) W_2

    A normal prior takes the place of the published dropout, so a fit is reproducible. For node
    tasks. Keeps every label of a single hypothesis.
    """

    def _network(self, classes: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = _ScaleGCN(classes, _HIDDEN, num_layers=2, out_channels=1).double()
        nn.init.zeros_(network.convs[-1].lin.weight)  # which is T = 1
        return cast(nn.Module, network)

    def _inputs(self, graph: Graph, logits: Tensor) -> tuple[Tensor, ...]:
        return logits, graph.edge_index.cpu()


class _ScaleGCN(GCN):  # type: ignore[misc]
    """The network of `CaGCN`."""

    def forward(self, logits: Tensor, edges: Tensor) -> Tensor:
        scale = F.softplus(super().forward(logits, edges).squeeze(-1) + UNIT)
        return scale.clamp(_COOLEST, 1.0 / _COOLEST).reciprocal()


@dataclass(eq=False)
class GATS(GraphCalibrator):
    r"""Graph attention temperature scaling (Hsu et al., NeurIPS 2022).

    .. math:: T_i = \frac1H \sum_{h=1}^{H} \mathrm{softplus}\Big(\omega\,\delta_i
        + \sum_{j \in N(i) \cup \{i\}} \alpha_{ij}\,\gamma_j\,\theta_h^\top \tilde z_j\Big) + T_0

    * :math:`\tilde z_j`: the node's logits after temperature scaling, scaled to 0 … 1 and sorted;
    * :math:`\delta_i`: its confidence minus the mean confidence of its neighbours;
    * :math:`\alpha_{ij}`: attention, the softmax over j of
      :math:`\mathrm{LeakyReLU}(z_i^\top z_j / (\gamma_i \gamma_j))` on scaled logits;
    * :math:`\gamma_j`: one learnt value for training nodes, one for nodes a step away, else 1.

    For node tasks. Keeps every label of a single hypothesis.
    """

    prior = 1.0

    def _network(self, classes: int) -> nn.Module:
        return _Attention(classes)

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {k: v if k == "scale" else 0 * v for k, v in super()._neutral(num_classes).items()}

    def _inputs(self, graph: Graph, logits: Tensor) -> tuple[Tensor, ...]:
        if self.train_rows is None:
            raise InputError("the training nodes for GATS", "none", "Pass train_rows=.")
        nodes, edges = len(logits), remove_self_loops(graph.edge_index.cpu())[0]
        trained = torch.zeros(nodes, dtype=torch.bool)
        trained[row_index(self.train_rows, nodes)] = True
        close = torch.full((nodes,), 2)  # 0 for training nodes, 1 a step away, 2 for all others
        for here, there in (edges, edges.flip(0)):
            close[there[trained[here]]] = 1
        close[trained] = 0
        confidence = logits.softmax(dim=-1).amax(dim=-1)
        around = scatter(confidence[edges[0]], edges[1], dim_size=nodes, reduce="mean")
        degree = torch.bincount(edges[1], minlength=nodes)
        relative = torch.where(degree > 0, confidence - around, 0.0)
        low, high = logits.aminmax(dim=-1, keepdim=True)
        scaled = (logits - low) / (high - low).clamp_min(1e-12)
        loops, _ = add_self_loops(edges, num_nodes=nodes)
        similar = torch.einsum("ec,ec->e", scaled[loops[0]], scaled[loops[1]])
        return scaled.sort(dim=-1).values, relative, close, loops, similar


class _Attention(nn.Module):
    """The network of `GATS`; all parameters zero means T = 1."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.zeros(classes, _HEADS, dtype=torch.float64)
        weight.normal_(0.0, 0.1, generator=generator)  # equal heads would stay equal
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
        factor = F.softplus(gathered + self.confidence * relative[:, None]).mean(dim=-1)
        return (factor + self.offset + (1.0 - math.log(2.0))).clamp(_COOLEST, 1.0 / _COOLEST)
