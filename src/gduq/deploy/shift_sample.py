"""`ShiftSample`: a random sample of answered rows, to test for shift at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gduq.conformal import shift_test
from gduq.prediction.base import Hypotheses

__all__ = ["ShiftSample"]

_KEPT = 1000


@dataclass
class ShiftSample:
    """Rows with the largest of random numbers, one number per row.

    The numbers depend on the file's place among the files and on the order of its rows only, so
    samples of single files, joined, are the sample of all of them: it does not matter how many
    processes made them.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.randn(30, 2))
        >>> sample = ShiftSample()
        >>> sample.start(0)
        >>> sample.add(p)
        >>> 0 <= sample.pvalue(p) <= 1
        True
    """

    rows: Hypotheses | None = None
    keys: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    _generator: torch.Generator | None = field(default=None, repr=False)

    def start(self, number: int) -> None:
        """The rows that follow are those of the file of that number."""
        self._generator = torch.Generator().manual_seed(number)

    def add(self, p: Hypotheses) -> None:
        """More rows of the file."""
        self._take(p, torch.rand(len(p), generator=self._generator, dtype=torch.float64))

    @classmethod
    def joined(cls, samples: Iterable[ShiftSample]) -> ShiftSample:
        """The sample of all files, from those of some of them each."""
        found = cls()
        for sample in samples:
            if sample.rows is not None:
                found._take(sample.rows, sample.keys)
        return found

    def closed(self) -> ShiftSample:
        """The same without a source of randomness, to be sent to another process."""
        return ShiftSample(self.rows, self.keys)

    def pvalue(self, reference: Hypotheses | None) -> float | None:
        """Of a two-sample test against reference rows; ``None`` without rows or reference."""
        if self.rows is None or reference is None:
            return None
        return float(shift_test(reference, self.rows).pvalue)

    def _take(self, p: Hypotheses, keys: Tensor) -> None:
        if self.rows is not None:
            p, keys = Hypotheses.concatenate([self.rows, p]), torch.cat([self.keys, keys])
        kept = keys.topk(min(_KEPT, len(keys))).indices
        self.rows, self.keys = p[kept], keys[kept]
