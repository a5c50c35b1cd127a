"""Overconfident predictions of every kind, and what is looked at in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction

ROWS, SAMPLES = 240, 3
WEIGHTS = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


def overconfident(rows=ROWS, classes=4, samples=SAMPLES, seed=0, dtype=torch.float64):
    """Targets drawn from known probabilities; logits three times too large, samples jittered."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(rows, classes, generator=generator)
    target = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
    jitter = 0.5 * torch.randn(samples, rows, classes, generator=generator)
    features = torch.randn(rows, 5, generator=generator)
    names = tuple(f"class {c}" for c in range(classes))
    return ClassPrediction((3 * truth + jitter).to(dtype), target, names, features=features)


def too_narrow(rows=ROWS, values=2, samples=SAMPLES, seed=0, dtype=torch.float64):
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


def too_sure(rows=ROWS, labels=3, samples=SAMPLES, seed=0, dtype=torch.float64):
    """Labels drawn from known probabilities, a fifth unknown; logits three times too large."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(rows, labels, generator=generator)
    target = (torch.rand(rows, labels, generator=generator) < truth.sigmoid()).to(dtype)
    target[torch.rand(rows, labels, generator=generator) < 0.2] = math.nan
    jitter = 0.5 * torch.randn(samples, rows, labels, generator=generator)
    features = torch.randn(rows, 5, generator=generator)
    names = tuple(f"label {t}" for t in range(labels))
    return LabelPrediction((3 * truth + jitter).to(dtype), target, names, features=features)


@dataclass(frozen=True)
class Kind:
    """How to draw predictions of a kind, what they say, and how good that is."""

    size: int  # classes, values or labels of what is drawn
    draw: Callable[..., Any]  # 240 rows of that size: `samples` and `dtype` are options
    answers: Callable[[Any], Tensor]  # all that is said, rows in the second dimension
    mixed: Callable[[Any], Tensor]  # what the mixture says
    losses: Callable[[Any], Tensor]

    def drawn(self, size: int, **options: Any) -> Any:
        return self.draw(ROWS, size, **options)

    def nll(self, p: Any) -> float:
        """Of the mixture."""
        return float(self.losses(p).mean())


def of_values(p: ValuePrediction) -> Tensor:
    return torch.stack([p.mean, p.std, *p.interval(0.8), p.log_prob(0.3), p.cdf(0.3)])


def label_losses(p: LabelPrediction) -> Tensor:
    known, target = p.known, p.target.double()
    return F.binary_cross_entropy(p.probs[known].double(), target[known], reduction="none")


def class_losses(p: ClassPrediction) -> Tensor:
    return F.nll_loss(p.log_probs.double(), p.target, reduction="none")


KINDS = {
    "classes": Kind(4, overconfident, lambda p: p.samples, lambda p: p.probs, class_losses),
    "values": Kind(2, too_narrow, of_values, of_values, lambda p: -p.log_prob(p.target)),
    "labels": Kind(3, too_sure, lambda p: p.samples, lambda p: p.probs, label_losses),
}
nll = KINDS["classes"].nll


def misled(p: Any) -> Any:
    """Copies of rows about which all hypotheses are misled alike."""
    noise = torch.randn(len(p), p.samples.size(-1), generator=torch.Generator().manual_seed(3))
    if p.kind != "values":
        return replace(p, samples=p.samples + 4 * noise)
    moved = p.means + 8 * noise[:, : p.num_values] * p.std
    return replace(p, samples=torch.cat([moved, p.samples[..., p.num_values :]], dim=-1))
