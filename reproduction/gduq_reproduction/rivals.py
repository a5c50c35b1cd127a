"""Published rivals that are no part of gduq: energies of nodes, and density-aware calibration.

All are written from the papers' equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch_geometric.utils import scatter

from gduq import ClassPrediction, metrics
from gduq.ood.nearest import nearest

__all__ = ["GEBM", "DensityAware", "diffused", "gnnsafe"]


def diffused(values: Tensor, edge_index: Tensor, steps: int, keep: float = 0.5) -> Tensor:
    r"""Smooth values ``[n]`` or ``[n, d]`` over neighbours, so many times, with a = ``keep``:

    .. math:: v \leftarrow a v + (1 - a) D^{-1} A v

    Nodes without neighbours keep their value.
    """
    source, sink = edge_index
    linked = torch.bincount(sink, minlength=len(values)) > 0
    for _ in range(steps):
        mean = scatter(values[source], sink, dim_size=len(values), reduce="mean")
        alone = linked.reshape(-1, *[1] * (values.dim() - 1))
        values = keep * values + (1 - keep) * torch.where(alone, mean, values)
    return values


def gnnsafe(logits: Tensor, edge_index: Tensor) -> Tensor:
    r"""GNNSafe (Wu et al., ICLR 2023): the energy :math:`-\log \sum_c e^{z_c}`, propagated twice.

    Example:
        >>> strange, usual = torch.zeros(1, 2), torch.tensor([[9.0, 0.0]])
        >>> edges = torch.tensor([[0, 1], [1, 0]])
        >>> [round(energy, 1) for energy in gnnsafe(torch.cat([strange, usual]), edges).tolist()]
        [-4.8, -4.8]
    """
    return diffused(-logits.logsumexp(dim=1), edge_index, steps=2)


class GEBM:
    r"""GEBM (Fuchsgruber et al., NeurIPS 2024): energies at three scales of the graph.

    The evidence of a node v for class c is its logit less its distance to the class,

    .. math:: e_c(v) = z_c(v) - \tfrac{s_z}{s_d}\, d\big(h(v), \mu_c, \Sigma\big)^2

    with Gaussians of one diagonal covariance fitted to the training rows, and both terms brought to
    one scale s (the width of the middle 95 %). The energy :math:`E = -\log \sum_c e^{e_c}` of the
    node alone, the energy of evidence that was diffused over the graph, and energies that were
    diffused themselves are combined by a soft maximum.

    It takes ``logits`` ``[n, C]``, ``features`` ``[n, d]`` and classes ``y`` of training rows.
    """

    def __init__(self, logits: Tensor, features: Tensor, y: Tensor) -> None:
        rows = [features[y == c] for c in range(logits.size(1))]
        overall = features.mean(dim=0)
        self.centre = torch.stack([part.mean(dim=0) if len(part) else overall for part in rows])
        variance = (features - self.centre[y]).square().mean(dim=0)
        self.variance = variance + 1e-6 * (variance.mean() + 1e-12)
        self.scale = _width(logits) / _width(self._distance(features))

    def __call__(self, logits: Tensor, features: Tensor, edge_index: Tensor) -> Tensor:
        """The energy of all nodes of a graph ``[n]``."""
        evidence = logits - self.scale * self._distance(features)
        alone = -evidence.logsumexp(dim=1)
        local = -diffused(evidence, edge_index, steps=10).logsumexp(dim=1)
        group = diffused(alone, edge_index, steps=10)
        return torch.stack([alone, local, group]).logsumexp(dim=0)

    def _distance(self, features: Tensor) -> Tensor:
        std = self.variance.sqrt()
        return torch.cdist(features / std, self.centre / std).square()


def _width(values: Tensor) -> float:
    low, high = np.quantile(values.double().numpy(), [0.025, 0.975])
    return max(float(high - low), 1e-12)


class DensityAware:
    r"""A temperature that grows with the distance to training data (DAC; Tomani et al., ICML 2023).

    .. math:: T_i = w_0 + w_1\, d_i / \bar d, \qquad w \ge 0

    where :math:`d_i` is the mean distance of a row's standardised ``features`` to its ten nearest
    training rows and :math:`\bar d` its mean over the rows that are fitted on.

    ``train`` are predictions of training rows, with ``features``.
    """

    def __init__(self, train: ClassPrediction) -> None:
        assert train.features is not None
        self.centre, spread = train.features.mean(dim=0), train.features.std(dim=0)
        self.spread = torch.where(spread > 1e-6 * spread.amax(), spread, 1.0)
        self.train = (train.features - self.centre) / self.spread
        self.weights, self.mean = np.array([1.0, 0.0]), 1.0

    def fit(self, p: ClassPrediction, corrupted: Sequence[Any] = ()) -> DensityAware:
        """Fit to rows with targets and, half and half, to shifted copies of them."""
        self.mean = float(self._distance(p).mean())
        parts = [(part, self._distance(part) / self.mean) for part in (p, *corrupted)]
        shares = [1.0] if not corrupted else [0.5, *[0.5 / len(corrupted)] * len(corrupted)]

        def loss(weights: np.ndarray) -> float:
            losses = [metrics.nll(_tempered(part, weights, far)) for part, far in parts]
            return float(np.dot(shares, losses))

        bounds = [(1e-3, None), (0.0, None)]
        self.weights = minimize(loss, np.array([1.0, 0.1]), bounds=bounds, method="Powell").x
        return self

    def __call__(self, p: ClassPrediction) -> ClassPrediction:
        return _tempered(p, self.weights, self._distance(p) / self.mean)

    def _distance(self, p: ClassPrediction) -> Tensor:
        assert p.features is not None
        return nearest((p.features - self.centre) / self.spread, self.train, 10).mean(dim=1)


def _tempered(p: ClassPrediction, weights: np.ndarray, distance: Tensor) -> ClassPrediction:
    temperature = (weights[0] + weights[1] * distance).clamp_min(1e-3)
    return ClassPrediction(p.samples / temperature[:, None], p.target, weights=p.weights)
