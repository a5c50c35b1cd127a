"""The training loss: labels for ordinary rows, the uniform distribution for masked ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq.errors import InputError

__all__ = ["ClassWeights", "class_numbers", "class_weights", "row_losses"]

ClassWeights = Tensor | tuple[float, ...] | str | None


def row_losses(
    logits: Tensor, masked: Tensor, target: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""The loss of every labelled row under every draw, and how much it counts.

    .. math::
        \ell = -\log p_y \quad\text{or, where masked,}\quad
        \ell = -\tfrac1C \sum_c \log p_c

    The step minimises :math:`\sum w \ell / \sum w`, where :math:`w` is the weight of the row's
    class and 1 for masked rows. A single logit stands for two classes (binary cross-entropy).

    Args:
        logits: ``[D, m, C]``.
        masked: Which rows had no anchor half, ``[D, m]``.
        target: Class numbers ``[m]``.
        weights: One weight a class ``[C]``, or ``None``.

    Returns:
        Weighted losses and weights, ``[D, m]`` each.

    Example:
        >>> masked = torch.tensor([[False, True]])
        >>> row_losses(torch.zeros(1, 2, 4), masked, torch.tensor([0, 1]))[0]  # log 4
        tensor([[1.3863, 1.3863]])
    """
    draws, classes = logits.size(0), logits.size(2)
    if classes == 1:
        wanted = torch.where(masked, 0.5, target.to(logits.dtype))
        losses = F.binary_cross_entropy_with_logits(logits[..., 0], wanted, reduction="none")
    else:
        log_probs = logits.log_softmax(dim=-1)
        losses = -log_probs.gather(2, target.expand(draws, -1).unsqueeze(2)).squeeze(2)
        if bool(masked.any()):
            losses = torch.where(masked, -log_probs.mean(dim=-1), losses)
    counts = torch.ones_like(losses)
    if weights is not None:
        counts = torch.where(masked, counts, weights.to(losses)[target])
    return losses * counts, counts


def class_numbers(y: Tensor) -> Tensor:
    """Labels ``[m]`` or ``[m, 1]`` of any dtype as class numbers ``[m]``.

    Example:
        >>> class_numbers(torch.tensor([[0.0], [1.0]]))
        tensor([0, 1])
    """
    if y.dim() > 1 and y.numel() != y.size(0):
        raise InputError(
            "one class label a row", f"y of shape {list(y.shape)}", "Train one task at a time."
        )
    labels = y.reshape(-1).long()
    if not torch.equal(labels.to(y.dtype), y.reshape(-1)):
        raise InputError("whole class numbers in y", f"{y.dtype} values with fractions or NaN")
    if labels.numel() and int(labels.min()) < 0:
        raise InputError(
            "class numbers from 0 up in y",
            int(labels.min()),
            "Leave unlabelled nodes out with gduq.data.View(data, rows).",
        )
    return labels


def class_weights(choice: ClassWeights, counts: Tensor, classes: int) -> Tensor | None:
    r"""The weight of each class ``[C]``; ``"balanced"`` is :math:`m / (C\, m_c)`.

    Example:
        >>> class_weights("balanced", torch.tensor([3, 1]), 2)
        tensor([0.6667, 2.0000])
    """
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice != "balanced":
            raise InputError("class_weights 'balanced' or one number a class", repr(choice))
        present = F.pad(counts, (0, classes - counts.numel()))
        return present.sum() / (classes * present.clamp_min(1))
    weights = torch.as_tensor(choice, dtype=torch.get_default_dtype())
    if weights.shape != (classes,):
        raise InputError(f"{classes} class_weights, one a class", list(weights.shape))
    if not bool(torch.isfinite(weights).all()) or bool((weights <= 0).any()):
        raise InputError("class_weights above 0", weights.tolist())
    return weights
