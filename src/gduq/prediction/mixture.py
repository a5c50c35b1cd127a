"""The mixture of K hypotheses about classes: its probabilities and what they disagree about.

Everything is computed in float64, some rows at a time, and added up hypothesis by hypothesis: a row
gets the same number, bit by bit, alone and in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gduq._torch import exporting

__all__ = ["deviation", "disagreement", "log_mixture", "match", "weighted_mean", "weights_of"]

_ROUNDS = 40  # of matrix scaling; hypotheses that nearly agree need three or four
_CLOSE = 1e-10  # largest relative error of a probability that counts as none
_TINY = 1e-300
_BLOCK = 1 << 20  # numbers scaled at once
_CACHED = 1 << 17  # numbers that stay in the processor's cache


def weights_of(samples: Tensor, weights: Tensor | None) -> Tensor:
    """The weights ``[K]`` of hypotheses ``[K, ...]`` in float64; ``None``: equal ones."""
    if weights is None:
        count = samples.size(0)
        return torch.full((count,), 1.0 / count, dtype=torch.float64, device=samples.device)
    return weights.to(samples.device, torch.float64)


def log_mixture(samples: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Log of the mixture's probabilities, :math:`\log \sum_k w_k\,\mathrm{softmax}(s_k)`.

    Of logits ``[K, m, C]`` this is ``[m, C]``, float64. Equal hypotheses give exactly the
    log-probabilities of one.

    Example:
        >>> log_mixture(torch.tensor([[[0.0, 0.0]], [[99.0, 0.0]]])).exp()
        tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    if exporting():  # where neither rows nor weights are numbers yet
        logs = samples.double().log_softmax(dim=-1)
        return (logs + weights_of(samples, weights).log().view(-1, 1, 1)).logsumexp(dim=0)
    mixed = samples.new_empty(samples.shape[1:], dtype=torch.float64)
    for part, share, logs in _blocks(samples, weights):
        top = logs.amax(dim=0)
        if len(share) > 1:
            total, whole = torch.zeros_like(top), 0.0
            for weight, log in zip(share, logs, strict=True):
                total += weight * (log - top).exp_()
                whole += weight  # added up as the total is: equal hypotheses give exactly 1
            top += total.div_(whole).log_()
        mixed[part] = top
    return mixed


def disagreement(samples: Tensor, mixed: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Mutual information :math:`\sum_k w_k \mathrm{KL}(p_k \| \bar p)`, ``[m]`` in float64.

    Differences of logarithms, not of entropies: exactly 0 for equal hypotheses, never below.
    ``mixed`` is what `log_mixture` made of the samples.

    Example:
        >>> samples = torch.tensor([[[9e9, 0.0]], [[0.0, 9e9]]])
        >>> disagreement(samples, log_mixture(samples))  # log 2: all that can be
        tensor([0.6931], dtype=torch.float64)
    """
    if exporting():
        logs = samples.double().log_softmax(dim=-1)
        apart = (logs.exp() * (logs - mixed)).sum(dim=-1)
        return weighted_mean(apart, weights).clamp_min(0.0)
    found = mixed.new_zeros(mixed.size(0))
    for part, share, logs in _blocks(samples, weights):
        for weight, log in zip(share, logs, strict=True):
            found[part] += weight * (log.exp() * (log - mixed[part])).sum(dim=-1)
    return found.clamp_min_(0.0)


def weighted_mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean over the first axis, in the dtype of the values."""
    if weights is None:
        return values.mean(dim=0)
    shape = (-1,) + (1,) * (values.dim() - 1)
    return (values * weights.to(values).view(shape)).sum(dim=0)


def deviation(values: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Standard deviation over the first axis, :math:`\sum_k w_k d_k^2 / (1 - \sum_k w_k^2)`.

    For equal weights the divisor is K - 1. Exactly 0 for K = 1 and for equal values.
    """
    share = weights_of(values, weights)
    rest = 1.0 - share.square().sum()
    if values.size(0) == 1 or not (exporting() or float(rest) >= 1e-12):
        return torch.zeros_like(values[0])
    apart = values - values[:1]  # measured from the first: equal values give 0
    apart = apart - weighted_mean(apart, share)
    return (weighted_mean(apart.square_(), share) / rest).sqrt_()


