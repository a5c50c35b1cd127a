"""What a metric costs: no more than three times one softmax plus one sort of the confidences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gduq import metrics
from timing import Row, at_most, medians

CLASSES, BAR = 10, 3.0


def rows(rows: int = 1_000_000, repeats: int = 5) -> Iterator[Row]:
    """One row a metric: its time over that of a softmax and a sort, measured in turns."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, CLASSES, generator=generator) * 2
    target = torch.randint(CLASSES, (rows,), generator=generator)
    confidence = logits.softmax(1).amax(1)

    def unit() -> None:
        logits.softmax(1)
        confidence.sort()

    for name, function in _metrics().items():
        time = medians({"unit": unit, name: lambda f=function: f(logits, target)}, repeats)
        note = f"{time[name] * 1e3:.0f} ms against {time['unit'] * 1e3:.0f} ms"
        label = f"metrics.{name} on {rows:,} x {CLASSES} against softmax + sort"
        yield at_most(label, time[name] / time["unit"], BAR, note)


def _metrics() -> dict[str, Callable[[Tensor, Tensor], object]]:
    return {
        "accuracy": metrics.accuracy,
        "nll": metrics.nll,
        "brier": metrics.brier,
        "sharpness": metrics.sharpness,
        "ece": metrics.ece,
        "ece(bins=100)": lambda z, y: metrics.ece(z, y, bins=100),
        "ece(debias=True)": lambda z, y: metrics.ece(z, y, debias=True),
        "adaptive_ece": metrics.adaptive_ece,
        "classwise_ece": metrics.classwise_ece,
        "smooth_ece": metrics.smooth_ece,
        "aurc": metrics.aurc,
        "excess_aurc": metrics.excess_aurc,
        "risk_coverage": metrics.risk_coverage,
        "reliability": metrics.reliability,
        "brier_decomposition": metrics.brier_decomposition,
        "auroc": lambda z, y: metrics.auroc(z[::2, 0], z[1::2, 0]),
    }


if __name__ == "__main__":
    for row in rows():
        print(f"{row['ratio']:6.2f}  {row['bar']:8}  {row['row']} ({row['note']})")
