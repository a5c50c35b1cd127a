"""Order-invariant calibration: a small network that can only stretch the gaps between logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gduq.calibration.base import Calibrator
from gduq.calibration.lesson import Lesson, mixture_logs
from gduq.calibration.optimise import fit_module
from gduq.errors import InputError
from gduq.export_mode import exporting
from gduq.prediction import Prediction

__all__ = ["OrderInvariantCalibration"]

UNIT = 0.5413248546129181  # softplus(UNIT) = 1


@dataclass(eq=False)
class OrderInvariantCalibration(Calibrator):
    r"""Gaps between sorted logits, stretched by a network (Rahimi et al., NeurIPS 2020).

    .. math:: z'_i = \sum_{j=i}^{C-1} \mathrm{softplus}(m_j(z))\,(z_j - z_{j+1})

    for :math:`z_1 \ge \dots \ge z_C`, the sorted log of the mixture's probabilities over T, the
    temperature that fits them best, and a network m of one hidden layer, which a normal prior
    pulls towards changing nothing more. Fitted by NLL. Keeps every label and the order of classes.

    Args:
        hidden: Width of the hidden layer; ``None`` means C.
        prior: Deviation of the prior on every weight; its pull fades as rows grow.
        steps: Most L-BFGS iterations.
        seed: Of the hidden layer's start.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> OrderInvariantCalibration().fit(p)(p).confidence[0]
        tensor(0.7500)
    """

    acts_on = "mixture"
    takes_copies = True
    keeps_accuracy = True
    defines_logits = False
    state_names = ("scale", "0.weight", "0.bias", "2.weight", "2.bias")

    hidden: int | None = None
    prior: float = 0.2
    steps: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden is not None and self.hidden < 1:
            raise InputError("hidden >= 1 or None", self.hidden)
        if not self.prior > 0 or self.steps < 1:
            raise InputError("prior > 0 and steps >= 1", f"{self.prior} and {self.steps}")

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        network = self._network(lesson.num_classes)
        scale = 1.0 / torch.tensor(lesson.temperature(lesson.logs[None]), dtype=torch.float64)
        ordered, order = _sort(lesson.logs * scale)
        place = (order == lesson.target[:, None]).int().argmax(dim=-1)  # of the right class

        def loss() -> Tensor:
            stretched = _stretch(ordered, network)
            return lesson.share @ F.cross_entropy(stretched, place, reduction="none")

        fit_module(network, loss, lesson.rows, self.prior, self.steps)
        return {"scale": scale} | dict(network.state_dict())

    @torch.no_grad()
    def _map(self, p: Prediction) -> Tensor:
        ordered, order = _sort(mixture_logs(p) * self._state["scale"])
        first, one, last, two = (self._state[name] for name in self.state_names[1:])

        def network(x: Tensor) -> Tensor:
            return F.linear(F.linear(x, first, one).relu(), last, two)

        return torch.zeros_like(ordered).scatter(1, order, _stretch(ordered, network))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        scale = torch.ones((), dtype=torch.float64)
        return {"scale": scale} | dict(self._network(num_classes).state_dict())

    def _network(self, classes: int) -> nn.Sequential:
        """The identity, with a hidden layer to start from: its last layer is zero."""
        hidden = self.hidden or classes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            first, last = nn.Linear(classes, hidden), nn.Linear(hidden, classes - 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(first, nn.ReLU(), last).double()


def _sort(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits downwards and centred (softmax does not see the shift), and which class is where."""
    if exporting():  # ONNX knows no stable sort; ties have no gap, so their order does not matter
        ordered, order = logits.topk(logits.size(-1), dim=-1)
    else:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    return ordered - ordered.mean(dim=-1, keepdim=True), order


def _stretch(ordered: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
    """Sorted logits with stretched gaps, ``[n, C]``; the last one is 0."""
    gaps = ordered[:, :-1] - ordered[:, 1:]
    wide = network(ordered) + UNIT
    steps = torch.logaddexp(wide, torch.zeros_like(wide)) * gaps  # onnxruntime has no softplus
    return F.pad(steps.flip(-1).cumsum(dim=-1).flip(-1), (0, 1))
