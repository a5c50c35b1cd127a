"""Small heads that learn side by side from rows that a frozen trunk gave once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from gduq.errors import InputError
from gduq.prediction.predictor import HeadJob
from gduq.randomness import derived, isolated
from gduq.targets.base import Target
from gduq.training.fit_settings import FitSettings
from gduq.training.history import Epoch, History

__all__ = ["TEMPERATURES", "RowSet", "train_heads"]

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


def train_heads(
    job: HeadJob,
    train: RowSet,
    val: RowSet | None,
    target: Target,
    settings: FitSettings,
    tempered: bool = False,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> list[History]:
    """Train heads of one architecture in one batched pass; each becomes what it would alone.

    A head's ``forward(h, c, masked)`` takes rows ``[n, d]``, anchors ``[D, 1, d]`` or ``None``,
    and a boolean ``[D, n]`` or ``None``; it gives ``[D, n, O]``, with D = 1 without anchors. The
    heads end in evaluation mode with the weights that were chosen; epoch 0 means those they had.

    Without ``epochs`` they have 8 steps, and end when the validation likelihood of every head has
    stopped rising for 6 of them (or as many as it takes to see every row), 25 at most; without
    validation rows there are 8. The learning rate is then 3e-3 up to 6400 rows.

    ``val`` decides when to stop and which epoch to keep, the start included; without it the last
    epoch stays. ``tempered`` judges every head at its best temperature: right where one is fitted
    afterwards, since masking leaves heads too modest, which says nothing about how good they are.
    ``on_epoch`` hears the mean over the heads after every epoch.
    """
    with isolated(train.h.device):
        try:
            run = _Run(job, train, val, target, settings, tempered)
            for number in range(1, (run.settings.epochs or 0) + 1):
                on_epoch(run.epoch(number))
                if not run.learning:
                    break
            run.stack.unload(run.kept)
        finally:
            for head in job.heads:
                head.eval()
    return run.histories


class _StackedHeads:
    """G heads of one architecture as one: every tensor has a leading axis G."""

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        self.heads, self.module = heads, heads[0]
        self.parameters, self.buffers = stack_module_state(list(heads))
        self.width = max(v.size(1) for v in self.parameters.values() if v.dim() > 1)

    def __len__(self) -> int:
        return len(self.heads)

    def __call__(self, h: Tensor, c: Tensor | None, masked: Tensor | None) -> Tensor:
        """``[G, D, n, O]``; h and c are the same for all heads, ``masked`` is ``[G, D, n]``."""

        def alone(state: tuple[dict[str, Tensor], ...], masked: Tensor | None) -> Tensor:
            out: Tensor = functional_call(self.module, state, (h, c, masked))
            return out

        axes = (0, None if masked is None else 0)
        every = vmap(alone, axes, randomness="same")  # a head alone draws the same dropout
        out: Tensor = every((self.parameters, self.buffers), masked)
        return out

    @property
    def state(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

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
        job: HeadJob,
        train: RowSet,
        val: RowSet | None,
        target: Target,
        settings: FitSettings,
        tempered: bool,
    ) -> None:
        self.job, self.train, self.val, self.target = job, train, val, target
        quick = settings.epochs is None
        self.steps = _STEPS if quick else None
        self.settings = settings = _automatic(settings, len(train), val is not None)
        judging = _JUDGING if quick else None
        self.bank = None if job.bank is None else job.bank[:judging].to(train.h).unsqueeze(1)
        self.temperatures = TEMPERATURES if tempered else (1.0,)
        self.stack = stack = _StackedHeads(job.heads)
        learned = [p for p in stack.parameters.values() if p.requires_grad]
        decay = settings.weight_decay
        self.optimizer = torch.optim.Adam(learned, settings.lr, weight_decay=decay, fused=True)
        # The start is a candidate too: training must not make a head worse.
        self.lowest = self._judge() or [math.inf] * len(stack)
        self.histories = [History()] * len(stack)
        self.since = [0] * len(stack)
        self.kept = {name: value.detach().clone() for name, value in stack.state.items()}

    @property
    def learning(self) -> list[int]:
        """The heads that have not stopped."""
        limit = self.settings.patience or math.inf
        return [g for g, epochs in enumerate(self.since) if epochs < limit]

    def epoch(self, number: int) -> Epoch:
        """One epoch of all heads; tells the mean over them."""
        started, heads = time.perf_counter(), len(self.stack)
        losses = self._learn(number)
        judged = self._judge()
        seconds, lr = time.perf_counter() - started, self.settings.lr_at(number)
        self._keep(
            [
                Epoch(number, loss, lr, seconds / heads, None if judged is None else judged[g])
                for g, loss in enumerate(losses)
            ]
        )
        val_loss = None if judged is None else sum(judged) / heads
        return Epoch(number, sum(losses) / heads, lr, seconds, val_loss)

    def _learn(self, number: int) -> list[float]:
        """The steps of an epoch; the mean training loss of each head."""
        seed, train = self.settings.seed, self.train
        torch.manual_seed(derived(seed, number, 0))  # what dropout draws from
        generator = torch.Generator().manual_seed(derived(seed, number, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr_at(number)
        self.stack.module.train()
        sums = torch.zeros(2, len(self.stack), dtype=torch.float64)
        for index in _batches(len(train), self.settings.batch_size, self.steps, generator):
            index = index.to(train.h.device)
            c, masked = self._references(len(index), generator)
            outputs = self.stack(train.h[index], c, masked)
            losses, each = self.target.weighted_losses(outputs, train.y[index], masked)
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

    def _references(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
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
    def _judge(self) -> list[float] | None:
        """The mean negative log-likelihood of each head's mixture over the bank, at the best of
        the temperatures."""
        if self.val is None:
            return None
        self.stack.module.eval()
        hypotheses = 1 if self.bank is None else self.bank.size(0)
        chunk = max(1, _CHUNK // (len(self.stack) * hypotheses * self.stack.width))
        scales = [torch.tensor(t, device=self.val.h.device) for t in self.temperatures]
        sums = torch.zeros(len(scales), len(self.stack), dtype=torch.float64)
        for h, y in zip(self.val.h.split(chunk), self.val.y.split(chunk), strict=True):
            out = self.stack(h, self.bank, None)
            found = [self.target.nll(self.target.scaled(out, t), y).sum(dim=-1) for t in scales]
            sums += torch.stack(found).cpu()
        lowest: list[float] = (sums.min(dim=0).values / len(self.val)).tolist()
        return lowest

    def _keep(self, records: Sequence[Epoch]) -> None:
        """Note what the heads that still learn did, and the weights that are to be kept."""
        best = self.settings.select == "best" and self.val is not None
        chosen = torch.zeros(len(records), dtype=torch.bool)
        for g in self.learning:
            known, record = self.histories[g], records[g]
            loss = math.inf if record.val_loss is None else record.val_loss
            improved = loss < self.lowest[g]
            self.lowest[g] = min(loss, self.lowest[g])
            self.since[g] = 0 if improved else self.since[g] + 1
            chosen[g] = improved or not best
            kept = record.epoch if chosen[g] else known.kept_epoch
            self.histories[g] = History((*known.records, record), kept)
        for name, value in self.stack.state.items():
            where = chosen.to(value.device)
            self.kept[name][where] = value.detach()[where]


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
