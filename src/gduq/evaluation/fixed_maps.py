"""Maps of predictions that nothing is fitted for, by name beside the calibrators.

``t2`` halves the logits (the control every claim must beat), ``mean_logits`` is the paper's average
of hypotheses, ``rescaled_paper`` and ``rescaled_released`` are the two readings of its rescaling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gduq.calibration import Calibrator, TemperatureScaling
from gduq.calibration.lesson import Lesson, samples_of
from gduq.prediction import Prediction, Rule

__all__ = ["FIXED", "Rescaled", "fixed"]

FIXED = ("t2", "mean_logits", "rescaled_paper", "rescaled_released")


@dataclass(eq=False)
class Rescaled(Calibrator):
    r"""The paper's ways to average hypotheses as a calibrator, with K equal ones left.

    ``"mean"`` is :math:`\mu`, ``"paper"`` :math:`\mu(1-\sigma)`, ``"released"`` the rule of the
    released code.

    Example:
        >>> p = Prediction(torch.tensor([[[2.0, 0.0]], [[2.0, 0.0]]]))  # hypotheses agree
        >>> Rescaled("released").neutral(2, 2)(p).logits  # and are halved all the same
        tensor([[1., 0.]])
    """

    rule: Rule | Literal["mean"] = "paper"
    keeps_accuracy: ClassVar[bool] = False  # per class: the largest logit may change

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        return {}

    def _map(self, p: Prediction) -> Tensor:
        one = p.mean_logits() if self.rule == "mean" else p.rescaled(self.rule)
        return samples_of(one).expand(p.num_samples, -1, -1)

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {}


def fixed(name: str, num_classes: int, num_samples: int) -> Calibrator:
    """One of `FIXED`, ready for use.

    Example:
        >>> fixed("t2", 2, 1)(Prediction(torch.tensor([[2.0, 0.0]]))).logits
        tensor([[1., 0.]])
    """
    if name == "t2":
        cal = TemperatureScaling().neutral(num_classes, num_samples)
        state = {**cal.state(), "temperature": torch.tensor(2.0, dtype=torch.float64)}
        return TemperatureScaling.restore({}, state)
    rule: Any = "mean" if name == "mean_logits" else name.removeprefix("rescaled_")
    return Rescaled(rule).neutral(num_classes, num_samples)
