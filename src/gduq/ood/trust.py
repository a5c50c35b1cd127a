r"""Trust: the probability that an answer is right.

A model says itself how sure it is: of the class it names, of yes or no, of an error within a
tolerance. It does not notice when it leaves its training data, so its odds are divided by the
factor :math:`e^x` by which a row is farther from them than usual (`Novelty.excess`): twice as far,
half the odds. With :math:`p` what the model says and :math:`q` what chance gives,

.. math::
    \mathrm{trust} = q + (1 - q)\,
        \sigma\!\left(a \operatorname{logit} \frac{p - q}{1 - q} + b - x\right),

with :math:`a > 0` and :math:`b` fitted to validation rows and their shifted copies. So trust never
rises with distance, and ends at chance.
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

_PRIOR = 2.0  # rows that the neutral slope 1 and shift 0 are worth
_CLIP = 1e-6  # of probabilities


class Evidence(NamedTuple):
    """Predictions with targets from which trust is learned."""

    p: Prediction
    excess: Tensor  # see `Novelty.excess` [m]
    share: float = 1.0  # of all weight


class Trust(AnySize):
    """The probability that an answer is right, for every kind of prediction.

    Attributes:
        coefficients: :math:`a` and :math:`b` above; empty before `fit`.
        tolerance: Of values: the error up to which an answer is right ``[T]``, by default the root
            mean square error of validation rows.

    Example:
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.tensor([[2.0, 0.0]] * 50), torch.tensor([0] * 44 + [1] * 6))
        >>> trust = Trust().fit([Evidence(p, torch.zeros(50))])
        >>> near, far = trust(p[:2], torch.tensor([0.0, 3.0]))
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
        return self.coefficients.numel() > 0

    def fit(self, sets: Sequence[Evidence]) -> Trust:
        """Fit slope and shift; the first set are validation rows, further ones their copies."""
        first = sets[0].p
        self.tolerance = first.usual_error()
        parts = [self._columns(one) for one in sets]
        z, x, right, weight = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        chance, strength = first.chance, _PRIOR / max(1, len(parts[0][0]))

        def loss(parameters: np.ndarray) -> float:
            slope, shift = parameters
            p = chance + (1 - chance) * expit(slope * z + shift - x)
            p = p.clip(_CLIP, 1 - _CLIP)
            fit = -(weight * (right * np.log(p) + (1 - right) * np.log1p(-p))).sum()
            return float(fit + strength * ((slope - 1) ** 2 + shift**2) / 2)

        found = minimize(loss, [1.0, 0.0], bounds=[(0.05, 20.0), (-20.0, 20.0)]).x
        self.coefficients = torch.tensor(found, dtype=torch.float64)
        return self

    def forward(self, p: Prediction, excess: Tensor) -> Tensor:
        """Trust of each row ``[m]``, or of each label or value ``[m, T]``."""
        z = _sureness(p, self.tolerance)
        excess = excess.to(z) if z.dim() == 1 else excess.to(z).unsqueeze(1)
        slope, shift = self.coefficients.to(z)
        right = torch.sigmoid(slope * z + shift - excess)
        return (p.chance + (1 - p.chance) * right).to(p.samples.dtype)

    def _columns(self, one: Evidence) -> tuple[np.ndarray, ...]:
        """Sureness, excess, whether the answer was right, and weight, of all that is known."""
        right, z = one.p.is_right(self.tolerance).double(), _sureness(one.p, self.tolerance)
        excess = one.excess.to(z)
        excess = (excess if z.dim() == 1 else excess.unsqueeze(1)).expand_as(z)
        known = ~right.isnan()
        weight = torch.full_like(z, one.share / max(1, int(known.sum())))
        return tuple(values[known].cpu().numpy() for values in (z, excess, right, weight))


def _sureness(p: Prediction, tolerance: Tensor) -> Tensor:
    """The log-odds the model gives its answers, beyond chance, in double precision."""
    return ((p.certainty(tolerance).double() - p.chance) / (1 - p.chance)).logit(eps=_CLIP)
