"""Buffers whose size is known once a file is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["AnySize"]


class AnySize(nn.Module):
    """A module whose buffers take the size of what is loaded into them."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self._buffers.items():
            found = state_dict.get(prefix + name)
            if buffer is not None and found is not None and found.dim() == buffer.dim():
                setattr(self, name, torch.empty_like(found, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
