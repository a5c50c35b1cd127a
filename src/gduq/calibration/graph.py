"""A temperature for each node that its neighbours have a say in: CaGCN and GATS."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, remove_self_loops, scatter, softmax

from gduq.calibration.base import RowTemperature
from gduq.calibration.lesson import Lesson, samples_of
from gduq.calibration.optimise import fit_module
from gduq.calibration.order_invariant import UNIT
from gduq.errors import InputError
from gduq.graph import check_graph
from gduq.metrics.structure import check_nodes, distance
from gduq.prediction import Prediction
from gduq.prediction.checks import RowChoice, row_index
from gduq.prediction.mixture import weighted_mean
from gduq.prediction.temperature import tempered_nll

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GATS", "CaGCN", "GraphCalibrator"]

_COOLEST = 0.01


@dataclass(eq=False)
class GraphCalibrator(RowTemperature):
    r"""A temperature for each node from a small graph network, by the NLL of the mixture.

    The network reads the mean logits :math:`\mu / T`, with T of plain temperature scaling, and
    answers with a factor on T; a normal prior pulls it towards 1. Predictions cover **all** nodes
    of its graph, in order (``gduq.predict(model, data)``); ``rows`` chooses the nodes to fit on and
    to answer for. The graph is not saved: bind a restored calibrator to one with `on`.
    """

    needs_graph = True

    graph: Data | None = field(default=None, repr=False, metadata={"saved": False})
    prior: float = 0.2
    steps: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.graph is not None:
            check_graph(self.graph)
            if self.graph.get("edge_index") is None:
                raise InputError("a graph with edge_index", "only adj_t", "Convert it first.")
        if not self.prior > 0 or self.steps < 1:
            raise InputError("prior > 0 and steps >= 1", f"{self.prior} and {self.steps}")

    def on(self, graph: Data) -> Self:
        """The same calibrator for another graph; what was learnt is shared."""
        other = copy.copy(self)
        other.graph = graph
        other.__post_init__()
        return other

    def unseen(self, graph: Data) -> Self:
        """The same calibrator for a graph that the model was not trained on."""
        return self.on(graph)

    @abstractmethod
    def _network(self, classes: int, neutral: bool) -> nn.Module:
        """A module from prepared inputs to temperatures; the identity when ``neutral``."""

    @abstractmethod
    def _inputs(self, graph: Data, logits: Tensor) -> tuple[Tensor, ...]:
        """What the network reads, computed once for all steps."""

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        p = lesson.whole
        graph = self._check_rows(p)
        scale = 1.0 / torch.tensor(lesson.temperature(), dtype=torch.float64)
        inputs, tempered = self._inputs(graph, _mean_logits(p) * scale), lesson.tempered()
        network = self._network(p.num_classes, neutral=False)

        def loss() -> Tensor:
            return tempered_nll(tempered, scale / network(*inputs)[lesson.index])

        fit_module(network, loss, lesson.rows, self.prior, self.steps)
        return {"scale": scale} | dict(network.state_dict())

    @torch.no_grad()
    def _temperature(self, p: Prediction) -> Tensor:
        graph = self._check_rows(p)
        network = self._network(p.num_classes, neutral=True)
        network.load_state_dict({name: self._state[name] for name in self.state_names[1:]})
        scale = self._state["scale"]
        factor: Tensor = network(*self._inputs(graph, _mean_logits(p) * scale))
        return factor / scale

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        scale = torch.ones((), dtype=torch.float64)
        return {"scale": scale} | dict(self._network(num_classes, neutral=True).state_dict())

    def _check_rows(self, p: Prediction) -> Data:
        name = type(self).__name__
        do = f"Pass {name}(graph=data), or bind a restored calibrator with .on(data)."
        return check_nodes(self.graph, p, name, do)


def _mean_logits(p: Prediction) -> Tensor:
    return weighted_mean(samples_of(p), None if p.weights is None else p.weights.cpu())


@dataclass(eq=False)
class CaGCN(GraphCalibrator):
    r"""Logits scaled by a graph convolutional network (CaGCN; Wang et al., NeurIPS 2021).

    .. math:: s'_{ki} = s_{ki}\,\mathrm{softplus}(g_i), \qquad
        g = \hat A\,\mathrm{ReLU}(\hat A \mu W_1) W_2

    A normal prior takes the place of the published dropout, so a fit is reproducible. For node
    tasks. Keeps every label of a single hypothesis.

    Args:
        graph: The graph whose nodes the predictions are about.
        prior: Deviation of the prior on every weight; its pull fades as rows grow.
        steps: Most L-BFGS iterations.
        seed: Of the first layer's start.
        hidden: Width of the hidden layer.

    Example:
        >>> ring = torch.arange(40)
        >>> data = Data(edge_index=torch.stack([ring, ring.roll(1)]), num_nodes=40)
        >>> p = Prediction(torch.tensor([[4.0, 0.0]] * 40), target=ring % 4 // 3)
        >>> CaGCN(data).fit(p, rows=ring < 20)(p, rows=ring >= 20).confidence.mean()
        tensor(0.75...)
    """

    state_names = (
        *("scale", "first.lin.weight", "first.bias"),
        *("second.lin.weight", "second.bias"),
    )

    hidden: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden < 1:
            raise InputError("hidden >= 1", self.hidden)

    def _network(self, classes: int, neutral: bool) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return _TwoConvolutions(classes, self.hidden).double()

    def _inputs(self, graph: Data, logits: Tensor) -> tuple[Tensor, ...]:
        edges, weight = gcn_norm(graph.edge_index.cpu(), num_nodes=len(logits), dtype=logits.dtype)
        return logits, edges, weight


class _TwoConvolutions(nn.Module):
    """The network of `CaGCN`; its last layer starts at zero, which is T = 1."""

    def __init__(self, classes: int, hidden: int) -> None:
        super().__init__()
        self.first = GCNConv(classes, hidden, normalize=False)
        self.second = GCNConv(hidden, 1, normalize=False)
        nn.init.zeros_(self.second.lin.weight)

    def forward(self, logits: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        hidden = self.first(logits, edges, weight).relu()
        scale = F.softplus(self.second(hidden, edges, weight).squeeze(-1) + UNIT)
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

    Args:
        graph, prior, steps, seed: As for `CaGCN`.
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

    state_names = ("scale", "heads", "confidence", "offset", "closeness")

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
        start = self._trained(nodes)
        close = torch.full((nodes,), 2)  # 0 for training nodes, 1 a step away, 2 for all others
        if start.any():
            close = distance(Data(edge_index=edges, num_nodes=nodes), start).clamp(max=2).long()
        confidence = logits.softmax(dim=-1).amax(dim=-1)
        around = scatter(confidence[edges[0]], edges[1], dim_size=nodes, reduce="mean")
        degree = torch.bincount(edges[1], minlength=nodes)
        relative = torch.where(degree > 0, confidence - around, 0.0)
        low, high = logits.aminmax(dim=-1, keepdim=True)
        scaled = (logits - low) / (high - low).clamp_min(1e-12)
        loops, _ = add_self_loops(edges, num_nodes=nodes)
        similar = torch.einsum("ec,ec->e", scaled[loops[0]], scaled[loops[1]])
        return scaled.sort(dim=-1).values, relative, close, loops, similar

    def _trained(self, nodes: int) -> Tensor:
        """The mask of training nodes ``[N]``."""
        if self.train_rows is None:
            do = "Pass train_rows=, a mask or node numbers."
            raise InputError("the training nodes for GATS", "none", do)
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
        return (heat + self.offset + (1.0 - math.log(2.0))).clamp(_COOLEST, 1.0 / _COOLEST)
