"""Small heads that learn side by side from rows that a frozen trunk gave once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gduq.errors import InputError
from gduq.targets.base import Target
from gduq.training.history import Epoch
from gduq.training.randomness import derived, isolated

__all__ = ["HeadRun", "RowSet", "train_heads"]

Draw = Callable[[int, torch.Generator], Tensor]

_CHUNK = 2**20  # numbers of a hidden layer that are judged at once: what a cache holds


@dataclass(frozen=True, eq=False)
class RowSet:
    """Rows behind a frozen trunk, and their truth.

    Attributes:
        h: Representations ``[m, d]``.
        y: The truth ``[m, ...]``, as `Target.check` gives it.

    Example:
        >>> len(RowSet(torch.zeros(5, 3), torch.arange(5)).take(torch.tensor([0, 4])))
        2
    """

    h: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.h.dim() != 2 or self.y.dim() == 0 or self.h.size(0) != self.y.size(0):
            got = f"h {list(self.h.shape)} and y {list(self.y.shape)}"
            raise InputError("a matrix h and one y per row", got)

    def __len__(self) -> int:
        return self.h.size(0)

    def to(self, device: torch.device | str) -> RowSet:
        """The same rows on another device."""
        return RowSet(self.h.to(device), self.y.to(device))

    def take(self, index: Tensor) -> RowSet:
        """Some of the rows, by number or by a boolean mask."""
        index = index.to(self.h.device)
        return RowSet(self.h[index], self.y[index])


@dataclass(frozen=True)
class HeadRun:
    """What happened to one head.

    Attributes:
        records: One `Epoch` each; the seconds are this head's share.
        kept_epoch: The epoch whose weights the head has now; 0 means those it came with.
        val_loss: Its validation loss with these weights, ``None`` without validation rows.
    """

    records: tuple[Epoch, ...] = ()
    kept_epoch: int = 0
    val_loss: float | None = None


@dataclass(frozen=True)
class _Plan:
    """How long to learn, and how fast."""

    epochs: int
    steps: int | None  # per epoch; None: every row once
    lr: float
    batch_size: int
    patience: int | None

    @classmethod
    def of(
        cls,
        rows: int,
        judged: bool,
        epochs: int | None,
        lr: float | None,
        batch_size: int | None,
        patience: int | None,
    ) -> _Plan:
        """As asked for; if nobody said how long, epochs of a few steps whatever the rows."""
        if epochs is not None:
            return cls(epochs, None, lr or 1e-3, batch_size or 32, patience)
        limit, patience = (30, patience or 8) if judged else (10, None)
        return cls(limit, 10, lr or 3e-3, batch_size or 64, patience)

    def batches(self, rows: int, generator: torch.Generator) -> Iterator[Tensor]:
        """The row numbers of each step of an epoch."""
        size = min(self.batch_size, rows)
        if self.steps is None:
            parts = list(torch.randperm(rows, generator=generator).split(size))
            if len(parts) > 1 and len(parts[-1]) == 1:  # BatchNorm needs two rows
                parts[-2:] = [torch.cat(parts[-2:])]
            yield from parts
            return
        orders = -(-self.steps * size // rows)
        order = torch.cat([torch.randperm(rows, generator=generator) for _ in range(orders)])
        yield from order[: self.steps * size].split(size)


class _Stack:
    """G heads of one architecture as one: every tensor has a leading axis G.

    Args:
        heads: The first lends its forward pass; none of them is changed before `unload`.
    """

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        self.heads, self.module = heads, heads[0]
        parts = [dict(head.named_parameters()) for head in heads]
        self.parameters = {
            name: torch.stack([part[name].detach() for part in parts]).requires_grad_(
                value.requires_grad
            )
            for name, value in parts[0].items()
        }
        stored = [dict(head.named_buffers()) for head in heads]
        self.buffers = {name: torch.stack([b[name] for b in stored]) for name in stored[0]}
        self.width = max((value.size(1) for value in self.parameters.values()), default=1)

    def __len__(self) -> int:
        return len(self.heads)

    def __call__(self, h: Tensor, c: Tensor | None, masked: Tensor | None) -> Tensor:
        """``[G, D, n, O]``; h and c are the same for all heads, ``masked`` is ``[G, D, n]``."""

        def alone(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], masked: Tensor | None
        ) -> Tensor:
            out: Tensor = functional_call(self.module, (parameters, buffers), (h, c, masked))
            return out

        axes = (0, 0, None if masked is None else 0)
        every = vmap(alone, axes, randomness="same")  # a head alone draws the same dropout
        out: Tensor = every(self.parameters, self.buffers, masked)
        return out

    @property
    def state(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

    def copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.state.items()}

    @torch.no_grad()
    def unload(self, state: dict[str, Tensor]) -> None:
        """Give every head its own part of a state."""
        for g, head in enumerate(self.heads):
            for name, value in (*head.named_parameters(), *head.named_buffers()):
                value.copy_(state[name][g])


class _Run:
    """The heads, their optimiser, and the best that each has been so far."""

    def __init__(
        self,
        stack: _Stack,
        train: RowSet,
        val: RowSet | None,
        target: Target,
        masks: Sequence[float],
        bank: Tensor | None,
        draw: Draw | None,
        draws: int,
        plan: _Plan,
        weight_decay: float,
        best: bool,
    ) -> None:
        self.stack, self.train, self.val, self.target = stack, train, val, target
        self.masks = torch.tensor(masks, dtype=torch.float64).view(-1, 1, 1)
        self.bank = None if bank is None else bank.to(train.h).unsqueeze(1)
        self.draw, self.draws, self.plan, self.best = draw, draws, plan, best
        learned = [p for p in stack.parameters.values() if p.requires_grad]
        self.optimizer = torch.optim.Adam(learned, plan.lr, weight_decay=weight_decay, fused=True)
        start = [math.inf] * len(stack) if val is None else self._judge(val)
        self.runs = [HeadRun(val_loss=None if val is None else loss) for loss in start]
        self.lowest, self.since = start, [0] * len(stack)
        self.kept = stack.copy()

    @property
    def learning(self) -> list[int]:
        """The heads that have not stopped."""
        limit = self.plan.patience or math.inf
        return [g for g, epochs in enumerate(self.since) if epochs < limit]

    def epoch(self, number: int, seed: int) -> Epoch:
        """One epoch of all heads; the mean over them is told."""
        started = time.perf_counter()
        losses = self._learn(number, seed)
        judged = [None] * len(losses) if self.val is None else self._judge(self.val)
        seconds = time.perf_counter() - started
        found = [
            Epoch(number, loss, self.plan.lr, seconds / len(losses), val_loss)
            for loss, val_loss in zip(losses, judged, strict=True)
        ]
        self._keep(found)
        known = [loss for loss in judged if loss is not None]
        mean = sum(known) / len(known) if known else None
        return Epoch(number, sum(losses) / len(losses), self.plan.lr, seconds, mean)

    def _learn(self, number: int, seed: int) -> list[float]:
        """The steps of an epoch; the mean training loss of each head."""
        torch.manual_seed(derived(seed, number, 0))  # what dropout draws from
        generator = torch.Generator().manual_seed(derived(seed, number, 1))
        self.stack.module.train()
        sums = torch.zeros(2, len(self.stack), dtype=torch.float64)
        for index in self.plan.batches(len(self.train), generator):
            rows = self.train.take(index)
            c, masked = self._references(len(rows), generator)
            weighted, counts = self._losses(self.stack(rows.h, c, masked), masked, rows.y)
            self.optimizer.zero_grad()
            (weighted / counts).sum().backward()
            self.optimizer.step()
            sums += torch.stack([weighted.detach(), counts]).cpu()
        losses: list[float] = (sums[0] / sums[1]).tolist()
        finite = all(bool(v.isfinite().all()) for v in self.stack.parameters.values())
        if not finite or not all(map(math.isfinite, losses)):
            raise InputError(
                "a training loss and weights that stay finite",
                f"a loss of {max(losses)} in epoch {number}",
                f"Use a learning rate below {self.plan.lr:g}, or rescale the features.",
            )
        return losses

    def _references(
        self, rows: int, generator: torch.Generator
    ) -> tuple[Tensor | None, Tensor | None]:
        """Anchors ``[D, n, d]``, and which rows lack them ``[G, D, n]``."""
        if self.draw is None:
            return None, None
        like = self.train.h
        c = self.draw(self.draws * rows, generator).to(like).view(self.draws, rows, -1)
        uniform = torch.rand(self.draws, rows, generator=generator, dtype=torch.float64)
        return c, (uniform < self.masks).to(like.device)

    def _losses(self, outputs: Tensor, masked: Tensor | None, y: Tensor) -> tuple[Tensor, Tensor]:
        """Of each head ``[G]``: the sum of weighted losses, and that of the weights."""
        losses = self.target.losses(outputs, y)
        counts = torch.ones_like(losses)
        weights = self.target.row_weights(y)
        if weights is not None:
            counts = counts * weights.to(losses)
        if masked is not None:
            losses = torch.where(masked, self.target.masked_losses(outputs), losses)
            counts = counts.masked_fill(masked, 1.0)
        return (losses * counts).sum(dim=(1, 2)), counts.sum(dim=(1, 2))

    @torch.no_grad()
    def _judge(self, val: RowSet) -> list[float]:
        """The mean negative log-likelihood of each head's mixture over the bank."""
        self.stack.module.eval()
        hypotheses = 1 if self.bank is None else self.bank.size(0)
        chunk = max(1, _CHUNK // (len(self.stack) * hypotheses * self.stack.width))
        sums = torch.zeros(len(self.stack), dtype=torch.float64)
        for h, y in zip(val.h.split(chunk), val.y.split(chunk), strict=True):
            sums += self.target.nll(self.stack(h, self.bank, None), y).sum(dim=-1).cpu()
        found: list[float] = (sums / len(val)).tolist()
        return found

    def _keep(self, found: Sequence[Epoch]) -> None:
        """Note what the heads that still learn did, and the weights that are to be kept."""
        better = torch.zeros(len(found), dtype=torch.bool)
        for g in self.learning:
            run, record = self.runs[g], found[g]
            improved = record.val_loss is not None and record.val_loss < self.lowest[g]
            self.since[g] = 0 if improved or self.val is None else self.since[g] + 1
            if improved:
                self.lowest[g] = record.val_loss or 0.0
            run = replace(run, records=(*run.records, record))
            if improved or not self.best or self.val is None:
                better[g] = True
                run = replace(run, kept_epoch=record.epoch, val_loss=record.val_loss)
            self.runs[g] = run
        for name, value in self.stack.state.items():
            where = better.to(value.device)
            self.kept[name][where] = value.detach()[where]


def train_heads(
    heads: Sequence[nn.Module],
    train: RowSet,
    val: RowSet | None = None,
    *,
    target: Target,
    masks: Sequence[float],
    bank: Tensor | None = None,
    draw: Draw | None = None,
    draws: int = 10,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    weight_decay: float = 0.0,
    patience: int | None = None,
    select: str = "best",
    seed: int = 0,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> list[HeadRun]:
    stack = _Stack(heads)
    plan = _Plan.of(len(train), val is not None, epochs, lr, batch_size, patience)
    with isolated(train.h.device):
        try:
            run = _Run(stack, train, val, target, masks, bank, draw, draws, plan, weight_decay,
                       select == "best")
            for number in range(1, plan.epochs + 1):
                on_epoch(run.epoch(number, seed))
                if not run.learning:
                    break
            stack.unload(run.kept)
        finally:
            for head in heads:
                head.eval()
    return run.runs
