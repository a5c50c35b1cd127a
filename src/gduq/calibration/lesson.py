"""What calibrators learn from: samples, labels, and how much every row counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gduq.prediction import Hypotheses, Prediction
from gduq.prediction.mixture import log_mixture
from gduq.prediction.temperature import Tempered, best_temperature

__all__ = ["Lesson", "mixture_logs", "samples_of"]


def samples_of(p: Hypotheses) -> Tensor:
    """The samples ``[K, m, O]`` as calibrators see them: float64, CPU."""
    return p.samples.double().cpu()


def mixture_logs(p: Prediction) -> Tensor:
    """The mixture's log-probabilities ``[m, C]`` as calibrators see them: float64, CPU."""
    return log_mixture(p.samples, p.weights).cpu()


@dataclass(frozen=True, eq=False)
class Lesson:
    """Clean rows (``index`` of ``whole``) and any corrupted copies of them: half the weight each.

    Example:
        >>> p = Prediction(torch.zeros(2, 2), target=torch.tensor([0, 1]))
        >>> Lesson(p, copies=[p[:1], p[1:]]).share.tolist()
        [0.25, 0.25, 0.25, 0.25]
    """

    whole: Any
    index: Tensor | slice = field(default_factory=lambda: slice(None))
    copies: Sequence[Any] = ()

    @cached_property
    def parts(self) -> list[Any]:
        """The clean rows, then every copy."""
        return [self.whole[self.index], *self.copies]

    @cached_property
    def samples(self) -> Tensor:
        """Outputs of all parts ``[K, n, O]``: logits, or those of values."""
        return torch.cat([samples_of(p) for p in self.parts], dim=1)

    @cached_property
    def target(self) -> Tensor:
        """Labels ``[n]``, or values."""
        return torch.cat([p.require_target().cpu() for p in self.parts])

    @cached_property
    def share(self) -> Tensor:
        """Of every row in the loss ``[n]``; sums to 1."""
        clean, copies = self.rows, sum(self.sizes[1:])
        share = torch.full((clean + copies,), 1.0 / clean, dtype=torch.float64)
        if copies:
            share[:clean], share[clean:] = 0.5 / clean, 0.5 / copies
        return share

    @property
    def weights(self) -> Tensor | None:
        """Of the hypotheses ``[K]``, or ``None``."""
        weights: Tensor | None = self.whole.weights
        return weights

    @property
    def sizes(self) -> list[int]:
        return [len(p) for p in self.parts]

    @property
    def rows(self) -> int:
        """Rows that priors are held against: copies of a row tell nothing new about labels."""
        return self.sizes[0]

    @property
    def num_classes(self) -> int:
        return int(self.samples.size(2))

    @cached_property
    def logs(self) -> Tensor:
        """The mixture's log-probabilities ``[n, C]``."""
        return log_mixture(self.samples, self.weights)

    def temperature(self, samples: Tensor | None = None) -> float:
        """The best single temperature, of other logits ``[K, n, C]`` of these rows if given."""
        weights = self.weights if samples is None else None
        samples = self.samples if samples is None else samples
        pieces = zip(
            samples.split(self.sizes, dim=1),
            self.target.split(self.sizes),
            self.share.split(self.sizes),
            strict=True,
        )
        return best_temperature([(s, y, float(v.sum())) for s, y, v in pieces], weights)

    def tempered(self) -> Tempered:
        """These rows, ready to be divided by a temperature each."""
        return Tempered.of(self.samples, self.target, self.share, self.weights)