def match(samples: Tensor, wanted: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Hypotheses moved as little as needed for their mixture to be as wanted.

    The same offset is added to the log-probabilities of a class in every hypothesis about a row,
    so what they disagree about stays. The offsets come from matrix scaling (Sinkhorn): of the
    K x C matrix :math:`w_k p_{kic}` the columns are to sum to the wanted probabilities, the rows
    to :math:`w_k`. Where hypotheses exclude each other that is slow; then what is missing after
    some rounds is mixed into all of them alike. ``wanted`` and the result are log-probabilities,
    ``[m, C]`` and ``[K, m, C]``, float64.

    Example:
        >>> samples = torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]]])
        >>> log_mixture(match(samples, torch.tensor([[0.25, 0.75]]).log())).exp()
        tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    wanted = wanted.double()
    if samples.size(0) == 1:
        return wanted.unsqueeze(0)
    mixed = log_mixture(samples, weights)
    logs = samples.double().log_softmax(dim=-1)
    if exporting():
        return _scaled(logs, mixed, wanted, weights_of(logs, weights))
    far = ((wanted - mixed).abs() > _CLOSE).any(dim=-1)
    rows = torch.nonzero(far).flatten()
    for part in rows.split(max(1, _BLOCK // (logs.size(0) * logs.size(2)))):
        share = weights_of(logs, weights)
        logs[:, part] = _scaled(logs[:, part], mixed[part], wanted[part], share)
    return logs


def _scaled(logs: Tensor, mixed: Tensor, wanted: Tensor, share: Tensor) -> Tensor:
    """Matrix scaling, and what is left after some rounds."""
    ratio = (logs - mixed).exp_().transpose(0, 1).contiguous()  # [m, K, C], at most 1 / share
    goal, scale = wanted.exp().clamp_min_(_TINY), mixed.exp().clamp_min_(_TINY)
    for _ in range(_ROUNDS):
        mass = torch.bmm(ratio, scale.unsqueeze(2)).squeeze(2).clamp_min_(_TINY)  # [m, K]
        column = torch.bmm((share / mass).unsqueeze(1), ratio).squeeze(1).clamp_min_(_TINY)
        found, scale = scale * column, goal / column
        if not exporting() and bool(((found / goal - 1.0).abs() <= _CLOSE).all()):
            break
    moved = (logs - mixed + scale.log()).log_softmax(dim=-1)
    return _blended(moved, wanted, log_mixture(moved, share))


def _blended(logs: Tensor, wanted: Tensor, mixed: Tensor) -> Tensor:
    """The share that hypotheses may keep, and the rest for what their mixture lacks."""
    gap = wanted - mixed
    kept = gap.amin(dim=-1, keepdim=True).exp().clamp(max=1.0)
    lacking = (wanted.exp() - kept * mixed.exp()).clamp_min(0.0)
    blended = (kept * logs.exp() + lacking).clamp_min(_TINY).log().log_softmax(dim=-1)
    return torch.where((gap.abs() > 10 * _CLOSE).any(dim=-1, keepdim=True), blended, logs)


def _blocks(samples: Tensor, weights: Tensor | None) -> Iterator[tuple[slice, list[float], Tensor]]:
    """Some rows, the weights above 0, and the log-probabilities ``[K, rows, C]`` they belong to."""
    share = weights_of(samples, weights)
    if not bool((share > 0).all()):
        samples, share = samples[share > 0], share[share > 0]
    rows = max(1, _CACHED // (samples.size(0) * samples.size(2)))
    for start in range(0, samples.size(1), rows):
        part = slice(start, start + rows)
        yield part, share.tolist(), samples[:, part].log_softmax(dim=-1, dtype=torch.float64)
