"""`AnchoredLinear`: the one layer that makes a network anchored."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gduq.anchoring.equation import anchor_shift, anchored_linear
from gduq.errors import InputError
from gduq.graphs.sparse import linear

__all__ = ["AnchoredLinear", "Init"]

Init = Literal["random", "identity"]


class AnchoredLinear(nn.Module):
    r"""A linear layer that reads :math:`[h - c \,\|\, c]` for an anchor c.

    .. math::
        z = [h - c \,\|\, c] W^\top + b = h W_h^\top + c (W_c - W_h)^\top + b

    The pair is never built: `residual` is the part all anchors share, `shift` the bias an anchor
    adds. From "Accurate and Scalable Estimation of Epistemic Uncertainty for Graph Neural
    Networks" (Trivedi et al., ICLR 2024).

    Args:
        in_features: d, the width of ``h`` and ``c``.
        out_features: m.
        bias: Whether to add b.

    Shapes:
        ``h`` is ``[n, d]`` (dense or sparse CSR); ``c`` broadcasts against it: ``[d]``,
        ``[n, d]``, ``[K, 1, d]`` or ``[K, n, d]``. The output is ``[n, m]`` or ``[K, n, m]``.

    Example:
        >>> layer = AnchoredLinear(8, 3)
        >>> layer(torch.randn(5, 8), torch.randn(10, 1, 8)).shape
        torch.Size([10, 5, 3])
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, 2 * in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(
        self, std: float | None = None, generator: torch.Generator | None = None
    ) -> None:
        """Draw the weight anew, uniformly with deviation ``std`` (default 1/sqrt(6d))."""
        bound = 3.0**0.5 * (std or (6.0 * self.in_features) ** -0.5)
        source = self.weight.device if generator is None else generator.device
        drawn = torch.empty(self.weight.shape, dtype=self.weight.dtype, device=source)
        with torch.no_grad():
            self.weight.copy_(drawn.uniform_(-bound, bound, generator=generator))
            if self.bias is not None:
                self.bias.zero_()

    @classmethod
    def reading_for(
        cls, plain: nn.Linear, init: Init = "random", generator: torch.Generator | None = None
    ) -> AnchoredLinear:
        r"""The anchored layer that takes the place of a plain one.

        ``"identity"`` sets :math:`W_h = W_c` to the plain weight, so the output is the plain
        layer's for every anchor; ``"random"`` draws at the plain weight's scale.
        """
        if init not in get_args(Init):
            raise InputError("init 'random' or 'identity'", repr(init))
        with torch.random.fork_rng(devices=[]):  # what is drawn here is replaced below
            layer = cls(plain.in_features, plain.out_features, plain.bias is not None)
        layer = layer.to(plain.weight.device, plain.weight.dtype)
        if init == "random":
            scale = float(plain.weight.detach().std(correction=0)) / 2.0**0.5
            layer.reset_parameters(scale or None, generator)
            return layer
        with torch.no_grad():
            layer.weight.copy_(torch.cat([plain.weight, plain.weight], dim=1))
            if layer.bias is not None:
                layer.bias.copy_(plain.bias)
        return layer

    @property
    def weight_h(self) -> Tensor:
        """The half of the weight that reads the representation, ``[m, d]``."""
        return self.weight[:, : self.in_features]

    def residual(self, h: Tensor) -> Tensor:
        r""":math:`h W_h^\top`, the same for every anchor: ``[n, m]``."""
        return linear(h, self.weight_h)

    def shift(self, c: Tensor, masked: Tensor | None = None) -> Tensor:
        r""":math:`c (W_c - W_h)^\top`: ``[..., m]``; see `anchor_shift`."""
        return anchor_shift(c, self.weight, masked)

    def biased(self, z: Tensor) -> Tensor:
        """``z + b``, where there is a bias."""
        return z if self.bias is None else z + self.bias

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        for name, value in (("h", h), ("c", c)):
            if value.size(-1) != self.in_features:
                raise InputError(f"{name} of width {self.in_features}", list(value.shape))
        return anchored_linear(h, c, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
