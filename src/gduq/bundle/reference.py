"""Labelled rows that travel with a model, so that conformal sets need no calibration data again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gduq.errors import BundleError, InputError
from gduq.prediction import ValuePrediction
from gduq.prediction.base import Hypotheses
from gduq.targets import Target, Values

__all__ = ["reference_from", "reference_tensors"]

_MOST = 2**21  # numbers in the samples: 8 MB
_KEPT = ("samples", "target", "novelty", "weights")


def reference_tensors(target: Target | None, p: Hypotheses) -> dict[str, Tensor]:
    """What a bundle keeps of predictions of labelled rows; of very many rows a random part."""
    p.require_target()
    if target is None:
        got = "one that gduq.fit has not seen"
        raise InputError("a fitted model to save with a reference", got)
    if p.kind != target.kind:
        raise InputError(f"a reference about {target.kind}, as the model is", f"one about {p.kind}")
    rows = max(1, _MOST // max(1, p.samples[:, :1].numel()))
    if len(p) > rows:
        order = torch.randperm(len(p), generator=torch.Generator().manual_seed(0))
        p = p[order[:rows].sort().values]
    found = {name: getattr(p, name) for name in _KEPT}
    return {name: value for name, value in found.items() if value is not None}


def reference_from(target: Target | None, tensors: Mapping[str, Tensor]) -> Any:
    """The predictions that `reference_tensors` kept."""
    if target is None or {"samples", "target"} - tensors.keys() or tensors.keys() - set(_KEPT):
        raise BundleError("a reference of samples and targets", ", ".join(sorted(tensors)))
    given: dict[str, Any] = {name: tensors[name] for name in _KEPT if name in tensors}
    if isinstance(target, Values):  # their samples are in units already
        return ValuePrediction(**given, names=target.names, units=target.units)
    return target.prediction(given.pop("samples"), given.pop("target"), **given)
