"""What a step of several heads side by side costs on one thread.

``python reproduction/benchmarks/heads.py``
"""

from __future__ import annotations

import itertools
import time

import torch
from torch import Tensor, nn

from gduq.anchoring.linear import AnchoredLinear
from gduq.prediction.predictor import HeadJob
from gduq.targets import Classes
from gduq.training.fit_settings import FitSettings
from gduq.training.side_by_side import RowSet, train_heads

DRAWS, STEPS = 10, 12


class Head(nn.Module):
    """An anchored layer, ReLU, dropout, a linear layer."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = AnchoredLinear(width, width)
        self.tail = nn.Sequential(nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, classes))

    def forward(self, h: Tensor, c: Tensor, masked: Tensor | None) -> Tensor:
        out: Tensor = self.tail(self.linear.residual(h) + self.linear.shift(c, masked))
        return out


def milliseconds(heads: int, rows: int, width: int, classes: int) -> float:
    """The time of one step, in the fastest of four epochs of ``STEPS`` batches of ``rows``."""
    h = torch.randn(rows * STEPS, width)
    train = RowSet(h, torch.randint(classes, (len(h),)))
    clock = [time.process_time()]  # of the CPU: other work on the machine matters less
    job = HeadJob(
        [Head(width, classes) for _ in range(heads)],
        [0.1 * (1 + g) for g in range(heads)],
        bank=None,
        draw=lambda count, generator: h[torch.randint(len(h), (count,), generator=generator)],
        draws=DRAWS,
        keep_all=True,
    )
    settings = FitSettings(epochs=4, given_batch_size=rows)
    tell = lambda _: clock.append(time.process_time())  # noqa: E731
    train_heads(job, train, None, Classes(classes), settings, on_epoch=tell)
    return 1e3 * min(b - a for a, b in itertools.pairwise(clock)) / STEPS


def main() -> None:
    torch.set_num_threads(1)
    print("rows width classes | 1 head  5 heads (CPU ms per step)  ratio")
    for width, classes in ((64, 7), (300, 15), (64, 70)):
        for rows in (32, 128, 512, 2048):
            one, five = (milliseconds(g, rows, width, classes) for g in (1, 5))
            print(f"{rows:4} {width:5} {classes:7} | {one:6.2f} {five:8.2f} {five / one:20.2f}")


if __name__ == "__main__":
    main()
