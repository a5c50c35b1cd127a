r"""Watching a model at work: are rows still like the training data, and are answers still right?

Both are tests by betting. A capital starts at 1 and, as long as nothing has changed, reaches
:math:`1/\alpha` with a probability of at most :math:`\alpha`, whatever the length of the stream
(Ville's inequality). So it may be looked at after every row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gduq.errors import InputError

__all__ = ["Monitor", "RiskMonitor"]

_BINS = 1000  # novelty is rounded to so many values: memory does not grow with the stream
_JUMP = 0.01  # share of the capital that moves on to the other bets after every row
Stream = Tensor | Sequence[float] | Sequence[bool]


class _Betting:
    """A capital on several bets. It moves between them, so that a late change is found too.

    Attributes:
        rows: How many rows were seen.
        log_capital: Logarithm of the capital: evidence of a change.
        alarm_at: The row, from 1, with which the capital first reached 1 / alpha, or ``None``.
    """

    def __init__(self, bets: Sequence[float], alpha: float) -> None:
        if not 0 < alpha < 1:
            raise InputError("alpha between 0 and 1", alpha)
        self.alpha, self.rows, self.log_capital = alpha, 0, 0.0
        self.alarm_at: int | None = None
        self._bets, self._shares = np.array(bets), np.full(len(bets), 1 / len(bets))

    @property
    def alarm(self) -> bool:
        """Whether there was a change, with a false alarm in at most ``alpha`` of all streams."""
        return self.alarm_at is not None

    def _play(self, gain: float) -> float:
        shares = (1 - _JUMP) * self._shares + _JUMP / len(self._shares)
        shares = shares * (1 + self._bets * gain)
        self.log_capital += math.log(shares.sum())
        self._shares, self.rows = shares / shares.sum(), self.rows + 1
        if not self.alarm and self.log_capital >= -math.log(self.alpha):
            self.alarm_at = self.rows
        return self.log_capital


class Monitor(_Betting):
    """Whether the rows of a stream are still like the training data, by their novelty.

    A conformal test martingale (Vovk et al., 2003, 2021): the novelty of a row is ranked among
    those of validation rows and of the stream so far. Such ranks are independent and uniform as
    long as rows are exchangeable, as molecules and graphs are; neighbouring nodes of one graph are
    not. The capital bets on rows that are too novel.

    Args:
        known: Novelty of the validation rows ``[V]``, as `gduq.predict` gives it for them.
        alpha: Accepted probability of a false alarm, over the whole stream.
        seed: Ties are broken at random.

    Example:
        >>> monitor = Monitor(torch.linspace(0, 1, 100))
        >>> _ = monitor.update(torch.linspace(0, 1, 50)[torch.randperm(50)])
        >>> monitor.alarm
        False
        >>> _ = monitor.update(torch.full((20,), 0.99))
        >>> monitor.alarm
        True
    """

    def __init__(self, known: Stream, alpha: float = 0.05, *, seed: int = 0) -> None:
        super().__init__((0.0, 1.0, 2.0), alpha)
        places = _numbers(known, "novelty") * _BINS
        if not len(places):
            raise InputError("the novelty of validation rows", "none")
        self._counts = np.bincount(places.round().astype(int), minlength=_BINS + 1).astype(float)
        self._random = np.random.default_rng(seed)

    def update(self, novelty: Stream) -> Tensor:
        """The logarithm of the capital after each of some further rows ``[m]``."""
        places = (_numbers(novelty, "novelty") * _BINS).round().astype(int)
        return torch.tensor([self._see(place) for place in places], dtype=torch.float64)

    def _see(self, place: int) -> float:
        self._counts[place] += 1
        larger = self._counts[place + 1 :].sum() + self._random.random() * self._counts[place]
        return self._play(0.5 - larger / self._counts.sum())  # the p-value of a novel row is small


class RiskMonitor(_Betting):
    """Whether the mean loss of a stream is above what is tolerated, as true values come in.

    Betting against a mean of at most ``tolerated`` (Waudby-Smith and Ramdas, 2024; for models at
    work Podkopaev and Ramdas, 2022).

    Args:
        tolerated: The largest mean loss without an alarm, between 0 and 1: of validation rows, and
            as much more as does not matter.
        alpha: As for `Monitor`.

    Example:
        >>> monitor = RiskMonitor(tolerated=0.1)
        >>> _ = monitor.update([0.0, 0.0, 1.0] * 20)
        >>> monitor.alarm
        True
    """

    def __init__(self, tolerated: float, alpha: float = 0.05) -> None:
        if not 0 < tolerated < 1:
            raise InputError("tolerated between 0 and 1", tolerated)
        super().__init__([bet / tolerated for bet in (0.0, 0.1, 0.3, 0.9)], alpha)
        self.tolerated = tolerated

    def update(self, losses: Stream) -> Tensor:
        """The logarithm of the capital after each of some further losses from 0 to 1 ``[m]``."""
        gains = _numbers(losses, "losses") - self.tolerated
        return torch.tensor([self._play(gain) for gain in gains], dtype=torch.float64)


def _numbers(given: Stream, name: str) -> NDArray[np.float64]:
    values = torch.as_tensor(given).double().flatten().cpu()
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"{name} from 0 to 1", "other values")
    return values.numpy()
