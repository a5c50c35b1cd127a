r"""`LastLayerLaplace`: a Gaussian over the weights of a trained network's last linear layer.

Around its trained weights :math:`\hat\theta` (bias included) a linear map of features :math:`\phi`
has the Laplace approximation

.. math::
    \theta \sim N\bigl(\hat\theta, (H + \tau I)^{-1}\bigr), \qquad
    H = \sum_i \Lambda_i \otimes \phi_i \phi_i^\top

where :math:`\Lambda_i` is the Hessian of row i's loss by its outputs. H is kept in its eigenbasis,
and the prior precision :math:`\tau` maximises the marginal likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import ClassVar, Literal, cast

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from gduq._checks import check_int, one_of
from gduq._torch import exporting, normal
from gduq.errors import InputError, NotFittedError
from gduq.models.head_ensemble import OnTrunk
from gduq.models.predictor import CachedRows, TrainHeads
from gduq.nn.network_specs import AnySize
from gduq.prediction import Labels, Target, Values
from gduq.tracing.call import LINEAR, Call
from gduq.tracing.trunk import Trunk

__all__ = ["LastLayerLaplace", "Posterior"]

Link = Literal["samples", "probit"]

_MOST = 4_000_000  # numbers in the eigenvectors of all outputs
_LEAST = 1e-12  # noise, relative to what the network or the scale of the values says


class LastLayerLaplace(OnTrunk):
    """A trained network with a Laplace approximation of its last layer (Daxberger et al., 2021).

    In closed form from one pass over the training rows, with the prior by marginal likelihood:
    nothing is trained. For classes from the generalised Gauss-Newton matrix as a Kronecker product.
    Labels are yes/no questions of their own, each with the prior that suits it. For values it is
    Bayesian linear regression around the trained weights; the noise is the network's own or, where
    it gives means only, by marginal likelihood too.

    Args:
        net: A trained network with a head; it is copied.
        num_samples: K.
        link: ``"samples"``: K draws of the last layer's weights. ``"probit"``: classes and labels
            have one hypothesis with moderated logits, whose probabilities are better but have no
            epistemic part; values have K Gaussians whose means are spaced like the quantiles of
            the posterior, with exactly its mean and variance (for K = 1 it widens the noise).
        call: As in `gduq.anchor`.
        seed: For the draws.
        trunk: A trunk to share with other models.
    """

    kind: ClassVar[str] = "LastLayerLaplace"
    settings: ClassVar[tuple[str, ...]] = ("num_samples", "link", "seed")

    def __init__(
        self,
        net: nn.Module | None,
        num_samples: int = 10,
        link: Link = "probit",
        call: Call | None = None,
        seed: int = 0,
        trunk: Trunk | None = None,
    ) -> None:
        one_of("link", link, ("samples", "probit"))
        self.num_samples = check_int("num_samples", num_samples, 1)
        self.link, self.seed = link, seed
        self._drawn: tuple[Tensor, Tensor] | None = None  # of which posterior, and the draws
        super().__init__(net, call, trunk)

    def _build(self, trunk: Trunk) -> None:
        first, rest = trunk.head()
        steps = [first, *(rest.children() if isinstance(rest, nn.Sequential) else [])]
        last = max(i for i, step in enumerate(steps) if isinstance(step, LINEAR))
        if any(not isinstance(step, (nn.Dropout, nn.Identity)) for step in steps[last + 1 :]):
            raise InputError("a head that ends in a linear map", f"{steps[-1]} at its end")
        self.lead = nn.Sequential(*steps[:last]).requires_grad_(False)
        self.last = cast(nn.Linear, steps[last].requires_grad_(False))
        self.posterior = Posterior()

    @torch.no_grad()
    def fit_rows(
        self, train: CachedRows, held: CachedRows, learn: TrainHeads, before: Target | None = None
    ) -> None:
        phi, target, y = self.lead(train.h), self.target, train.y
        weight: Tensor = self.last.weight
        bias: Tensor | None = getattr(self.last, "bias", None)
        curvature = residuals = None
        if isinstance(target, Values):  # in standardised units, with the noise the network gives
            count = target.num_values
            weight, bias = weight[:count], None if bias is None else bias[:count]
            if target.raw:
                shift, scale = (weight.new_tensor(given) for given in (target.shift, target.scale))
                weight = weight / scale.unsqueeze(1)
                bias = None if bias is None else (bias - shift) / scale
            means, logs = self._own(phi, target)
            curvature, residuals = (-logs).exp(), y - means if target.needs_noise else None
        elif isinstance(target, Labels) or weight.size(0) == 1:
            p = self.last(phi).sigmoid()
            curvature = p * (1 - p) * ~y.view(p.shape).isnan()
        self.posterior = Posterior().to(phi.device).fit(phi, weight, bias, curvature, residuals)

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        self.check_ready()
        phi = self.lead(h)
        if isinstance(self.target, Values):
            return self._values(phi, self.target)
        if self.link == "probit":
            return self.posterior.probit(phi).unsqueeze(0)
        return self.posterior.outputs(phi, self._draws)

    def _values(self, phi: Tensor, target: Values) -> Tensor:
        """Means and log-variances of K Gaussians ``[K, m, 2T]``, standardised."""
        means, logs = self._own(phi, target)
        logs = logs + self.posterior.noise.log().to(logs)
        if self.link == "samples":
            drawn = self.posterior.outputs(phi, self._draws)
            means = means + drawn - self.posterior.mean(phi)
        elif self.num_samples == 1:
            means, logs = means[None], (logs.exp() + self.posterior.variance(phi)).log()[None]
        else:  # quantiles of the standard normal distribution, stretched to a variance of 1
            k, quantile = self.num_samples, NormalDist().inv_cdf  # ONNX has no such function
            steps = torch.tensor([quantile((i + 0.5) / k) for i in range(k)], dtype=torch.float64)
            steps = (steps / steps.square().mean().sqrt()).to(means).view(-1, 1, 1)
            means = means + steps * self.posterior.variance(phi).sqrt()
        return torch.cat([means, logs.expand_as(means)], dim=-1)

    def _own(self, phi: Tensor, target: Values) -> tuple[Tensor, Tensor]:
        """The network's means and log-variances ``[m, T]``, standardised; 0 where it has none."""
        means, logs = target.to_params(self.last(phi)).chunk(2, dim=-1)
        return means, torch.zeros_like(logs) if target.needs_noise else logs

    @property
    def _draws(self) -> Tensor:
        """K draws of the weights ``[K, C, D]``, made anew where the posterior is another one.

        An exported program holds those of the last answer before it was made.
        """
        values, known = self.posterior.values, self._drawn
        if known is None or not (exporting() or known[0] is values):
            generator = torch.Generator().manual_seed(self.seed)
            known = self._drawn = (values, self.posterior.draw(self.num_samples, generator))
        return known[1]

    def check_ready(self) -> None:
        if self.trunk is None or not self.posterior.weight.numel():
            raise NotFittedError("a posterior", "none yet", "Call gduq.fit(model, train, val).")


