r"""The Laplace approximation of a network's last linear layer, in closed form, for classes.

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

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gduq.baselines.gaussian_layer import GaussianLayer, best_precision
from gduq.errors import InputError
from gduq.randomness import normal

__all__ = ["JointPosterior"]

Form = Literal["auto", "full", "kron"]

_LARGEST = (
    256  # weights for which the whole matrix is decomposed: more would cost more than it gives
)
_CHUNK = 4_000_000  # numbers in one block


class JointPosterior(GaussianLayer):
    r"""A Gaussian over the weights of a last layer that tells classes apart.

    The prior precision :math:`\tau` maximises the marginal likelihood.

    Attributes:
        left, right: Eigenvectors: ``[C, C]`` and ``[D, D]`` for the Kronecker form, ``[1, 1]`` and
            ``[C * D, C * D]`` for the whole matrix.
        values: Eigenvalues of H, ``[C, D]`` or ``[1, C * D]``.
        precision: :math:`\tau`, a scalar.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> phi, head = torch.randn(50, 4, generator=generator), torch.nn.Linear(4, 3)
        >>> posterior = JointPosterior().fit(phi, head.weight, head.bias)
        >>> posterior.sample(phi, 10, generator).shape, posterior.covariance(phi).shape
        (torch.Size([10, 50, 3]), torch.Size([50, 3, 3]))
    """

    sized: ClassVar[Mapping[str, int]] = {"weight": 2, "left": 2, "right": 2, "values": 2}

    left: Tensor
    right: Tensor
    values: Tensor
    precision: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("precision", torch.ones((), dtype=torch.float64))

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
        structure: Form = "auto",
    ) -> JointPosterior:
        """Fit to the features of training rows and a trained layer.

        Args:
            phi: Features ``[n, d]`` that the layer reads.
            weight: ``[C, d]``; C = 1 is the one logit of a yes/no question.
            bias: ``[C]`` or ``None``.
            structure: ``"auto"`` takes the whole matrix up to 256 weights.
        """
        if structure not in ("auto", "full", "kron"):
            raise InputError("structure 'auto', 'full' or 'kron'", repr(structure))
        phi, theta = self._take(phi, weight, bias)
        diagonal, probs = _output_curvature(phi @ theta.T)
        if structure == "full" or (structure == "auto" and theta.numel() <= _LARGEST):
            left = phi.new_ones(1, 1)
            values, right = torch.linalg.eigh(_whole(phi, diagonal, probs))
            values = values.unsqueeze(0)
        else:
            of_outputs, left = torch.linalg.eigh(_mean_curvature(diagonal, probs))
            of_inputs, right = torch.linalg.eigh(phi.T @ phi)
            values = torch.outer(of_outputs.clamp_min(0), of_inputs.clamp_min(0))
        self.left, self.right = left.contiguous(), right.contiguous()  # as files hold them
        self.values = values.clamp_min(0)
        self.precision = best_precision(self.values.flatten(), theta.flatten())
        return self

    # -- what it says ---------------------------------------------------------------------------

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

    def extra_repr(self) -> str:
        return f"{self.structure}, outputs={self.weight.size(0)}" if self.fitted else "not fitted"


def _output_curvature(outputs: Tensor) -> tuple[Tensor, Tensor | None]:
    r"""Each :math:`\Lambda_i` as a diagonal ``[n, C]`` less the square of a vector ``[n, C]``."""
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
