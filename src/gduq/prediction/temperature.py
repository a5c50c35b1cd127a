r"""One temperature for all hypotheses, by the likelihood of their mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction.mixture import weights_of

__all__ = ["COOLEST", "HOTTEST", "Part", "Tempered", "best_temperature", "counted", "tempered_nll"]

Part = tuple[Tensor, Tensor, float]  # samples [K, n, O], truth [n, ...], weight of the part

COOLEST, HOTTEST = 0.01, 100.0

_GRID = 33  # temperatures tried first, each a third above the last
_FEW = 1000  # rows that these look at


def best_temperature(parts: Sequence[Part], weights: Tensor | None = None) -> float:
    r"""The temperature with the lowest NLL of the mixture, from 0.01 to 100.

    .. math:: \min_T \sum_j v_j \,\frac{1}{n_j} \sum_{i} -\log \sum_k w_k\,
        \mathrm{softmax}(s_{ki} / T)_{y_i}

    For several hypotheses this is not convex: a grid finds the valley, Newton's method its
    bottom. Where T makes no difference it is 1.

    Rows that are all right say :math:`T \to 0`, and the first wrong row met later costs without
    limit. So a T below 1 is found with a row of even target among them, and is at most 1.

    Args:
        parts: Logits ``[K, n, C]``, labels ``[n]`` and weight of every set of rows.
        weights: Of the K hypotheses; ``None`` for equal ones.

    Example:
        >>> z = torch.tensor([[[4.0, 0.0]] * 4])  # sure of class 0, right three times of four
        >>> round(best_temperature([(z, torch.tensor([0, 0, 0, 1]), 1.0)]), 3)
        3.641
    """
    kept, extra = counted(parts)
    rows = _joined(kept, weights)
    step = math.ceil(sum(len(target) for _, target, _ in kept) / _FEW)
    few = _joined([(s[:, ::step], y[::step], share) for s, y, share in kept], weights)
    found = _search(rows, few, 0.0)
    if found >= 1.0:
        return found
    return min(1.0, _search(rows, few, extra))


def counted(parts: Sequence[Part]) -> tuple[list[Part], float]:
    """The parts of a weight above 0, and what a row more weighs that is like the average one."""
    kept = [part for part in parts if part[2] > 0.0]
    if not kept or any(len(target) == 0 for _, target, _ in kept):
        raise InputError("parts with at least one row and a weight above 0", "none, or empty ones")
    total = sum(share for *_, share in kept)
    return kept, total / sum(share * len(target) / total for _, target, share in kept)


@dataclass(frozen=True, eq=False)
class Tempered:
    """Rows whose logits are to be divided by a temperature, prepared once."""

    centred: Tensor  # logits [K, n, C] less the largest of each hypothesis, float64
    chosen: Tensor  # those of the right class [K, n]
    weights: Tensor  # of the hypotheses [K]
    share: Tensor  # of every row in the loss [n]

    @classmethod
    def of(
        cls, samples: Tensor, target: Tensor, share: Tensor, weights: Tensor | None = None
    ) -> Tempered:
        """From logits ``[K, n, C]`` of any precision, labels ``[n]`` and shares ``[n]``."""
        samples = samples.double()
        centred = samples - samples.amax(dim=2, keepdim=True)
        place = target.expand(centred.size(0), -1).unsqueeze(2)
        chosen = centred.gather(2, place).squeeze(2)
        return cls(centred, chosen, weights_of(samples, weights), share.double())

    def _moments(self, scale: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """Sum of the odds, and the first two moments of the logits under them ``[K, n]``."""
        odds = (self.centred * scale).exp_()  # [K, n, C]
        total = odds.sum(dim=2)
        odds *= self.centred
        mean = odds.sum(dim=2) / total
        return total, mean, torch.einsum("knc,knc->kn", odds, self.centred) / total

    def slopes(self, scale: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """NLL of every row ``[n]`` and its two derivatives in the scale, 1/T, of all or each."""
        total, mean, square = self._moments(
            scale if isinstance(scale, float) else scale.unsqueeze(-1)
        )
        log = self.chosen * scale - total.log() + self.weights.log().unsqueeze(1)
        nll = -log.logsumexp(dim=0)
        blame = (log + nll).exp_()  # of every hypothesis for the right class, sums to 1
        up = self.chosen - mean
        first = (blame * up).sum(dim=0)
        bend = (blame * (up.square() - square + mean.square())).sum(dim=0)
        return nll, -first, first.square() - bend

    def nll(self, scale: float) -> float:
        """Weighted sum of the NLL of all rows."""
        total = (self.centred * scale).exp_().sum(dim=2)
        log = self.chosen * scale - total.log_() + self.weights.log().unsqueeze(1)
        return -float(self.share @ log.logsumexp(dim=0))

    def even(self, scale: float) -> tuple[float, float, float]:
        """Like `slopes` for one row of even target, like the average one."""
        total, mean, square = self._moments(scale)
        share = self.share / self.share.sum()

        def average(values: Tensor) -> float:
            return float(self.weights @ values @ share)

        middle = self.centred.mean(dim=2)
        value = average(total.log() - scale * middle)
        return value, average(mean - middle), average(square - mean.square())


def tempered_nll(rows: Tempered, scale: Tensor) -> Tensor:
    """The weighted NLL when row i is scaled by ``scale[i]``; gradients reach the scale only."""
    loss: Tensor = _TemperedNLL.apply(scale, rows)  # type: ignore[no-untyped-call]
    return loss


class _TemperedNLL(torch.autograd.Function):
    """Slopes in closed form: no graph over ``[K, n, C]`` is kept."""

    @staticmethod
    def forward(ctx: Any, scale: Tensor, rows: Tempered) -> Tensor:
        nll, first, _ = rows.slopes(scale.detach())
        ctx.save_for_backward(first * rows.share)
        return rows.share @ nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None


def _joined(parts: Sequence[Part], weights: Tensor | None) -> Tempered:
    """All parts as one; a row's share is its part's weight over its part's rows."""
    share = [torch.full((len(t),), v / len(t), dtype=torch.float64) for _, t, v in parts]
    samples, target = torch.cat([s for s, *_ in parts], dim=1), torch.cat([t for _, t, _ in parts])
    return Tempered.of(samples, target, torch.cat(share).to(samples.device), weights)


