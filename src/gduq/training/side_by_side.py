"""Small heads that learn side by side from rows that a frozen trunk gave once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction.predictor import HeadJob
from gduq.randomness import derived, isolated
from gduq.targets.base import Target
from gduq.training.fit_settings import FitSettings
from gduq.training.history import Epoch
from gduq.training.stacked_heads import StackedHeads

__all__ = ["TEMPERATURES", "HeadRun", "RowSet", "train_heads"]

_STEPS, _EPOCHS, _BLIND = 8, 25, 8  # per epoch; epochs with and without validation rows
_CHUNK = 2**17  # numbers of a hidden layer that are judged at once: what a cache holds
_JUDGING = 4  # anchors that say when to stop: all of them would say it at twice the cost
TEMPERATURES = tuple(4.0 ** (i / 4 - 1) for i in range(9))  # 1/4 to 4


@dataclass(frozen=True, eq=False)
class RowSet:
    """Rows behind a frozen trunk."""

    h: Tensor  # representations [m, d]
    y: Tensor  # the truth [m, ...], as `Target.check` gives it

    def __len__(self) -> int:
        return self.h.size(0)


@dataclass(frozen=True)
class HeadRun:
    """What happened to one head."""

    records: tuple[Epoch, ...] = ()  # the seconds are this head's share
    kept_epoch: int = 0  # whose weights the head has now; 0 means those it came with
    val_loss: float | None = None  # with these weights


def _automatic(settings: FitSettings, rows: int, judged: bool) -> FitSettings:
    """The settings, with what nobody asked for chosen by the number of rows."""
    if settings.epochs is not None:
        if settings.epochs < 1:
            raise InputError("epochs of at least 1", settings.epochs)
        return settings if judged else replace(settings, patience=None)
    size = settings.batch_size
    # Where the steps see less than every row once, a fast start harms and takes long to mend.
    lr = settings.given_lr or (1e-3 if rows > _EPOCHS * _STEPS * size else 3e-3)
    patience = settings.patience or max(6, -(-rows // (_STEPS * size)))
    return replace(
        settings,
        epochs=_EPOCHS if judged else _BLIND,
        given_lr=lr,
        patience=patience if judged else None,
    )


def _batches(
    rows: int, size: int, steps: int | None, generator: torch.Generator
) -> Iterator[Tensor]:
    """The row numbers of each step of an epoch: so many steps, or every row once."""
    size = min(size, rows)
    if steps is None:
        parts = list(torch.randperm(rows, generator=generator).split(size))
        if len(parts) > 1 and len(parts[-1]) == 1:  # BatchNorm needs two rows
            parts[-2:] = [torch.cat(parts[-2:])]
        yield from parts
        return
    orders = -(-steps * size // rows)
    order = torch.cat([torch.randperm(rows, generator=generator) for _ in range(orders)])
    yield from order[: steps * size].split(size)


@dataclass(frozen=True, eq=False)
class _Task:
    """What the heads learn, and from which references."""

    job: HeadJob
    train: RowSet
    val: RowSet | None
    target: Target
    bank: Tensor | None  # [K, 1, d]
    temperatures: tuple[float, ...]  # the best of them is what a head is judged with

    def references(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """An anchor per draw ``[D, 1, d]``, and which rows lack it ``[G, D, n]``.

        One anchor for all rows of a step costs n times less than one per row, and 200 steps of
        D draws see enough of them: validation and test likelihoods came out alike.
        """
        draws = self.job.draws
        c = self.job.draw(draws, generator).to(self.train.h).unsqueeze(1)
        uniform = torch.rand(draws, rows, generator=generator, dtype=torch.float64)
        shares = torch.tensor(self.job.masks, dtype=torch.float64).view(-1, 1, 1)
        return c, (uniform < shares).to(c.device)

    @torch.no_grad()
    def judge(self, stack: StackedHeads) -> list[float] | None:
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
        self, stack: StackedHeads, task: _Task, settings: FitSettings, steps: int | None
    ) -> None:
        self.stack, self.task, self.settings, self.steps = stack, task, settings, steps
        self.best = settings.select == "best" and task.val is not None
        learned = [p for p in stack.parameters.values() if p.requires_grad]
        decay = settings.weight_decay
        self.optimizer = torch.optim.Adam(learned, settings.lr, weight_decay=decay, fused=True)
        start = task.judge(stack)  # a candidate too: training must not make a head worse
        self.lowest = start or [math.inf] * len(stack)
        self.runs = [HeadRun(val_loss=None if start is None else loss) for loss in self.lowest]
        self.since = [0] * len(stack)
        self.kept = stack.copy()

    @property
    def learning(self) -> list[int]:
        """The heads that have not stopped."""
        limit = self.settings.patience or math.inf
        return [g for g, epochs in enumerate(self.since) if epochs < limit]

    def epoch(self, number: int) -> Epoch:
        """One epoch of all heads; tells the mean over them."""
        started, heads = time.perf_counter(), len(self.stack)
        losses = self._learn(number)
        judged = self.task.judge(self.stack)
        seconds = time.perf_counter() - started
        lr = self.settings.lr_at(number)
        records = [Epoch(number, loss, lr, seconds / heads) for loss in losses]
        mean = Epoch(number, sum(losses) / heads, lr, seconds)
        if judged is not None:
            records = [replace(r, val_loss=v) for r, v in zip(records, judged, strict=True)]
            mean = replace(mean, val_loss=sum(judged) / heads)
        self._keep(records)
        return mean

    def _learn(self, number: int) -> list[float]:
        """The steps of an epoch; the mean training loss of each head."""
        seed, train = self.settings.seed, self.task.train
        torch.manual_seed(derived(seed, number, 0))  # what dropout draws from
        generator = torch.Generator().manual_seed(derived(seed, number, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr_at(number)
        self.stack.module.train()
        sums = torch.zeros(2, len(self.stack), dtype=torch.float64)
        for index in _batches(len(train), self.settings.batch_size, self.steps, generator):
            index = index.to(train.h.device)
            c, masked = self.task.references(len(index), generator)
            outputs = self.stack(train.h[index], c, masked)
            losses, each = self.task.target.weighted_losses(outputs, train.y[index], masked)
            weighted, counts = losses.sum(dim=(1, 2)), each.sum(dim=(1, 2))
            if not bool((counts > 0).all()):  # no label of these rows is known
                continue
            self.optimizer.zero_grad()
            (weighted / counts).sum().backward()
            self.optimizer.step()
            sums += torch.stack([weighted.detach(), counts]).cpu()
        means: list[float] = (sums[0] / sums[1].clamp_min(1e-300)).tolist()
        finite = all(bool(v.isfinite().all()) for v in self.stack.parameters.values())
        if not finite or not all(map(math.isfinite, means)):
            raise self.settings.diverged(max(means), number)
        return means

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
    job: HeadJob,
    train: RowSet,
    val: RowSet | None,
    target: Target,
    settings: FitSettings,
    tempered: bool = False,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> list[HeadRun]:
    """Train heads of one architecture in one batched pass; each becomes what it would alone.

    A head's ``forward(h, c, masked)`` takes rows ``[n, d]``, anchors ``[D, 1, d]`` or ``None``,
    and a boolean ``[D, n]`` or ``None``; it gives ``[D, n, O]``, with D = 1 without anchors. The
    heads end in evaluation mode with the weights that were chosen.

    Without ``epochs`` they have 8 steps, and end when the validation likelihood of every head has
    stopped rising for 6 of them (or as many as it takes to see every row), 25 at most; without
    validation rows there are 8. The learning rate is then 3e-3 up to 6400 rows.

    Args:
        job: The heads, changed in place, and what they read.
        train: Rows to learn from; a batch is one of rows.
        val: Rows that decide when to stop and which epoch to keep, the start included; without
            them the last epoch stays.
        target: What the outputs mean.
        settings: Of the training.
        tempered: Judge every head at its best temperature: right where one is fitted afterwards,
            since masking leaves heads too modest, which says nothing about how good they are.
        on_epoch: Called after every epoch with the mean over the heads.

    Example:
        >>> from torch import nn
        >>> from gduq.targets import Classes
        >>> class Plain(nn.Linear):
        ...     def forward(self, h, c, masked):
        ...         return super().forward(h).unsqueeze(0)
        >>> h = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        >>> job = HeadJob([Plain(3, 2)], [0.0], None, lambda count, _: h[:count], 1, True)
        >>> rows = RowSet(h, (h[:, 0] > 0).long())
        >>> runs = train_heads(job, rows, None, Classes(2), FitSettings(epochs=2))
        >>> len(runs[0].records), runs[0].kept_epoch
        (2, 2)
    """
    own = _automatic(settings, len(train), val is not None)
    judging, steps = (_JUDGING, _STEPS) if settings.epochs is None else (None, None)
    bank = None if job.bank is None else job.bank[:judging].to(train.h).unsqueeze(1)
    task = _Task(job, train, val, target, bank, TEMPERATURES if tempered else (1.0,))
    with isolated(train.h.device):
        try:
            stack = StackedHeads(job.heads)
            run = _Run(stack, task, own, steps)
            for number in range(1, (own.epochs or 0) + 1):
                on_epoch(run.epoch(number))
                if not run.learning:
                    break
            stack.unload(run.kept)
        finally:
            for head in job.heads:
                head.eval()
    return run.runs
