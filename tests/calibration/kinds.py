"""Overconfident predictions of every kind."""

from __future__ import annotations

import math

import torch

from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction

ROWS, SAMPLES = 240, 3


def overconfident(
    rows: int = ROWS,
    classes: int = 4,
    samples: int = SAMPLES,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> ClassPrediction:
    """Targets drawn from known probabilities; logits three times too large, samples jittered."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(rows, classes, generator=generator)
    target = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
    jitter = 0.5 * torch.randn(samples, rows, classes, generator=generator)
    features = torch.randn(rows, 5, generator=generator)
    names = tuple(f"class {c}" for c in range(classes))
    return ClassPrediction((3 * truth + jitter).to(dtype), target, names, features=features)


def too_narrow(
    rows: int = ROWS,
    values: int = 2,
    samples: int = SAMPLES,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> ValuePrediction:
    """Skewed errors three times as large as said, in units that differ from value to value."""
    generator = torch.Generator().manual_seed(seed)
    units = 10.0 ** torch.arange(values)
    means = 2 * torch.randn(rows, values, generator=generator)
    logs = 0.5 * torch.randn(rows, values, generator=generator)
    noise = torch.empty(rows, values).exponential_(1.0, generator=generator) - 1.0
    jitter = 0.5 * torch.randn(samples, rows, values, generator=generator)
    target = (means + 3 * noise * (0.5 * logs).exp()) * units
    spread = (logs + 2 * units.log()).expand(samples, -1, -1)
    outputs = torch.cat([(means + jitter) * units, spread], dim=-1).to(dtype)
    features = torch.randn(rows, 5, generator=generator)
    names = tuple(f"value {t}" for t in range(values))
    return ValuePrediction(outputs, target, names, ("m",) * values, features=features)


def too_sure(
    rows: int = ROWS,
    labels: int = 3,
    samples: int = SAMPLES,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> LabelPrediction:
    """Labels drawn from known probabilities, a fifth unknown; logits three times too large."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(rows, labels, generator=generator)
    target = (torch.rand(rows, labels, generator=generator) < truth.sigmoid()).to(dtype)
    target[torch.rand(rows, labels, generator=generator) < 0.2] = math.nan
    jitter = 0.5 * torch.randn(samples, rows, labels, generator=generator)
    features = torch.randn(rows, 5, generator=generator)
    names = tuple(f"label {t}" for t in range(labels))
    return LabelPrediction((3 * truth + jitter).to(dtype), target, names, features=features)


DRAWN = {
    "classes": lambda size: overconfident(classes=size),
    "values": lambda size: too_narrow(values=size),
    "labels": lambda size: too_sure(labels=size),
}
