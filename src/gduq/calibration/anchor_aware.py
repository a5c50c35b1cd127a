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
from gduq.calibration.optimise import autograd, careful_scale, minimise
from gduq.errors import InputError
from gduq.prediction import Prediction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AnchorAwareTemperature"]

_HOTTEST = 4.605170185988092  # log 100


@dataclass(eq=False)
class AnchorAwareTemperature(RowTemperature):
    r"""A temperature that grows with the disagreement of the hypotheses.

    .. math:: \log T_i = a + b_1 \log(1 + \sigma_i / \bar\sigma)
        + b_2 \log(1 + \iota_i / \bar\iota), \qquad b_1, b_2 \ge 0

    with :math:`\sigma_i` the deviation of the hypotheses' log probabilities (mean over classes),
    :math:`\iota_i` the row's ``epistemic`` uncertainty, and bars for means over the fitting rows.
    The spread is taken of log probabilities because that of probabilities vanishes exactly where
    a model is too sure; the logarithms keep T a power, not an exponential, of disagreement never
    seen in fitting. Fitted by NLL plus a small :math:`\frac{\lambda}{2}\|b\|^2`, starting from
    plain temperature scaling; where disagreement says nothing about errors the slopes are 0 and,
    as with one hypothesis, it *is* temperature scaling. Keeps every label.

    In-distribution rows say little about rows far away: give corrupted copies of the validation
    rows (features noised, edges dropped, ...), predicted by the same model, and the slopes learn
    how disagreement grows when predictions go wrong. This trades some calibration in distribution
    for calibration under shifts like the copies'. By name, `gduq.evaluate` and ``gduq calibrate``
    make such copies themselves: ``"anchor_aware+corrupted"``.

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

    takes_copies: ClassVar[bool] = True
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
            corrupted: Predictions, with targets, of corrupted copies of the rows. Half of the loss
                is then theirs.
        """
        for copy in corrupted:
            _check_copy(p, copy)
        super().fit(p, rows)
        if corrupted:
            self._state |= self._learn([p[row_index(rows, len(p))], *corrupted])
        return self

    def _fit(self, p: Prediction, rows: Tensor | slice) -> dict[str, Tensor]:
        return self._learn([p[rows]])

    def _learn(self, parts: Sequence[Prediction]) -> dict[str, Tensor]:
        """Fit on clean rows (the first part, which sets the units) and copies, half and half."""
        means = _disagreement(parts[0]).mean(dim=0).clamp_min(1e-12)
        inputs = torch.cat([_disagreement(part) for part in parts]).div(means).log1p()  # [n, 2]
        logits, target = (torch.cat(x) for x in zip(*map(_labelled, parts), strict=True))
        clean, copies = len(parts[0]), len(target) - len(parts[0])
        share = torch.full((len(target),), 1.0 / clean, dtype=torch.float64)
        if copies:
            share[:clean], share[clean:] = 0.5 / clean, 0.5 / copies

        def loss(weights: Tensor) -> Tensor:
            scaled = logits / _log_temperature(weights, inputs).exp()[:, None]
            rows = F.cross_entropy(scaled, target, reduction="none")
            return share @ rows + 0.5 * self.penalty * (weights[1:] ** 2).sum()

        start = torch.tensor([-math.log(careful_scale(logits, target)), 0.0, 0.0]).double()
        bounds = [(-_HOTTEST, _HOTTEST), (0.0, None), (0.0, None)]
        return {"weights": minimise(autograd(loss), start, bounds), "means": means}

    def _temperature(self, p: Prediction) -> Tensor:
        inputs = _disagreement(p).div(self._state["means"]).log1p()
        return _log_temperature(self._state["weights"], inputs).exp()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        zero = torch.zeros(3, dtype=torch.float64)
        return {"weights": zero, "means": torch.ones(2, dtype=torch.float64)}


def _disagreement(p: Prediction) -> Tensor:
    """Spread of log probabilities and epistemic uncertainty, ``[m, 2]``, float64 on the CPU."""
    if p.num_samples == 1:
        return torch.zeros(len(p), 2, dtype=torch.float64)
    spread = p.samples.double().log_softmax(dim=-1).std(dim=0).mean(dim=-1)
    return torch.stack([spread, p.epistemic.double()], dim=-1).cpu()


def _log_temperature(weights: Tensor, inputs: Tensor) -> Tensor:
    return (weights[0] + inputs @ weights[1:]).clamp(-_HOTTEST, _HOTTEST)


def _check_copy(p: Prediction, copy: Prediction) -> None:
    if len(copy.require_target()) == 0:
        raise InputError("corrupted copies with at least one row", "an empty one")
    here, there = (p.num_samples, p.num_classes), (copy.num_samples, copy.num_classes)
    if here != there:
        raise InputError(f"corrupted copies with (K, C) = {here}", there)


def _labelled(p: Prediction) -> tuple[Tensor, Tensor]:
    return labelled(p, slice(None))
