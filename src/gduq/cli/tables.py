"""``gduq bench``: the paper's tables."""

from __future__ import annotations

__all__: list[str] = []
