"""The concept cut, as GOOD draws it."""

from __future__ import annotations

import torch
from torch import Tensor

from gduq.shifts.cuts import Cut, leave_out


def concept(
    values: Tensor,
    labels: Tensor,
    *,
    bias: tuple[float, float, float, float] = (0.95, 0.95, 0.9, 0.85),
    pick: tuple[float, float, float, float] = (0.4, 0.6, 0.5, 1.0),
    seed: int = 0,
) -> Cut:
    r"""Labels ``[n]`` go with the domain in training and against it in the tests.

    A row is *aligned* if :math:`s\,(y - \bar y) > 0`, where :math:`s` is +1 for the lower half of
    the domain values and -1 for the upper one. Five passes over the rows that are left draw a first
    part of train, ``ood_test``, two more parts of train, and ``ood_val``. A training pass takes an
    aligned row with probability ``bias * pick`` and another with ``(1 - bias) * pick``; that of
    ``ood_test`` the other way round. Where a pass would take only one of the two kinds of a domain,
    one row of the other is added."""
    generator = torch.Generator().manual_seed(seed)
    codes, order = torch.sort(values, stable=True)
    starts = torch.searchsorted(codes, codes)  # rows of lower domains
    tilt = torch.where(starts < codes.numel() / 2, 1.0, -1.0) * (
        labels[order] - labels.double().mean()
    )
    left = torch.ones_like(tilt, dtype=torch.bool)
    parts: dict[str, list[Tensor]] = {"train": [], "ood_test": [], "ood_val": []}
    for step, name in enumerate(("train", "ood_test", "train", "train", "ood_val")):
        rows = torch.nonzero(left).flatten()
        if step < len(bias):
            kind = tilt[rows] > 0 if name == "train" else tilt[rows] < 0
            rows = rows[_one_pass(codes[rows], kind, bias[step], pick[step], generator)]
        left[rows] = False
        parts[name].append(order[rows])
    pool, val, test = (torch.cat(parts[name]) for name in ("train", "ood_val", "ood_test"))
    return leave_out(pool, val, test, int(0.15 * pool.numel()), generator)


def _one_pass(
    codes: Tensor, kind: Tensor, bias: float, pick: float, generator: torch.Generator
) -> Tensor:
    """Which rows (sorted by domain) a pass takes; ``kind`` marks the ones it prefers."""
    u, v = torch.rand(codes.numel(), 2, generator=generator, dtype=torch.float64).unbind(1)
    taken = torch.where(kind, v < bias, v > bias) & (u < pick)
    _, domain = torch.unique_consecutive(codes, return_inverse=True)
    cell = domain * 2 + kind.long()  # a domain and a kind
    cells = 2 * (int(domain.max()) + 1) if domain.numel() else 0
    present = torch.bincount(cell, minlength=cells).view(-1, 2) > 0
    got = torch.bincount(cell[taken], minlength=cells).view(-1, 2) > 0
    lacking = present.all(1, keepdim=True) & got.any(1, keepdim=True) & ~got
    last = torch.full((cells,), -1).scatter_reduce_(0, cell, torch.arange(codes.numel()), "amax")
    # no row of a lacking cell was taken, so its last row is the last rejected one
    taken[last[lacking.flatten()]] = True
    return taken