def _search(rows: Tempered, few: Tempered, extra: float) -> float:
    """The best temperature, with a row of even target of weight ``extra``."""
    logs = torch.linspace(math.log(COOLEST), math.log(HOTTEST), _GRID, dtype=torch.float64)
    scales = (-logs).exp().tolist()
    found = [few.nll(s) + (extra * few.even(s)[0] if extra else 0.0) for s in scales]
    values = torch.tensor(found, dtype=torch.float64)
    slack = 1e-12 * max(1.0, abs(float(values.min())))
    good = torch.nonzero(values <= values.min() + slack).flatten()
    best = int(good[logs[good].abs().argmin()])  # of equal ones the nearest to T = 1
    if len(good) == _GRID:
        return 1.0
    ends = scales[min(best + 2, _GRID - 1)], scales[max(best - 2, 0)]
    bottom = _bottom(rows, extra, scales[best], *ends)
    return min(max(1.0 / bottom, COOLEST), HOTTEST)  # exactly, where they are


def _bottom(rows: Tempered, extra: float, scale: float, low: float, high: float) -> float:
    """Newton's method in 1/T between two bounds, which are halved where it leads out of them."""
    for _ in range(60):
        _, firsts, seconds = rows.slopes(scale)
        slope, curvature = float(rows.share @ firsts), float(rows.share @ seconds)
        if extra:
            _, more, bend = rows.even(scale)
            slope, curvature = slope + extra * more, curvature + extra * bend
        step = scale - slope / curvature if curvature > 1e-300 else math.inf
        if slope == 0.0 or abs(step - scale) <= 1e-10 * scale:
            return scale
        low, high = (scale, high) if slope < 0.0 else (low, scale)
        if high - low <= 1e-10 * low:  # at once, if the best is the first or the last of all
            break
        scale = step if low < step < high else math.sqrt(low * high)
    return scale
