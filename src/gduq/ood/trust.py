r"""Trust: the probability that an answer is right.

A model says itself how sure it is: of the class it names, of yes or no, of an error within a
tolerance. How far a row is from the training data tells more. With :math:`p` what the model says,
:math:`q` what chance gives, :math:`d` the logarithm of the distance that novelty ranks
(`Novelty.how_far`) and :math:`x` by how much a row is farther than usual (its excess there),

.. math::
    \mathrm{trust} = q + (1 - q)\,
        \sigma\!\left(a \operatorname{logit} \frac{p - q}{1 - q} + b - c\,d - x\right),

where :math:`a > 0`, :math:`b` and :math:`c \ge 0` are fitted to validation rows and their shifted
copies. Few of these are farther than usual, so what :math:`x` counts is a rule: twice as far, half
the odds. So trust never rises with distance, and ends at chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from gduq.nn.layers import AnySize
from gduq.prediction.base import Prediction

__all__ = ["Evidence", "Trust"]

_PRIOR = 2.0  # rows that the neutral slope 1, shift 0 and no weight of distance are worth
_CLIP = 1e-6  # of probabilities


class Evidence(NamedTuple):
    """Predictions with targets from which trust is learned."""

    p: Prediction
    far: Tensor  # see `Novelty.how_far` [m, 2]
    share: float = 1.0  # of all weight


class Trust(AnySize):
    """The probability that an answer is right, for every kind of prediction.

    Attributes:
        coefficients: :math:`a`, :math:`b` and :math:`c` above; empty before `fit`.
        tolerance: Of values: the error up to which an answer is right ``[T]``, by default the root
            mean square error of validation rows.

    Example:
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.tensor([[2.0, 0.0]] * 50), torch.tensor([0] * 44 + [1] * 6))
        >>> trust = Trust().fit([Evidence(p, torch.zeros(50, 2))])
        >>> near, far = trust(p[:2], torch.tensor([[0.0, 0.0], [1.0, 3.0]]))
        >>> round(float(near), 2), float(far) < 0.65
        (0.88, True)
    """

    coefficients: Tensor
    tolerance: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("coefficients", torch.empty(0, dtype=torch.float64))
        self.register_buffer("tolerance", torch.empty(0, dtype=torch.float64))

    @property
    def fitted(self) -> bool:
        """Whether there is anything to go by."""
        return self.coefficients.shape == (3,)  # of a forged file they may be any

    def fit(self, sets: Sequence[Evidence]) -> Trust:
        """Fit the coefficients; the first set are validation rows, further ones their copies."""
        first = sets[0].p
        self.tolerance = first.usual_error()
        parts = [self._columns(one) for one in sets]
        z, d, x, right, weight = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        chance, strength = first.chance, _PRIOR / max(1, len(parts[0][0]))
        spread = max(float(d.std()), _CLIP)

        def loss(parameters: np.ndarray) -> float:
            slope, shift, falls = parameters
            p = chance + (1 - chance) * expit(slope * z + shift - falls * d / spread - x)
            p = p.clip(_CLIP, 1 - _CLIP)
            fit = -(weight * (right * np.log(p) + (1 - right) * np.log1p(-p))).sum()
            return float(fit + strength * ((slope - 1) ** 2 + shift**2 + falls**2) / 2)

        bounds = [(0.05, 20.0), (-20.0, 20.0), (0.0, 20.0)]
        slope, shift, falls = minimize(loss, [1.0, 0.0, 0.0], bounds=bounds).x
        self.coefficients = torch.tensor([slope, shift, falls / spread], dtype=torch.float64)
        return self

    def forward(self, p: Prediction, far: Tensor) -> Tensor:
        """Trust of each row ``[m]``, or of each label or value ``[m, T]``."""
        z, d, x = self._evidence(p, far)
        slope, shift, falls = self.coefficients.to(z)
        right = torch.sigmoid(slope * z + shift - falls * d - x)
        return (p.chance + (1 - p.chance) * right).to(p.samples.dtype)

    def _evidence(self, p: Prediction, far: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-odds that a model gives its answers, beyond chance, and how far its rows are, in
        double precision."""
        beyond = (p.certainty(self.tolerance).double() - p.chance) / (1 - p.chance)
        z = beyond.logit(eps=_CLIP)
        d, x = (one.view(-1, *[1] * (z.dim() - 1)) for one in far.to(z).unbind(1))
        return z, d, x

    def _columns(self, one: Evidence) -> tuple[np.ndarray, ...]:
        """The evidence, whether the answer was right, and weight, of all that is known."""
        z, d, x = self._evidence(one.p, one.far)
        right = one.p.is_right(self.tolerance).double()
        known = ~right.isnan()
        weight = torch.full_like(z, one.share / max(1, int(known.sum())))
        parts = (z, d.expand_as(z), x.expand_as(z), right, weight)
        return tuple(values[known].cpu().numpy() for values in parts)
