"""Evidence behind docs/metrics.md: how often intervals hold the truth, and what debiasing removes.

``python reproduction/benchmarks/interval_evidence.py [samples] [resamples]`` prints Markdown
tables. All data is synthetic: labels are drawn from the softmax of ``logits / factor``, so a factor
of 1 is a calibrated model and the true ECE of others is that of a million rows. Ours is
`metrics.bootstrap`; percentile takes the quantiles of the same resamples as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gduq import metrics
from gduq.metrics.resampling import resample_counts, resampled

CLASSES, LEVEL = 4, 0.95
SIZES = (150, 500, 2000)
FACTORS = (1.25, 2.0)


def draw(rows: int, factor: float, seed: int) -> metrics.Rows:
    """Rows of a model that is ``factor`` times too sure."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, CLASSES, generator=generator, dtype=torch.float64)
    chances = (logits / factor).softmax(1)
    target = torch.multinomial(chances, 1, generator=generator).squeeze(1)
    return metrics.read(logits, target)


def resampled_ece(rows: metrics.Rows, resamples: int, seed: int) -> Tensor:
    """The ECE of every resample, ``[R]``."""
    blocks = resample_counts(len(rows), resamples, seed)
    return torch.cat([resampled(metrics.ece, rows.weighted(counts)) for counts in blocks])


def held(factor: float, size: int, truth: float, samples: int, resamples: int) -> tuple[int, int]:
    """How many corrected and how many percentile intervals hold the true ECE."""
    ours = plain = 0
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    for seed in range(samples):
        rows = draw(size, factor, seed)
        _, low, high = metrics.bootstrap(metrics.ece, rows, resamples=resamples, seed=seed)
        ours += low <= truth <= high
        low, high = torch.quantile(resampled_ece(rows, resamples, seed), ends).tolist()
        plain += low <= truth <= high
    return ours, plain


def ece_table(samples: int, resamples: int) -> Iterator[str]:
    """Coverage of 95 % intervals for the ECE."""
    yield "| true ECE | rows | corrected (ours) | percentile |\n|---|---|---|---|"
    for factor in FACTORS:
        truth = metrics.ece(draw(1_000_000, factor, 10**6))
        for size in SIZES:
            ours, plain = (n / samples for n in held(factor, size, truth, samples, resamples))
            yield f"| {truth:.3f} | {size} | {ours:.0%} | {plain:.0%} |"


def calibrated_table(samples: int, resamples: int) -> Iterator[str]:
    """A true ECE of 0: its mean, and how often the interval begins there."""
    yield "| rows | mean ECE | debiased | interval holds 0 | debiased |\n|---|---|---|---|---|"
    for size in SIZES:
        cells: list[list[float]] = []
        for seed in range(samples):
            rows = draw(size, 1.0, seed)
            both = [
                metrics.bootstrap(
                    partial(metrics.ece, debias=debias), rows, resamples=resamples, seed=seed
                )
                for debias in (False, True)
            ]
            cells.append([*(i.value for i in both), *(float(i.low <= 0) for i in both)])
        mean = np.mean(cells, axis=0)
        yield f"| {size} | {mean[0]:.3f} | {mean[1]:.3f} | {mean[2]:.0%} | {mean[3]:.0%} |"


def accuracy_table(samples: int) -> Iterator[str]:
    """Coverage of 95 % intervals for an accuracy, which are Wilson's."""
    yield "| true accuracy | rows | holds it |\n|---|---|---|"
    random = np.random.default_rng(0)
    for accuracy, size in ((0.95, 20), (0.95, 100), (0.8, 20), (0.8, 100)):
        count = 0
        for _ in range(10 * samples):
            wrong = torch.from_numpy(random.random(size) >= accuracy).long()
            logits = torch.tensor([[3.0, 0.0]]).repeat(size, 1)
            _, low, high = metrics.bootstrap(metrics.accuracy, logits, wrong, resamples=2)
            count += low <= accuracy <= high
        yield f"| {accuracy} | {size} | {count / (10 * samples):.0%} |"


def main(samples: int = 150, resamples: int = 500) -> None:
    """Print all tables."""
    for table in (
        ece_table(samples, resamples),
        calibrated_table(samples, resamples),
        accuracy_table(samples),
    ):
        for line in table:
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:3]))
