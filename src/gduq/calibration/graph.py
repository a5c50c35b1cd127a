"""A temperature for each node that its neighbours have a say in: what they share, and CaGCN."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gduq.calibration.base import RowTemperature
from gduq.calibration.lesson import Lesson, samples_of
from gduq.calibration.optimise import fit_module
from gduq.calibration.order_invariant import UNIT
from gduq.errors import InputError
from gduq.graph import check_graph
from gduq.prediction import Prediction
from gduq.prediction.mixture import weighted_mean
from gduq.prediction.temperature import tempered_nll

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["COOLEST", "CaGCN", "GraphCalibrator"]

COOLEST = 0.01


@dataclass(eq=False)
class GraphCalibrator(RowTemperature):
    r"""A temperature for each node from a small graph network.

    The network reads the mean logits :math:`\mu / T`, with T of plain temperature scaling, and
    answers with a factor on T for all hypotheses about the node; a normal prior pulls it towards 1.
    Fitted by the NLL of the mixture.

    It is made for one graph. Its predictions cover **all** nodes of that graph, in order
    (``gduq.predict(model, data)``), since a node's temperature depends on its neighbours' logits;
    ``rows`` chooses the nodes to fit on and to answer for. The graph is not saved: bind a restored
    calibrator, or take a fitted one to another graph, with `on`.
    """

    needs_graph: ClassVar[bool] = True

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
        """The graph, when it is there and ``p`` speaks of all its nodes."""
        name = type(self).__name__
        if self.graph is None:
            raise InputError(
                f"a graph for {name}",
                "none",
                f"Pass {name}(graph=data), or bind a restored calibrator with .on(data).",
            )
        if len(p) != self.graph.num_nodes:
            raise InputError(
                f"a prediction for each of the {self.graph.num_nodes} nodes of the graph",
                f"{len(p)} rows",
                f"Predict all nodes and choose with rows=; {name} is for node tasks.",
            )
        return self.graph


def _mean_logits(p: Prediction) -> Tensor:
    return weighted_mean(samples_of(p), None if p.weights is None else p.weights.cpu())


@dataclass(eq=False)
class CaGCN(GraphCalibrator):
    r"""Logits scaled by a graph convolutional network (CaGCN; Wang et al., NeurIPS 2021).

    .. math:: s'_{ki} = s_{ki}\,\mathrm{softplus}(g_i), \qquad
        g = \hat A\,\mathrm{ReLU}(\hat A \mu W_1) W_2

    with two layers C → ``hidden`` → 1 and the usual normalised adjacency :math:`\hat A`. Fitted by
    NLL with L-BFGS from plain temperature scaling; a normal prior takes the place of the published
    dropout, so a fit is reproducible. For node tasks. Keeps every label of a single hypothesis.

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

    state_names: ClassVar[tuple[str, ...]] = (
        "scale",
        "first.lin.weight",
        "first.bias",
        "second.lin.weight",
        "second.bias",
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
        return scale.clamp(COOLEST, 1.0 / COOLEST).reciprocal()