class Posterior(AnySize):
    r"""A Gaussian over the weights of a last linear layer around its trained weights.

    For classes that exclude each other :math:`H = B \otimes A` with A the sum of
    :math:`\phi \phi^\top` and B the mean of :math:`\mathrm{diag}(p) - p p^\top` (Ritter et al.,
    ICLR 2018). Other outputs are independent: with the loss's curvature :math:`\lambda_{ti}`,

    .. math::
        \theta_t \sim N\Bigl(\hat\theta_t, \bigl(\tfrac{1}{s_t} H_t + \tau_t I\bigr)^{-1}\Bigr),
        \qquad H_t = \sum_i \lambda_{ti}\, \phi_i \phi_i^\top

    For labels :math:`\lambda = p (1 - p)` and :math:`s = 1`. For values with noise of variance
    :math:`s_t v_{ti}` it is :math:`\lambda = 1 / v`, and the posterior is no approximation: this
    is Bayesian linear regression, where an unknown :math:`s_t` maximises the marginal likelihood.

    Attributes:
        weight: The trained weights ``[C, D]``; D is d, or d + 1 with the bias last.
        has_bias: Whether there is a bias.
        left: Eigenvectors of B ``[C, C]``; the identity for independent outputs.
        right: Eigenvectors of A ``[1, D, D]`` or of every :math:`H_t` ``[C, D, D]``; outputs share
            them where rows count the same, or where there are so many outputs that the mean of
            :math:`\lambda_t` stands for it.
        values: Eigenvalues of H ``[C, D]``.
        precision, noise: :math:`\tau` and s ``[C]``.
    """

    weight: Tensor
    has_bias: Tensor
    left: Tensor
    right: Tensor
    values: Tensor
    precision: Tensor
    noise: Tensor

    def __init__(self) -> None:
        super().__init__()
        dims = {"weight": 2, "left": 2, "right": 3, "values": 2, "precision": 1, "noise": 1}
        for name, dim in dims.items():
            self.register_buffer(name, torch.empty([0] * dim, dtype=torch.float64))
        self.register_buffer("has_bias", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def fit(
        self,
        phi: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        curvature: Tensor | None = None,
        residuals: Tensor | None = None,
    ) -> Posterior:
        r"""Fit to the features ``[n, d]`` of training rows and a trained layer ``[C, d]``.

        The curvature :math:`\lambda` ``[n, C]`` of independent outputs is 0 where an entry is
        missing; ``None`` means classes. Residuals (truth less output, ``[n, C]``) are for values
        whose noise is to be found, else :math:`s = 1`.
        """
        if not torch.isfinite(phi).all():
            raise InputError("finite features", "NaN or infinite values")
        theta = weight.detach().double()
        if bias is not None:
            theta = torch.cat([theta, bias.detach().double().unsqueeze(1)], dim=1)
        self.weight, self.has_bias = theta, torch.full_like(self.has_bias, bias is not None)
        phi, self.noise = self._read(phi), torch.ones_like(theta[:, 0])
        if curvature is None:
            probs = (phi @ theta.T).softmax(dim=1)
            mean = probs.mean(dim=0).diag() - probs.T @ probs / probs.size(0)
            of_outputs, self.left = _eigen(mean)
            of_inputs, right = _eigen(phi.T @ phi)
            self.values, self.right = torch.outer(of_outputs, of_inputs), right.unsqueeze(0)
            self.precision = torch.full_like(self.noise, _best_precision(self.values, theta))
            return self
        curvature, self.left = curvature.double(), torch.eye(len(theta)).to(theta)
        if bool((curvature == curvature[:1]).all()) or len(theta) * phi.size(1) ** 2 > _MOST:
            of_inputs, right = _eigen(phi.T @ phi)
            self.values = torch.outer(curvature.mean(dim=0), of_inputs)
            self.right = right.unsqueeze(0)
        else:
            columns = (column.unsqueeze(1) for column in curvature.unbind(dim=1))
            self.values, self.right = _eigen(torch.stack([(phi * c).T @ phi for c in columns]))
        if residuals is not None:
            squares = (curvature * residuals.double().square()).sum(dim=0)
            cases = zip(self.values, theta, squares.tolist(), strict=True)
            found = [_best_noise(*case, rows=phi.size(0)) for case in cases]
            self.noise = theta.new_tensor(found)
        scaled = self.values / self.noise.unsqueeze(1)
        pairs = zip(scaled, theta, strict=True)
        self.precision = theta.new_tensor([_best_precision(*pair) for pair in pairs])
        return self

    def _read(self, phi: Tensor) -> Tensor:
        """Features as the layer reads them: with a 1 at their end where it has a bias."""
        phi = phi.detach().to(self.weight)
        return torch.cat([phi, phi.new_ones(phi.size(0), 1)], dim=1) if bool(self.has_bias) else phi

    @property
    def _scale(self) -> Tensor:
        """Variances of the weights in the eigenbasis ``[C, D]``."""
        return (self.values / self.noise.unsqueeze(1) + self.precision.unsqueeze(1)).reciprocal()

    @torch.no_grad()
    def mean(self, phi: Tensor) -> Tensor:
        """Outputs ``[m, C]`` of the trained layer."""
        return (self._read(phi) @ self.weight.T).to(phi.dtype)

    @torch.no_grad()
    def variance(self, phi: Tensor) -> Tensor:
        """Variance ``[m, C]`` of each output for features ``[m, d]``."""
        read, scale = self._read(phi), self._scale
        if self.right.size(0) == 1:
            found = (read @ self.right[0]).square() @ scale.T
        else:
            pairs = zip(self.right, scale, strict=True)
            found = torch.stack([(read @ r).square() @ s for r, s in pairs], dim=1)
        return (found @ self.left.square().T).to(phi.dtype)

    def probit(self, phi: Tensor) -> Tensor:
        r"""Logits ``[m, C]`` whose softmax (sigmoid) approximates the mean over the posterior.

        MacKay's :math:`\mu / \sqrt{1 + \pi \sigma^2 / 8}`, output by output.
        """
        return self.mean(phi) / (1.0 + math.pi / 8.0 * self.variance(phi)).sqrt()

    @torch.no_grad()
    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        """K draws of the weights ``[K, C, D]``, the bias last; each is a network of its own."""
        drawn = normal((k, *self.values.shape), torch.float64, self.values.device, generator)
        scaled = (drawn * self._scale.sqrt()).unsqueeze(2) @ self.right.transpose(1, 2)
        return self.weight + self.left @ scaled.squeeze(2)

    @torch.no_grad()
    def outputs(self, phi: Tensor, draws: Tensor) -> Tensor:
        """Outputs ``[K, m, C]`` under given weights ``[K, C, D]``."""
        return (self._read(phi) @ draws.transpose(1, 2)).to(phi.dtype)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below 0, and eigenvectors as files hold them."""
    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp_min(0), vectors.contiguous()


# -- marginal likelihood --------------------------------------------------------------------------


def _best_precision(values: Tensor, theta: Tensor) -> float:
    r"""The prior precision that maximises the marginal likelihood of a Laplace approximation.

    With eigenvalues :math:`\lambda` of H and P weights, up to what does not depend on it,

    .. math::
        2 \log Z(\tau) = P \log \tau - \sum_j \log(\lambda_j + \tau) - \tau \|\hat\theta\|^2

    Its derivative by :math:`\log \tau` only falls: there is one maximum.
    """
    known, length = values.cpu().double().numpy().ravel(), float(theta.double().square().sum())
    return _root(lambda tau: (known / (known + tau)).sum() - tau * length, 1e-6, 1e6)


def _best_noise(values: Tensor, theta: Tensor, squares: float, rows: int) -> float:
    r"""The noise that, with the best prior precision, maximises the marginal likelihood.

    With weights :math:`\hat\theta`, eigenvalues :math:`\lambda` of H and the sum of squared
    residuals :math:`\|r\|^2` of n rows, up to constants,

    .. math::
        2 \log Z(\tau, s) = P \log \tau - n \log s - \sum_j \log(\lambda_j / s + \tau) -
        \|r\|^2 / s - \tau \|\hat\theta\|^2

    Where both derivatives are 0, :math:`\tau = \gamma / \|\hat\theta\|^2` and :math:`s = \|r\|^2 /
    (n - \gamma)` with :math:`\gamma = \sum_j \lambda_j / (\lambda_j + \rho)`. So :math:`\rho = \tau
    s` solves :math:`\rho = \gamma \|r\|^2 / ((n - \gamma) \|\hat\theta\|^2)`, of which one side
    rises and the other falls.
    """
    known, length = values.cpu().double().numpy(), float(theta.double().square().sum())
    squares, top = max(squares, _LEAST * rows), max(float(known.max()), 1e-200)

    def explained(ratio: float) -> float:
        return float((known / (known + ratio)).sum())

    def slope(ratio: float) -> float:
        gamma = explained(ratio)
        return gamma * squares - ratio * (rows - gamma) * length

    gamma = explained(_root(slope, top * 1e-26, top * 1e26))
    return squares / max(rows - gamma, _LEAST * rows)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function of a positive number is 0, or the end that is next to it."""
    if falling(low) <= 0 or falling(high) >= 0:
        return low if falling(low) <= 0 else high
    return math.exp(brentq(lambda x: falling(math.exp(x)), math.log(low), math.log(high)))
