"""`ForcedDropout`: dropout at prediction time."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

__all__ = ["ForcedDropout"]

_FUNCTIONAL = frozenset[object](
    (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
)
_NATIVE = (torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout)


class ForcedDropout(TorchFunctionMode):
    """Within this context every dropout call draws, whatever mode its module is in.

    It changes the calls, not the modules: functional dropout (as in ``GATConv``) and that of
    ``nn.MultiheadAttention`` draw too, and norms stay in evaluation mode. ``calls`` counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @classmethod
    def active(cls) -> bool:
        """Whether such a context is open: shortcuts that skip dropout must not be taken."""
        return any(isinstance(mode, cls) for mode in _get_current_function_mode_stack())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _FUNCTIONAL:
            p = kwargs.pop("p", args[1] if len(args) > 1 else 0.5)
            self.calls += p > 0
            return func(args[0], p=p, training=True, inplace=kwargs.get("inplace", False))
        if func in _NATIVE:
            x, p, _ = (*args, *(kwargs[k] for k in ("input", "p", "train") if k in kwargs))
            self.calls += p > 0
            return func(x, p, True)
        if func is F.multi_head_attention_forward:
            self.calls += args[10] > 0  # its dropout probability
            kwargs["training"] = True
        return func(*args, **kwargs)
