"""Anchor-aware temperature: hotter the less the hypotheses agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq.calibration.base import Rows, RowTemperature, labelled, row_index
from gduq.calibration.optimise import autograd, best_scale, minimise
from gduq.errors import InputError
from gduq.prediction import Prediction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AnchorAwareTemperature"]

_HOTTEST = 4.605170185988092  # log 100


@dataclass(eq=False)
class AnchorAwareTemperature(RowTemperature):
    r"""A temperature that grows with the disagreement of the hypotheses.

    .. math:: \log T_i = a + b_1\, \sigma_i / \bar\sigma + b_2\, \iota_i / \bar\iota,
        \qquad b_1, b_2 \ge 0

    with :math:`\sigma_i` the row's ``spread`` (mean over classes), :math:`\iota_i` its
    ``epistemic`` uncertainty, and bars for means over the fitting rows. Fitted by NLL plus a small
    :math:`\frac{\lambda}{2}\|b\|^2`, starting from plain temperature scaling. With one hypothesis
    it *is* temperature scaling. Keeps every label.

    In-distribution rows say little about rows far away: give corrupted copies of the validation
    rows (features noised, edges dropped, ...), predicted by the same model, and the slopes learn
    how disagreement grows when predictions go wrong.

    Args:
        penalty: :math:`\lambda`.

    Example:
        >>> agree = torch.tensor([[4.0, 0.0], [4.0, 0.0]])  # two hypotheses about one row
        >>> differ = torch.tensor([[9.0, 0.0], [-1.0, 0.0]])  # the same mean
        >>> samples = torch.stack([agree] * 20 + [differ] * 20, dim=1)
        >>> target = torch.cat([torch.arange(20) // 19, torch.arange(20) % 2])  # 95 %, 50 % right
        >>> p = Prediction(samples, target=target)
        >>> q = AnchorAwareTemperature().fit(p)(p)
        >>> [round(c, 1) for c in q.confidence[[0, -1]].tolist()]
        [0.9, 0.5]
    """

    state_names: ClassVar[tuple[str, ...]] = ("weights", "means")

    penalty: float = 1e-3

    def __post_init__(self) -> None:
        if not self.penalty >= 0:
            raise InputError("penalty >= 0", self.penalty)

    def fit(
        self, p: Prediction, rows: Rows | None = None, corrupted: Sequence[Prediction] = ()
    ) -> Self:
        """Learn the temperature function.

        Args:
            p: Predictions with targets.
            rows: Fit on these rows of ``p`` only (mask, slice or indices).
            corrupted: Predictions, with targets, of corrupted copies of the rows. The loss is then
                the mean over the clean rows and each copy.
        """
        super().fit(p, rows)
        if corrupted:
            self._check_copies(corrupted)
            self._state |= self._learn([p[row_index(rows, len(p))], *corrupted])
        return self

    def _check_copies(self, corrupted: Sequence[Prediction]) -> None:
        for copy in corrupted:
            self._check_call(copy)
            if len(copy.require_target()) == 0:
                raise InputError("corrupted copies with at least one row", "an empty one")

    def _fit(self, p: Prediction, rows: Tensor | slice) -> dict[str, Tensor]:
        return self._learn([p[rows]])

    def _learn(self, parts: Sequence[Prediction]) -> dict[str, Tensor]:
        """Fit on several predictions of equal weight; the first one sets the units."""
        means = _disagreement(parts[0]).mean(dim=0).clamp_min(1e-12)
        inputs = torch.cat([_disagreement(part) for part in parts]) / means  # [n, 2]
        logits, target = (torch.cat(x) for x in zip(*map(_labelled, parts), strict=True))
        share = torch.cat([torch.full((len(q),), 1 / len(q) / len(parts)) for q in parts]).double()

        def loss(weights: Tensor) -> Tensor:
            scaled = logits / _log_temperature(weights, inputs).exp()[:, None]
            rows = F.cross_entropy(scaled, target, reduction="none")
            return share @ rows + 0.5 * self.penalty * (weights[1:] ** 2).sum()

        start = torch.tensor([-math.log(best_scale(logits, target)), 0.0, 0.0]).double()
        bounds = [(-_HOTTEST, _HOTTEST), (0.0, None), (0.0, None)]
        return {"weights": minimise(autograd(loss), start, bounds), "means": means}

    def _temperature(self, p: Prediction) -> Tensor:
        inputs = _disagreement(p) / self._state["means"]
        return _log_temperature(self._state["weights"], inputs).exp()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        zero = torch.zeros(3, dtype=torch.float64)
        return {"weights": zero, "means": torch.ones(2, dtype=torch.float64)}


def _disagreement(p: Prediction) -> Tensor:
    """Spread and epistemic uncertainty of each row, ``[m, 2]``, float64 on the CPU."""
    return torch.stack([p.spread.mean(dim=-1), p.epistemic], dim=-1).double().cpu()


def _log_temperature(weights: Tensor, inputs: Tensor) -> Tensor:
    return (weights[0] + inputs @ weights[1:]).clamp(-_HOTTEST, _HOTTEST)


def _labelled(p: Prediction) -> tuple[Tensor, Tensor]:
    return labelled(p, slice(None))
