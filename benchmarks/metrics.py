"""What a metric costs: no more than three times one softmax plus one sort of the confidences."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gduq import metrics

ROWS, CLASSES, BAR = 1_000_000, 10, 3.0


def main(rows: int = ROWS, repeats: int = 5) -> list[dict[str, object]]:
    """One row a metric: its time over that of a softmax and a sort, measured side by side.

    Args:
        rows: Rows of the logits.
        repeats: Timings of each; the median counts.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, CLASSES, generator=generator) * 2
    target = torch.randint(CLASSES, (rows,), generator=generator)
    confidence = logits.softmax(1).amax(1)

    def unit() -> None:
        logits.softmax(1)
        confidence.sort()

    return [
        _row(name, lambda f=function: f(logits, target), unit, repeats)  # type: ignore[misc]
        for name, function in _metrics().items()
    ]


def _metrics() -> dict[str, Callable[[Tensor, Tensor], object]]:
    return {
        "accuracy": metrics.accuracy,
        "nll": metrics.nll,
        "brier": metrics.brier,
        "sharpness": metrics.sharpness,
        "ece": metrics.ece,
        "ece, 100 bins": lambda z, y: metrics.ece(z, y, bins=100),
        "ece, debiased": lambda z, y: metrics.ece(z, y, debias=True),
        "adaptive_ece": metrics.adaptive_ece,
        "classwise_ece": metrics.classwise_ece,
        "smooth_ece": metrics.smooth_ece,
        "aurc": metrics.aurc,
        "excess_aurc": metrics.excess_aurc,
        "risk_coverage": metrics.risk_coverage,
        "reliability": metrics.reliability,
        "brier_decomposition": metrics.brier_decomposition,
    }


def _row(
    name: str, function: Callable[[], object], unit: Callable[[], None], repeats: int
) -> dict[str, object]:
    function()  # first touch of memory is not the metric's
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for call, into in ((function, times[0]), (unit, times[1])):
            start = time.perf_counter()
            call()
            into.append(time.perf_counter() - start)
    cost, base = (statistics.median(t) for t in times)
    return {
        "row": f"metrics.{name}",
        "ratio": cost / base,
        "bar": BAR,
        "met": cost / base <= BAR,
        "note": f"{cost * 1e3:.0f} ms against {base * 1e3:.0f} ms for softmax + sort",
    }


if __name__ == "__main__":
    for row in main():
        print(f"{row['row']:30} {row['ratio']:.2f} (bar {row['bar']}) {row['note']}")
