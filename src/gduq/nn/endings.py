"""Networks that end in softmax, log-softmax or sigmoid: logits of what they give."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.export_mode import exporting

__all__ = ["Ending", "as_logits", "check_logits", "undone"]

Ending = Literal["softmax", "log_softmax", "sigmoid"]

_ENOUGH = 20  # rows of a single column that all lie in (0, 1): hardly by chance


def undone(ending: Ending | None) -> str:
    """What to say of a network that makes probabilities of its logits itself."""
    return f"; it ends in {ending}, which is undone" if ending else ""


def as_logits(outputs: Tensor, ending: Ending | None) -> Tensor:
    """Logits of a network whose outputs are probabilities, or nearly so.

    Example:
        >>> as_logits(torch.tensor([[0.5, 0.5]]), "softmax").softmax(dim=1)
        tensor([[0.5000, 0.5000]])
    """
    if ending is None or ending == "log_softmax":
        return outputs
    tiny = torch.finfo(outputs.dtype).tiny
    if ending == "softmax":
        return outputs.clamp_min(tiny).log()
    return torch.logit(outputs, eps=torch.finfo(outputs.dtype).eps)


def check_logits(outputs: Tensor, known: bool = False) -> Tensor:
    """The outputs, unless they are probabilities by means that cannot be undone.

    Args:
        outputs: ``[rows, O]``, with what is known to make probabilities undone. In training they
            are not looked at.
        known: Whether it is known what made them, so that a single column in (0, 1) is chance.
    """
    if exporting() or outputs.size(0) == 0 or outputs.requires_grad:
        return outputs
    single = outputs.size(1) == 1
    if single and (known or outputs.size(0) < _ENOUGH):
        return outputs
    inside = (outputs > 0) & (outputs < 1) if single else (outputs >= 0) & (outputs <= 1)
    if bool(inside.all()) and (single or bool(((outputs.sum(dim=1) - 1).abs() < 1e-4).all())):
        where = "in (0, 1)" if single else "in [0, 1] and every row sums to 1"
        raise InputError(
            "logits from the network",
            f"what looks like probabilities: all outputs lie {where}",
            "Return what the sigmoid or softmax is applied to, or pass call= that undoes it.",
        )
    return outputs
