"""Sets that grow where a row is hard: APS and RAPS."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gduq.conformal.split import Scored, SplitConformal, conformal_quantile
from gduq.errors import InputError
from gduq.metrics.rows import Rows

__all__ = ["APS", "RAPS", "hashed_uniform"]


class APS(SplitConformal):
    r"""Adaptive prediction sets (Romano, Sesia and Candès, 2020).

    With the classes of a row in descending order of probability and :math:`u \sim U[0, 1)`:

    .. math:: s_{ic} = \sum_{c':\, p_{ic'} > p_{ic}} p_{ic'} + u_i\, p_{ic}

    :math:`u_i` comes from a hash of the seed and the row: the same set alone and in any batch. Sets
    grow for hard rows, so coverage is more even than LAC's, at larger sets.

    Args:
        randomized: ``False`` takes u = 1: no randomness, but coverage above :math:`1 - \alpha`.
        alpha, nonempty, shift_level, seed: As in `SplitConformal`.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p_val = Prediction(torch.eye(4).repeat(5, 1) * 3, target=torch.arange(4).repeat(5))
        >>> APS(alpha=0.2, randomized=False).fit(p_val)(p_val).coverage
        1.0
    """

    def __init__(self, alpha: float = 0.1, *, randomized: bool = True, **options: Any) -> None:
        super().__init__(alpha, **options)
        self.randomized = randomized

    def _scores(self, rows: Rows) -> Tensor:
        return self._ranked(rows)[0]

    def _ranked(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Scores and the rank (1 = most likely) of each class ``[m, C]``."""
        uniform = hashed_uniform(rows.logits, self.seed) if self.randomized else 1.0
        probs, order = rows.probs.double().sort(dim=1, descending=True, stable=True)
        before = probs.cumsum(dim=1) - probs
        values = before + uniform * probs
        ranks = torch.arange(1, probs.size(1) + 1, device=probs.device).expand_as(order)
        unsorted = torch.empty_like(values).scatter_(1, order, values)
        return unsorted, torch.empty_like(order).scatter_(1, order, ranks)


class RAPS(APS):
    r"""Regularised adaptive prediction sets (Angelopoulos et al., 2021).

    .. math:: s_{ic} = \text{APS}_{ic} + \lambda \max(0,\, \text{rank}_{ic} - k)

    Unlikely classes cost extra, which makes sets smaller where there are many classes.

    Args:
        penalty: :math:`\lambda >= 0`; ``None`` for the one of 0.001, 0.01, 0.1, 0.2, 0.5 with the
            smallest sets.
        rank: k >= 0; ``None`` for the :math:`1 - \alpha` quantile of the true classes' ranks.
        share: Share of validation rows for these choices; they do not count for the threshold.
        alpha, randomized, nonempty, shift_level, seed: As in `APS`.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p_val = Prediction(torch.eye(4).repeat(5, 1) * 3, target=torch.arange(4).repeat(5))
        >>> RAPS(alpha=0.2, penalty=0.1, rank=1).fit(p_val)(p_val).coverage >= 0.8
        True
    """

    def __init__(
        self,
        alpha: float = 0.1,
        *,
        penalty: float | None = None,
        rank: int | None = None,
        share: float = 0.2,
        **options: Any,
    ) -> None:
        super().__init__(alpha, **options)
        for name, value in (("penalty", penalty), ("rank", rank)):
            if value is not None and value < 0:
                raise InputError(f"{name} >= 0", value)
        if not 0 < share < 1:
            raise InputError("share between 0 and 1", share)
        self.penalty, self.rank, self.share = penalty, rank, share
        self._chosen: tuple[float, int] = (penalty or 0.0, rank or 0)

    def _learn(self, part: Scored) -> None:
        """Choose what was not given, then find the threshold on the other rows."""
        rows = part.rows
        if self.penalty is None or self.rank is None:
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(len(rows), generator=generator)
            size = int(self.share * len(rows))
            if size < 1 or size == len(rows):
                wanted = "enough rows to choose penalty and rank on some of them"
                raise InputError(wanted, f"{len(rows)} rows", "Pass penalty= and rank=.")
            self._choose(rows[order[:size]])
            rest = order[size:]
            part = Scored(part.p, rows[rest], self._scores(rows[rest]), part.numbers[rest])
        super()._learn(part)

    def _choose(self, rows: Rows) -> None:
        _, ranks = self._ranked(rows)
        rank = self.rank
        if rank is None:
            found = conformal_quantile(rows.true(ranks).double(), self.alpha)
            rank = int(min(found, float(ranks.size(1))))
        tried = (0.001, 0.01, 0.1, 0.2, 0.5) if self.penalty is None else (self.penalty,)
        sizes = []
        for penalty in tried:
            self._chosen = (penalty, rank)
            scores = self._scores(rows)
            level = conformal_quantile(rows.true(scores), self.alpha)
            sizes.append(float((scores <= level).double().sum()))
        self._chosen = (tried[sizes.index(min(sizes))], rank)

    def _scores(self, rows: Rows) -> Tensor:
        scores, ranks = self._ranked(rows)
        penalty, rank = self._chosen
        return scores + penalty * (ranks - rank).clamp_min(0)


def hashed_uniform(logits: Tensor, seed: int) -> Tensor:
    """A number from [0, 1) for each row of logits ``[m, 1]``, by a hash of the row and the seed.

    Draws from a stream would give the k-th row of every call the same number. A hash depends on the
    row alone, so batches and single rows agree; as a fixed function it keeps rows exchangeable.
    """
    bits = (logits.double() + 0.0).contiguous().view(torch.int64)  # + 0.0: of -0 and 0 one number
    place = _mixed(torch.arange(1, logits.size(1) + 1, device=logits.device) + (seed << 20))
    mixed = _mixed(_mixed(bits ^ place).sum(dim=1, keepdim=True) + seed)
    return ((mixed >> 11) & (2**53 - 1)).double() / 2**53


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's step: int64 to int64, every bit of the result depending on all (wraps)."""
    x = x + (0x9E3779B97F4A7C15 - 2**64)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return x ^ ((x >> 31) & (2**33 - 1))
