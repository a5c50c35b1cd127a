"""Histogram binning: the observed frequency of each bin, class by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gduq.calibration.base import Calibrator, check_classes
from gduq.calibration.lesson import Lesson, mixture_logs
from gduq.errors import InputError
from gduq.prediction import Prediction

__all__ = ["HistogramBinning"]

_FLOOR = 1e-6  # of a frequency: a class never seen in a bin is rare there, not impossible


@dataclass(eq=False)
class HistogramBinning(Calibrator):
    r"""Probabilities replaced by the frequency of their bin (Zadrozny and Elkan, ICML 2001).

    .. math:: p'_{ic} \propto \frac{|\{j \in B : y_j = c\}|}{|B|}, \qquad
        B = \{j : p_{jc} \text{ in the bin of } p_{ic}\}

    One histogram for each class against the rest, of the mixture's probabilities. A bin without
    validation rows leaves them as they are; frequencies below 1e-6 are raised to it. May change
    labels.

    Args:
        bins: Bins per class.
        scheme: ``"width"`` for bins of equal width, ``"mass"`` for bins with equally many rows.
        missing: As for `VectorScaling`; ``"keep"`` leaves the bins of absent classes empty.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> HistogramBinning(bins=4).fit(p)(p).confidence[0]
        tensor(0.7500)
    """

    acts_on: ClassVar[Literal["samples", "mixture"]] = "mixture"
    defines_logits: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ("edges", "frequency", "filled")

    bins: int = 10
    scheme: Literal["width", "mass"] = "width"
    missing: Literal["error", "keep"] = "error"

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise InputError("bins >= 2", self.bins)
        if self.scheme not in ("width", "mass"):
            raise InputError('scheme="width" or "mass"', repr(self.scheme))
        if self.missing not in ("error", "keep"):
            raise InputError('missing="error" or "keep"', repr(self.missing))

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        target = lesson.target
        if len(target) < self.bins:
            raise InputError(
                f"at least as many rows as bins, {self.bins}",
                len(target),
                "Use fewer bins, or TemperatureScaling.",
            )
        seen = check_classes(target, lesson.num_classes, self.missing)
        probs = lesson.logs.exp()
        edges = self._edges(probs)
        where = _bin(probs, edges) + self.bins * torch.arange(lesson.num_classes)  # [n, C]
        cells = self.bins * lesson.num_classes
        count = torch.bincount(where.flatten(), minlength=cells).view(-1, self.bins)
        hits = torch.bincount(where.gather(1, target[:, None]).flatten(), minlength=cells)
        frequency = hits.view(-1, self.bins).double() / count.clamp_min(1)
        filled = (count > 0) & seen[:, None]
        return {"edges": edges, "frequency": frequency, "filled": filled}

    def _map(self, p: Prediction) -> Tensor:
        probs = mixture_logs(p).exp()
        where = _bin(probs, self._state["edges"]).T
        frequency = self._state["frequency"].gather(1, where).T.clamp_min(_FLOOR)
        filled = self._state["filled"].gather(1, where).T
        return torch.where(filled, frequency, probs.clamp_min(1e-300)).log()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        empty = torch.zeros(num_classes, self.bins)
        return {
            "edges": self._edges(torch.zeros(1, num_classes, dtype=torch.float64)),
            "frequency": empty.double(),
            "filled": empty.bool(),
        }

    def _edges(self, probs: Tensor) -> Tensor:
        """Inner edges of the bins, ``[C, bins - 1]``."""
        inner = np.linspace(0.0, 1.0, self.bins + 1)[1:-1]
        if self.scheme == "width":
            return torch.from_numpy(inner).repeat(probs.size(1), 1)
        return torch.from_numpy(np.quantile(probs.numpy(), inner, axis=0).T.copy())


def _bin(probs: Tensor, edges: Tensor) -> Tensor:
    """The bin of every probability ``[n, C]``; a value on an edge belongs to the bin below."""
    return torch.searchsorted(edges.contiguous(), probs.T.contiguous()).T
