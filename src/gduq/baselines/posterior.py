r"""The Laplace approximation of a network's last linear layer, in closed form.

Around its trained weights :math:`\hat\theta` (bias included) a linear map of features
:math:`\phi` has the Gaussian posterior

.. math::
    \theta \sim N\bigl(\hat\theta, (H + \tau I)^{-1}\bigr), \qquad
    H = \sum_i \Lambda_i \otimes \phi_i \phi_i^\top

where :math:`\Lambda_i` is the Hessian of row i's loss by its outputs: :math:`\mathrm{diag}(p_i) -
p_i p_i^\top` for softmax. H is kept in its eigenbasis, whole or as :math:`B \otimes A` with A the
sum of :math:`\phi \phi^\top` and B the mean of :math:`\Lambda` (Ritter et al., ICLR 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gduq.errors import InputError, NotFittedError
from gduq.functional import normal

__all__ = ["LastLayerPosterior", "best_precision"]

Structure = Literal["auto", "full", "kron"]

_LARGEST = (
    256  # weights for which the whole matrix is decomposed: more would cost more than it gives
)
_CHUNK = 4_000_000  # numbers in one block


class LastLayerPosterior(nn.Module):
    r"""A Gaussian over the weights of a last linear layer, and what it says about outputs.

    The prior precision :math:`\tau` maximises the marginal likelihood.

    Attributes:
        weight: The trained weights ``[C, D]``; D is d, or d + 1 with the bias last.
        left, right: Eigenvectors: ``[C, C]`` and ``[D, D]`` for the Kronecker form, ``[1, 1]`` and
            ``[C * D, C * D]`` for the whole matrix.
        values: Eigenvalues of H, ``[C, D]`` or ``[1, C * D]``.
        precision: :math:`\tau`, a scalar.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> phi, head = torch.randn(50, 4, generator=generator), torch.nn.Linear(4, 3)
        >>> posterior = LastLayerPosterior().fit(phi, head.weight, head.bias)
        >>> posterior.sample(phi, 10, generator).shape, posterior.covariance(phi).shape
        (torch.Size([10, 50, 3]), torch.Size([50, 3, 3]))
    """

    weight: Tensor
    left: Tensor
    right: Tensor
    values: Tensor
    precision: Tensor
    has_bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("weight", "left", "right", "values"):
            self.register_buffer(name, torch.empty(0, 0, dtype=torch.float64))
        self.register_buffer("precision", torch.ones((), dtype=torch.float64))
        self.register_buffer("has_bias", torch.zeros((), dtype=torch.bool))

    @property
    def fitted(self) -> bool:
        """Whether there is a posterior."""
        return self.weight.numel() > 0

    @property
    def structure(self) -> str:
        """``"full"`` or ``"kron"``."""
        return "full" if self.right.size(0) == self.weight.numel() else "kron"

    # -- fitting -------------------------------------------------------------------------------

    @torch.no_grad()
    def fit(
        self,
        phi: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        structure: Structure = "auto",
        curvature: Tensor | None = None,
    ) -> LastLayerPosterior:
        r"""Fit to the features of training rows and a trained layer.

        Args:
            phi: Features ``[n, d]`` that the layer reads.
            weight: ``[C, d]``; C = 1 is the one logit of a yes/no question.
            bias: ``[C]`` or ``None``.
            structure: ``"auto"`` takes the whole matrix up to 256 weights.
            curvature: The diagonals of :math:`\Lambda_i`, ``[n, C]``, of outputs that are
                independent of each other: :math:`p (1 - p)` for yes/no labels, :math:`1/\sigma^2`
                for values with Gaussian noise, 0 where an entry is missing. ``None``: softmax over
                the C outputs, or one yes/no logit.
        """
        _check(phi, weight, bias, structure, curvature)
        phi = _with_one(phi.detach().double(), bias is not None)
        theta = weight.detach().double()
        theta = theta if bias is None else torch.cat([theta, bias.detach().double()[:, None]], 1)
        diagonal, probs = _output_curvature(phi @ theta.T, curvature)
        if structure == "full" or (structure == "auto" and theta.numel() <= _LARGEST):
            left = phi.new_ones(1, 1)
            values, right = torch.linalg.eigh(_whole(phi, diagonal, probs))
            values = values.unsqueeze(0)
        else:
            of_outputs, left = torch.linalg.eigh(_mean_curvature(diagonal, probs))
            of_inputs, right = torch.linalg.eigh(phi.T @ phi)
            values = torch.outer(of_outputs.clamp_min(0), of_inputs.clamp_min(0))
        self.left, self.right = left.contiguous(), right.contiguous()  # as files hold them
        self.weight, self.values = theta, values.clamp_min(0)
        self.has_bias = torch.full_like(self.has_bias, bias is not None)
        self.precision = best_precision(self.values, theta).to(theta)
        return self

    # -- what it says ---------------------------------------------------------------------------

    @torch.no_grad()
    def mean(self, phi: Tensor) -> Tensor:
        """Outputs ``[m, C]`` of the trained layer for features ``[m, d]``."""
        return (self._read(phi) @ self.weight.T).to(phi.dtype)

    @torch.no_grad()
    def covariance(self, phi: Tensor) -> Tensor:
        """Covariance ``[m, C, C]`` of the outputs of each row."""
        read, outputs = self._read(phi), self.weight.size(0)
        scale = (self.values + self.precision).reciprocal()
        if self.structure == "kron":
            per_output = (read @ self.right).square() @ scale.T  # [m, C] in the eigenbasis
            return torch.einsum("ck,mk,ek->mce", self.left, per_output, self.left).to(phi.dtype)
        factor = (self.right * scale.sqrt()).view(outputs, read.size(1), -1)  # [C, D, C * D]
        blocks = read.split(max(1, _CHUNK // (outputs * self.right.size(0))))
        parts = (torch.einsum("md,cdp->mcp", block, factor) for block in blocks)
        return torch.cat([part @ part.transpose(1, 2) for part in parts]).to(phi.dtype)

    @torch.no_grad()
    def variance(self, phi: Tensor) -> Tensor:
        """Variance ``[m, C]`` of each output: the diagonals of `covariance`, at less cost."""
        read, outputs = self._read(phi), self.weight.size(0)
        scale = (self.values + self.precision).reciprocal()
        if self.structure == "kron":
            return ((read @ self.right).square() @ scale.T @ self.left.square().T).to(phi.dtype)
        rows = self.right.view(outputs, read.size(1), -1)
        blocks = (rows * scale) @ rows.transpose(1, 2)  # [C, D, D]
        return torch.stack([((read @ b) * read).sum(dim=1) for b in blocks], dim=1).to(phi.dtype)

    @torch.no_grad()
    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        """K draws of the weights ``[K, C, D]``, the bias last; each is a network of its own."""
        self._require_fit()
        noise = normal((k, *self.values.shape), self.values.dtype, self.values.device, generator)
        scaled = noise * (self.values + self.precision).rsqrt()
        return self.weight + (self.left @ scaled @ self.right.T).view(k, *self.weight.shape)

    @torch.no_grad()
    def sample(self, phi: Tensor, k: int, generator: torch.Generator) -> Tensor:
        """Outputs ``[K, m, C]`` under K draws of the weights, the same draws for all rows."""
        return (self._read(phi) @ self.draw(k, generator).transpose(1, 2)).to(phi.dtype)

    def probit(self, phi: Tensor) -> Tensor:
        r"""Logits ``[m, C]`` whose softmax (sigmoid) approximates the mean over the posterior.

        MacKay's :math:`\mu / \sqrt{1 + \pi \sigma^2 / 8}`, output by output.
        """
        return self.mean(phi) / (1.0 + math.pi / 8.0 * self.variance(phi)).sqrt()

    # -- inside ---------------------------------------------------------------------------------

    def _read(self, phi: Tensor) -> Tensor:
        self._require_fit()
        width = self.weight.size(1) - int(self.has_bias)
        if phi.dim() != 2 or phi.size(1) != width:
            raise InputError(f"features of shape [m, {width}]", list(phi.shape))
        return _with_one(phi.detach().to(self.weight), bool(self.has_bias))

    def _require_fit(self) -> None:
        if not self.fitted:
            raise NotFittedError("a fitted posterior", "none", "Call fit(phi, weight, bias) first.")

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name in ("weight", "left", "right", "values"):  # of any size
            found = state_dict.get(prefix + name)
            if found is not None and found.dim() == 2:
                setattr(self, name, torch.empty_like(found, device=self.get_buffer(name).device))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.structure}, outputs={self.weight.size(0)}" if self.fitted else "not fitted"


def best_precision(values: Tensor, theta: Tensor) -> Tensor:
    r"""The prior precision that maximises the marginal likelihood of a Laplace approximation.

    With eigenvalues :math:`\lambda` of H, up to what does not depend on it,

    .. math::
        2 \log Z(\tau) = P \log \tau - \sum_j \log(\lambda_j + \tau) - \tau \|\hat\theta\|^2

    By :math:`\log \tau` its derivative is :math:`\sum_j \lambda_j / (\lambda_j + \tau) - \tau
    \|\hat\theta\|^2`, which only falls: there is one maximum, found by bisection.

    Example:
        >>> best_precision(torch.tensor([1e9, 1e9]), torch.tensor([2.0, 2.0]))  # 2 / |theta|²
        tensor(0.2500, dtype=torch.float64)
    """
    values, length = values.double(), theta.double().square().sum()
    low, high = (values.new_tensor(math.log(end)) for end in (1e-6, 1e6))
    for _ in range(60):
        middle = (low + high) / 2
        tau = middle.exp()
        rising = (values / (values + tau)).sum() > tau * length
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return ((low + high) / 2).exp()


def _output_curvature(outputs: Tensor, curvature: Tensor | None) -> tuple[Tensor, Tensor | None]:
    r"""Each :math:`\Lambda_i` as a diagonal ``[n, C]`` less the square of a vector ``[n, C]``."""
    if curvature is not None:
        return curvature.detach().to(outputs), None
    if outputs.size(1) == 1:
        yes = outputs.sigmoid()
        return yes * (1.0 - yes), None
    probs = outputs.softmax(dim=1)
    return probs, probs


def _whole(phi: Tensor, diagonal: Tensor, probs: Tensor | None) -> Tensor:
    """H ``[C * D, C * D]``, output by output."""
    blocks = [(phi * column.unsqueeze(1)).T @ phi for column in diagonal.unbind(dim=1)]
    whole: Tensor = torch.block_diag(*blocks)
    if probs is not None:
        for rows, share in _blocks(phi, probs):
            pairs = (share.unsqueeze(2) * rows.unsqueeze(1)).flatten(1)  # [n, C * D]
            whole.addmm_(pairs.T, pairs, alpha=-1.0)
    return whole


def _blocks(phi: Tensor, probs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = max(1, _CHUNK // (phi.size(1) * probs.size(1)))
    return zip(phi.split(size), probs.split(size), strict=True)


def _mean_curvature(diagonal: Tensor, probs: Tensor | None) -> Tensor:
    """The mean of the output Hessians, ``[C, C]``."""
    mean = diagonal.mean(dim=0).diag()
    return mean if probs is None else mean - probs.T @ probs / probs.size(0)


def _with_one(phi: Tensor, bias: bool) -> Tensor:
    return torch.cat([phi, phi.new_ones(phi.size(0), 1)], dim=1) if bias else phi


def _check(
    phi: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    structure: str,
    curvature: Tensor | None,
) -> None:
    if structure not in ("auto", "full", "kron"):
        raise InputError("structure 'auto', 'full' or 'kron'", repr(structure))
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = [list(weight.shape), None if bias is None else list(bias.shape)]
        raise InputError("a weight [C, d] and a bias [C]", shapes)
    if phi.dim() != 2 or phi.size(1) != weight.size(1) or phi.size(0) == 0:
        raise InputError(f"features of shape [n, {weight.size(1)}]", list(phi.shape))
    if curvature is not None and curvature.shape != (phi.size(0), weight.size(0)):
        wanted = [phi.size(0), weight.size(0)]
        raise InputError(f"curvature of shape {wanted}", list(curvature.shape))
    if not torch.isfinite(phi).all():
        raise InputError("finite features", "NaN or infinite values")
