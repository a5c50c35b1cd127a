"""The figures that the paper prints, as data files with the label of their table."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

__all__ = ["FILES", "load"]

FILES = sorted(f.name.removesuffix(".json") for f in files(__name__).iterdir() if ".json" in f.name)


@lru_cache
def load(name: str) -> dict[str, Any]:
    """One data file: ``label``, ``source`` and ``entries``.

    Example:
        >>> load("parameters")["label"], len(load("parameters")["entries"])
        ('tab:num_param_per_model', 23)
    """
    text = (files(__name__) / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
