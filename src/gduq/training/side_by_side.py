"""Small heads that learn side by side from rows that a frozen trunk gave once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gduq.errors import InputError
from gduq.randomness import derived, isolated
from gduq.targets.base import Target
from gduq.training.history import Epoch

__all__ = ["TEMPERATURES", "HeadRun", "RowSet", "train_heads"]

Draw = Callable[[int, torch.Generator], Tensor]
Select = Literal["best", "last"]

_STEPS, _EPOCHS, _BLIND = 8, 25, 8  # per epoch; epochs with and without validation rows
_CHUNK = 2**17  # numbers of a hidden layer that are judged at once: what a cache holds
_JUDGING = 4  # anchors that say when to stop: all of them would say it at twice the cost
TEMPERATURES = tuple(4.0 ** (i / 4 - 1) for i in range(9))  # 1/4 to 4


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
            Where training stopped early or chose, this is what it went by.
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
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def lr_at(self, epoch: int) -> float:
        """The learning rate in an epoch (from 1)."""
        return self.lr * self.gamma ** sum(milestone < epoch for milestone in self.milestones)

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
        for name, value in (("epochs", epochs), ("batch_size", batch_size), ("patience", patience)):
            if value is not None and value < 1:
                raise InputError(f"{name} of at least 1", value)
        if lr is not None and not 0 < lr < math.inf:
            raise InputError("lr above 0", lr)
        if epochs is not None:
            return cls(epochs, None, lr or 1e-3, batch_size or 32, patience if judged else None)
        size = batch_size or 32
        # Where the steps see less than every row once, a fast start harms and takes long to mend.
        lr = lr or (1e-3 if rows > _EPOCHS * _STEPS * size else 3e-3)
        if not judged:
            return cls(_BLIND, _STEPS, lr, size, None)
        return cls(_EPOCHS, _STEPS, lr, size, patience or max(6, -(-rows // (_STEPS * size))))

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
        self.width = max(v.size(1) for v in self.parameters.values() if v.dim() > 1)

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


@dataclass(frozen=True, eq=False)
class _Task:
    """What the heads learn, and from which references."""

    train: RowSet
    val: RowSet | None
    target: Target
    masks: Tensor  # [G, 1, 1]
    bank: Tensor | None  # [K, 1, d]
    draw: Draw | None
    draws: int
    temperatures: tuple[float, ...]  # the best of them is what a head is judged with

    def references(
        self, rows: int, generator: torch.Generator
    ) -> tuple[Tensor | None, Tensor | None]:
        """An anchor per draw ``[D, 1, d]``, and which rows lack it ``[G, D, n]``.

        One anchor for all rows of a step costs n times less than one per row, and 200 steps of
        D draws see enough of them: validation and test likelihoods came out alike.
        """
        if self.draw is None:
            return None, None
        c = self.draw(self.draws, generator).to(self.train.h).unsqueeze(1)
        uniform = torch.rand(self.draws, rows, generator=generator, dtype=torch.float64)
        return c, (uniform < self.masks).to(c.device)

    def losses(self, outputs: Tensor, masked: Tensor | None, y: Tensor) -> tuple[Tensor, Tensor]:
        """Of each head ``[G]``: the sum of weighted losses, and that of the weights."""
        if masked is None:
            losses = self.target.losses(outputs, y)
        else:
            losses = self.target.losses_where(masked, outputs, y)
        weights = self.target.row_weights(y)
        counts = torch.ones_like(losses)
        if weights is not None:
            counts = counts * weights.to(losses)
            if masked is not None:
                counts = counts.masked_fill(masked, self.target.masked_weight(y))
        return (losses * counts).sum(dim=(1, 2)), counts.sum(dim=(1, 2))

    @torch.no_grad()
    def judge(self, stack: _Stack) -> list[float] | None:
        """The mean negative log-likelihood of each head's mixture over the bank."""
        if self.val is None:
            return None
        stack.module.eval()
        hypotheses = 1 if self.bank is None else self.bank.size(0)
        chunk = max(1, _CHUNK // (len(stack) * hypotheses * stack.width))
        scales = [torch.tensor(t, device=self.val.h.device) for t in self.temperatures]
        sums = torch.zeros(len(scales), len(stack), dtype=torch.float64)
        for h, y in zip(self.val.h.split(chunk), self.val.y.split(chunk), strict=True):
            out = stack(h, self.bank, None)
            found = [self.target.nll(self.target.scaled(out, t), y).sum(dim=-1) for t in scales]
            sums += torch.stack(found).cpu()
        lowest: list[float] = (sums.min(dim=0).values / len(self.val)).tolist()
        return lowest


class _Run:
    """The heads, their optimiser, and the best that each has been so far."""

    def __init__(
        self, stack: _Stack, task: _Task, plan: _Plan, weight_decay: float, best: bool
    ) -> None:
        self.stack, self.task, self.plan = stack, task, plan
        self.best = best and task.val is not None
        learned = [p for p in stack.parameters.values() if p.requires_grad]
        self.optimizer = torch.optim.Adam(learned, plan.lr, weight_decay=weight_decay, fused=True)
        start = task.judge(stack)  # a candidate too: training must not make a head worse
        self.lowest = start or [math.inf] * len(stack)
        self.runs = [HeadRun(val_loss=None if start is None else loss) for loss in self.lowest]
        self.since = [0] * len(stack)
        self.kept = stack.copy()

    @property
    def learning(self) -> list[int]:
        """The heads that have not stopped."""
        limit = self.plan.patience or math.inf
        return [g for g, epochs in enumerate(self.since) if epochs < limit]

    def epoch(self, number: int, seed: int) -> Epoch:
        """One epoch of all heads; tells the mean over them."""
        started, heads = time.perf_counter(), len(self.stack)
        losses = self._learn(number, seed)
        judged = self.task.judge(self.stack)
        seconds = time.perf_counter() - started
        lr = self.plan.lr_at(number)
        records = [Epoch(number, loss, lr, seconds / heads) for loss in losses]
        mean = Epoch(number, sum(losses) / heads, lr, seconds)
        if judged is not None:
            records = [replace(r, val_loss=v) for r, v in zip(records, judged, strict=True)]
            mean = replace(mean, val_loss=sum(judged) / heads)
        self._keep(records)
        return mean

    def _learn(self, number: int, seed: int) -> list[float]:
        """The steps of an epoch; the mean training loss of each head."""
        torch.manual_seed(derived(seed, number, 0))  # what dropout draws from
        generator = torch.Generator().manual_seed(derived(seed, number, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.lr_at(number)
        self.stack.module.train()
        sums = torch.zeros(2, len(self.stack), dtype=torch.float64)
        train = self.task.train
        for index in self.plan.batches(len(train), generator):
            rows = train.take(index)
            c, masked = self.task.references(len(rows), generator)
            outputs = self.stack(rows.h, c, masked)
            weighted, counts = self.task.losses(outputs, masked, rows.y)
            if not bool((counts > 0).all()):  # no label of these rows is known
                continue
            self.optimizer.zero_grad()
            (weighted / counts).sum().backward()
            self.optimizer.step()
            sums += torch.stack([weighted.detach(), counts]).cpu()
        losses: list[float] = (sums[0] / sums[1].clamp_min(1e-300)).tolist()
        finite = all(bool(v.isfinite().all()) for v in self.stack.parameters.values())
        if not finite or not all(map(math.isfinite, losses)):
            raise InputError(
                "a training loss and weights that stay finite",
                f"a loss of {max(losses)} in epoch {number}",
                f"Use a learning rate below {self.plan.lr_at(number):g}, or rescale the features.",
            )
        return losses

    def _keep(self, records: Sequence[Epoch]) -> None:
        """Note what the heads that still learn did, and the weights that are to be kept."""
        chosen = torch.zeros(len(records), dtype=torch.bool)
        for g in self.learning:
            run, record = self.runs[g], records[g]
            loss = math.inf if record.val_loss is None else record.val_loss
            improved = loss < self.lowest[g]
            self.lowest[g] = min(loss, self.lowest[g])
            self.since[g] = 0 if improved else self.since[g] + 1
            chosen[g] = improved or not self.best
            kept = (record.epoch, record.val_loss) if chosen[g] else (run.kept_epoch, run.val_loss)
            self.runs[g] = HeadRun((*run.records, record), *kept)
        for name, value in self.stack.state.items():
            where = chosen.to(value.device)
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
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
    patience: int | None = None,
    select: Select = "best",
    tempered: bool = False,
    seed: int = 0,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> list[HeadRun]:
    """Train heads of one architecture in one batched pass; each becomes what it would alone.

    A head's ``forward(h, c, masked)`` takes rows ``[n, d]``, anchors ``[D, 1, d]`` or ``None``,
    and a boolean ``[D, n]`` or ``None``; it gives ``[D, n, O]``, with D = 1 without anchors. The
    heads end in evaluation mode with the weights that were chosen.

    Args:
        heads: G heads, changed in place.
        train: Rows to learn from.
        val: Rows that decide when to stop and which epoch to keep, the start included; without
            them the last epoch stays.
        target: What the outputs mean.
        masks: The share of masked rows, one per head.
        bank: Anchors ``[K, d]`` for validation; ``None``: there the heads get none.
        draw: ``draw(count, generator)`` gives ``count`` anchors for training ``[count, d]``;
            ``None``: the heads get none, and nothing can be masked.
        draws: D, how many anchors every step tries.
        epochs: Passes over the rows. ``None``: epochs of 8 steps, until the validation likelihood
            of every head has stopped rising, 25 at most; without validation rows 8.
        lr: Of Adam; 1e-3 by default, without ``epochs`` 3e-3 up to 6400 rows.
        batch_size: Rows per step; 32 by default.
        weight_decay: L2 penalty, as in Adam.
        milestones: Epochs after which the learning rate is multiplied by ``gamma``.
        gamma: See ``milestones``.
        patience: A head stops after so many epochs that did not improve it; without ``epochs`` 6,
            or as many as it takes to see every row.
        select: ``"best"`` keeps each head's best epoch, ``"last"`` its last.
        tempered: Judge every head at its best temperature: right where one is fitted afterwards,
            since masking leaves heads too modest, which says nothing about how good they are.
        seed: Of the order, the anchors, the masks and dropout.
        on_epoch: Called after every epoch with the mean over the heads.

    Returns:
        One `HeadRun` per head.

    Example:
        >>> from gduq.targets import Classes
        >>> class Plain(nn.Linear):
        ...     def forward(self, h, c, masked):
        ...         return super().forward(h).unsqueeze(0)
        >>> h = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        >>> rows = RowSet(h, (h[:, 0] > 0).long())
        >>> runs = train_heads([Plain(3, 2)], rows, target=Classes(2), masks=[0.0], epochs=2)
        >>> len(runs[0].records), runs[0].kept_epoch
        (2, 2)
    """
    plan = _Plan.of(len(train), val is not None, epochs, lr, batch_size, patience)
    plan = replace(plan, milestones=tuple(milestones), gamma=gamma)
    shares = _checked(heads, train, val, masks, bank, draw, draws, select)
    judging = None if epochs is not None else _JUDGING
    anchors = None if bank is None else bank[:judging].to(train.h).unsqueeze(1)
    temperatures = TEMPERATURES if tempered else (1.0,)
    task = _Task(train, val, target, shares, anchors, draw, draws, temperatures)
    with isolated(train.h.device):
        try:
            stack = _Stack(heads)
            run = _Run(stack, task, plan, weight_decay, select == "best")
            for number in range(1, plan.epochs + 1):
                on_epoch(run.epoch(number, seed))
                if not run.learning:
                    break
            stack.unload(run.kept)
        finally:
            for head in heads:
                head.eval()
    return run.runs


def _checked(
    heads: Sequence[nn.Module],
    train: RowSet,
    val: RowSet | None,
    masks: Sequence[float],
    bank: Tensor | None,
    draw: Draw | None,
    draws: int,
    select: Select,
) -> Tensor:
    """The shares of masked rows ``[G, 1, 1]``; raises for what does not fit together."""
    if not heads or len(masks) != len(heads):
        raise InputError("heads, and one mask share for each", f"{len(heads)} and {len(masks)}")
    if not all(0 <= share < 1 for share in masks):
        raise InputError("mask shares from 0 to below 1", list(masks))
    if draw is None and (bank is not None or any(masks)):
        raise InputError("draw, where anchors are read or rows masked", "None")
    if draws < 1:
        raise InputError("draws of at least 1", draws)
    if select not in get_args(Select):
        raise InputError("select 'best' or 'last'", repr(select))
    for name, rows in (("train", train), ("val", val)):
        if rows is not None and len(rows) == 0:
            raise InputError(f"at least one row in {name}", "none")
    kinds = [[(n, v.shape, v.dtype) for n, v in head.state_dict().items()] for head in heads]
    if any(kind != kinds[0] for kind in kinds):
        raise InputError("heads of one architecture", "different shapes of weights")
    return torch.tensor(masks, dtype=torch.float64).view(-1, 1, 1)
