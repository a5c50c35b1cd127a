"""What calibrators learn from, and the one optimiser they learn with: L-BFGS in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.func import functional_call

from gduq.prediction import ClassPrediction, Prediction
from gduq.prediction.mixture import log_mixture, weights_of
from gduq.prediction.temperature import best_temperature

__all__ = ["CalibrationSet", "fit_module", "minimise", "mixture_logs", "samples_of"]

Bounds = Sequence[tuple[float | None, float | None]]


def samples_of(p: Prediction) -> Tensor:
    """The samples ``[K, m, O]`` as calibrators see them: float64, CPU."""
    return p.samples.double().cpu()


def mixture_logs(p: ClassPrediction) -> Tensor:
    """The mixture's log-probabilities ``[m, C]`` as calibrators see them: float64, CPU."""
    return log_mixture(p.samples, p.weights).cpu()


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """Clean rows (``index`` of ``p``) and any corrupted copies of them: half the weight each.

    Example:
        >>> p = ClassPrediction(torch.zeros(2, 2), target=torch.tensor([0, 1]))
        >>> CalibrationSet(p, copies=[p[:1], p[1:]]).share.tolist()
        [0.25, 0.25, 0.25, 0.25]
    """

    p: Any  # a prediction of the calibrator's kind
    index: Tensor | slice = field(default_factory=lambda: slice(None))
    copies: Sequence[Any] = ()

    @cached_property
    def parts(self) -> list[Any]:
        """The clean rows, then every copy."""
        return [self.p[self.index], *self.copies]

    @property
    def rows(self) -> int:
        """Rows that priors are held against: copies of a row tell nothing new about labels."""
        return len(self.parts[0])

    @cached_property
    def samples(self) -> Tensor:
        """Outputs of all parts ``[K, n, O]``: logits, or those of values."""
        return torch.cat([samples_of(p) for p in self.parts], dim=1)

    @cached_property
    def target(self) -> Tensor:
        """Labels ``[n]``, or values."""
        return torch.cat([p.require_target().cpu() for p in self.parts])

    @cached_property
    def share(self) -> Tensor:
        """Of every row in the loss ``[n]``; sums to 1."""
        clean, copies = self.rows, sum(map(len, self.copies))
        share = torch.full((clean + copies,), 1.0 / clean, dtype=torch.float64)
        if copies:
            share[:clean], share[clean:] = 0.5 / clean, 0.5 / copies
        return share

    @property
    def weights(self) -> Tensor | None:
        """Of the hypotheses ``[K]``, or ``None``."""
        weights: Tensor | None = self.p.weights
        return weights

    @cached_property
    def log_probs(self) -> Tensor:
        """The mixture's log-probabilities ``[n, C]``."""
        return log_mixture(self.samples, self.weights)

    def temperature(self, samples: Tensor | None = None) -> float:
        """The best single temperature, of other logits ``[1, n, C]`` of these rows if given."""
        weights = self.weights if samples is None else None
        samples = self.samples if samples is None else samples
        sizes = [len(p) for p in self.parts]
        pieces = (x.split(sizes, dim) for x, dim in ((samples, 1), (self.target, 0)))
        shares = [float(part.sum()) for part in self.share.split(sizes)]
        return best_temperature(list(zip(*pieces, shares, strict=True)), weights)

    def nll(self, logits: Tensor) -> Tensor:
        """The loss of logits ``[K, n, C]`` of these rows: the weighted NLL of their mixture."""
        place = self.target.expand(logits.size(0), -1).unsqueeze(2)
        chosen = logits.gather(2, place).squeeze(2) - logits.logsumexp(dim=2)
        weights = weights_of(logits, self.weights if logits.size(0) > 1 else None)
        return -self.share @ (chosen + weights.log().unsqueeze(1)).logsumexp(dim=0)


def minimise(
    loss: Callable[[Tensor], Tensor],
    start: Tensor,
    bounds: Bounds | None = None,
    steps: int = 200,
    tolerance: float = 1e-10,
) -> Tensor:
    """The minimiser of a function of a float64 vector by L-BFGS.

    Args:
        loss: A differentiable scalar of the vector.
        start: Where to begin.
        bounds: Lower and upper bound of every entry; ``None`` where there is none.
        steps: At most so many iterations.
        tolerance: Relative decrease of the value that counts as none.

    Example:
        >>> minimise(lambda v: (v - 3).square().sum(), torch.zeros(1).double())
        tensor([3.], dtype=torch.float64)
    """

    def objective(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        leaf = torch.from_numpy(vector.copy()).requires_grad_()
        value = loss(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient.numpy()

    options = {"maxiter": steps, "maxcor": 20, "ftol": tolerance, "gtol": 1e-8}
    first = start.detach().double().numpy()
    result = minimize(objective, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return torch.from_numpy(result.x.copy())


def fit_module(
    module: nn.Module, loss: Callable[[Callable[..., Tensor]], Tensor], rows: int, prior: float
) -> dict[str, Tensor]:
    r"""The parameters with the lowest mean loss of n ``rows`` of a module as a function, by name.

    Adds :math:`\frac{1}{2 n \tau^2}\|\theta\|^2`, a normal prior of deviation :math:`\tau` on every
    parameter: strong when rows are few, fading as they grow. The module stays as it is.
    """
    first = dict(module.named_parameters())
    sizes = [value.numel() for value in first.values()]

    def named(vector: Tensor) -> dict[str, Tensor]:
        parts = zip(first.items(), vector.split(sizes), strict=True)
        return {name: part.view_as(value) for (name, value), part in parts}

    def objective(vector: Tensor) -> Tensor:
        values = named(vector)
        value = loss(lambda *inputs: functional_call(module, values, inputs))
        return value + vector.square().sum() / (2 * rows * prior**2)

    start = torch.cat([value.detach().flatten() for value in first.values()])
    found = named(minimise(objective, start, steps=100, tolerance=1e-7))
    return {name: value.clone() for name, value in found.items()}
