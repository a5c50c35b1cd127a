"""Heads on a frozen trunk: it runs once, and small heads learn side by side from its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from gduq._torch import derived, isolated
from gduq.errors import InputError
from gduq.graphs import check_graph, on_device
from gduq.models.predictor import CachedRows, DrawAnchors, Predictor
from gduq.prediction import Target, TargetSample
from gduq.tracing.call import evaluating
from gduq.tracing.trunk import Trunk
from gduq.training.batches import Batches, InferTarget, check_leak, labels
from gduq.training.finishing import (
    HoldoutData,
    NoveltyInputs,
    clean_and_shifted_weights,
    row_structure,
)
from gduq.training.fit_settings import FitSettings
from gduq.training.history import Epoch, History
from gduq.training.loop import Learner, train

__all__ = ["HeadLearner", "HeadTrainer", "TrunkRows", "fit_on_rows", "train_heads"]

_STEPS, _EPOCHS, _BLIND = 8, 25, 8  # per epoch; epochs with and without validation rows
_CHUNK = 2**17  # numbers of a hidden layer that are computed at once: what a cache holds
_STOPPING = 3  # anchors that decide when to stop: all of them would at twice the cost
_TEMPERATURES = tuple(4.0 ** (i / 4 - 1) for i in range(9))  # 1/4 to 4


# -- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class TrunkRows(HoldoutData):
    """All rows that training needs, each seen once by the trunk."""

    train: CachedRows
    val: CachedRows | None
    copies: tuple[CachedRows, ...]
    trunk: Trunk
    target: Target
    seconds: float  # that the trunk took

    @classmethod
    def collect(
        cls,
        trunk: Trunk,
        train: Batches,
        val: Batches | None,
        infer: InferTarget,
        copies: Iterable[Batches] = (),
    ) -> TrunkRows:
        """Run the trunk over training rows, validation rows and copies of these."""
        start = time.perf_counter()
        first, held = _run_trunk(trunk, train, "train"), None
        target = infer(TargetSample(first.y, first.outputs, first.y, True, trunk.bounded))
        if val is not None:
            held = _run_trunk(trunk, val, "val")
            held = replace(held, y=target.check_val(held.y, first.y))
        first = replace(first, y=target.check(first.y, "train"))
        found = (_run_trunk(trunk, copy, "val") for copy in copies)
        shifted = tuple(replace(copy, y=target.check(copy.y, "val")) for copy in found)
        seconds = time.perf_counter() - start
        sets = {"train": first, "val": held, "copies": shifted}
        return cls(**sets, trunk=trunk, target=target, seconds=seconds)  # type: ignore[arg-type]


def _run_trunk(trunk: Trunk, data: Batches, name: str) -> CachedRows:
    device = next((p.device for p in trunk.parameters()), torch.device("cpu"))
    truth, outputs, rows = list[Tensor](), list[Tensor](), list[NoveltyInputs]()
    with torch.no_grad(), evaluating(trunk):
        for graph in data.batches(256):
            check_leak(graph, name)
            graph = on_device(graph, device)
            check_graph(graph)
            h, out = (trunk.labelled(found, graph) for found in trunk.run(graph))
            if bool(out.isnan().any()):
                raise InputError(f"a network whose outputs for {name} are numbers", "NaN")
            truth.append(labels(graph, out.size(0)))
            outputs.append(out)
            rows.append(NoveltyInputs(h, row_structure(graph, trunk.row_kind, data)))
    h, structure = NoveltyInputs.joined(rows)
    return CachedRows(h, torch.cat(truth), torch.cat(outputs), structure)


# -- training ------------------------------------------------------------------------------------


def fit_on_rows(
    model: Predictor,
    rows: TrunkRows,
    settings: FitSettings,
    show: Callable[[Epoch], None] = lambda _: None,
    tempered: bool = True,
) -> History:
    """Train what of a model reads rows, without calibration."""
    trainer = HeadTrainer(rows, settings, tempered, show)
    before, model.target = model.target, rows.target
    model.check_target()
    model.set_temperature(1.0, None)
    held = rows.train if rows.val is None else rows.val
    model.fit_rows(rows.train, held, trainer, before)
    return trainer.history


@dataclass
class HeadTrainer:
    """Trains the heads that a model hands it; see `Predictor.fit_rows`."""

    rows: TrunkRows
    settings: FitSettings
    tempered: bool  # whether a temperature is fitted afterwards
    show: Callable[[Epoch], None]
    history: History = field(default_factory=History)

    def __call__(
        self,
        heads: Sequence[nn.Module],
        masks: Sequence[float],
        target: Target,
        draw: DrawAnchors,
        draws: int = 1,
        bank: Tensor | None = None,
        compete: bool = False,
    ) -> list[nn.Module]:
        rows = self.rows
        if compete and rows.val is None:
            # Nothing can be chosen: a small mask, which hardly ever hurts.
            index = min(range(len(masks)), key=lambda i: abs(masks[i] - 0.05))
            heads, masks = [heads[index]], [masks[index]]
        few = None if bank is None else bank[:_STOPPING]
        given = rows.train, rows.val, target, draw, draws, few, self.settings, self.tempered
        histories = train_heads(HeadLearner(heads, masks, *given), self.show)
        if not compete:
            self.history = History(members=tuple(histories))
            return list(heads)
        best = 0 if len(heads) == 1 else self._best(_StackedHeads(heads), target, bank)
        self.history = replace(histories.pop(best), rejected=tuple(histories))
        return [heads[best]]

    def _best(self, heads: _StackedHeads, target: Target, bank: Tensor | None) -> int:
        """The head of the lowest loss on validation rows and, half and half, on their copies, at
        the best of a few temperatures: masking leaves a head less sure of itself, and likelihood
        without the temperature that is fitted afterwards would count that against it."""
        assert self.rows.val is not None
        sets = (self.rows.val, *self.rows.copies)
        losses = torch.stack([heads.losses_at(rows, target, bank, _TEMPERATURES) for rows in sets])
        shares = losses.new_tensor(clean_and_shifted_weights(len(sets) - 1)).view(-1, 1, 1)
        return int((shares * losses).sum(dim=0).amin(dim=0).argmin())


def train_heads(
    learner: HeadLearner, show: Callable[[Epoch], None] = lambda _: None
) -> list[History]:
    """Train heads in one batched pass; each becomes what it would alone.

    They end in evaluation mode with the weights that were chosen; epoch 0 means those they had.
    """
    with isolated(learner.rows.h.device):
        try:
            return train(learner, learner.settings, show)
        finally:
            for head in learner.heads:
                head.eval()


def _automatic(settings: FitSettings, rows: int, validated: bool) -> FitSettings:
    """The settings, with what nobody chose chosen by the number of rows."""
    if settings.epochs is not None:
        if settings.epochs < 1:
            raise InputError("epochs of at least 1", settings.epochs)
        return settings if validated else replace(settings, patience=None)
    size = settings.graphs_per_step
    # Where the steps see less than every row once, a fast start harms and takes long to mend.
    lr = settings.lr or (1e-3 if rows > _EPOCHS * _STEPS * size else 3e-3)
    if not validated:
        return replace(settings, epochs=_BLIND, lr=lr, patience=None)
    patience = settings.patience or max(6, -(-rows // (_STEPS * size)))
    return replace(settings, epochs=_EPOCHS, lr=lr, patience=patience)


class _StackedHeads:
    """G heads of one architecture as one: every tensor has a leading axis G."""

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        self.heads, self.module = heads, heads[0]
        self.parameters, self.buffers = stack_module_state(list(heads))
        self.width = max(v.size(1) for v in self.parameters.values() if v.dim() > 1)

    def __call__(self, h: Tensor, c: Tensor | None, masked: Tensor | None) -> Tensor:
        """``[G, D, n, O]``; h and c are the same for all heads, ``masked`` is ``[G, D, n]``."""

        def alone(state: tuple[dict[str, Tensor], ...], masked: Tensor | None) -> Tensor:
            out: Tensor = functional_call(self.module, state, (h, c, masked))
            return out

        axes = (0, None if masked is None else 0)
        every = vmap(alone, axes, randomness="same")  # a head alone draws the same dropout
        out: Tensor = every((self.parameters, self.buffers), masked)
        return out

    @torch.no_grad()
    def losses_at(
        self, rows: CachedRows, target: Target, bank: Tensor | None, temperatures: Sequence[float]
    ) -> Tensor:
        """The mean negative log-likelihood ``[T, G]`` of each head's mixture over the bank."""
        self.module.eval()
        anchors = None if bank is None else bank.to(rows.h).unsqueeze(1)
        hypotheses = 1 if bank is None else bank.size(0)
        chunk = max(1, _CHUNK // (len(self.heads) * hypotheses * self.width))
        scales = [torch.tensor(t, device=rows.h.device) for t in temperatures]
        sums = torch.zeros(len(scales), len(self.heads), dtype=torch.float64)
        for h, y in zip(rows.h.split(chunk), rows.y.split(chunk), strict=True):
            out = self(h, anchors, None)
            found = [target.nll(target.scaled(out, t), y).sum(dim=-1) for t in scales]
            sums += torch.stack(found).cpu()
        return sums / len(rows)


@dataclass(eq=False)
class HeadLearner(Learner):
    """Heads of one architecture on cached rows, for the loop.

    A head's ``forward(h, c, masked)`` takes rows ``[n, d]``, anchors ``[D, 1, d]`` or ``None``,
    and a boolean ``[D, n]`` or ``None``; it gives ``[D, n, O]``, with D = 1 without anchors.

    Without ``epochs`` they have 8 steps, and end when the validation likelihood of every head has
    stopped rising for 6 of them (or as many as it takes to see every row), 25 at most; without
    validation rows there are 8. The learning rate is then 3e-3 up to 6400 rows.

    ``val`` decides when to stop and which epoch to keep, the start included; without it the last
    epoch stays. ``tempered`` compares epochs at the best temperature of each: right where one is
    fitted afterwards.
    """

    heads: Sequence[nn.Module]
    masks: Sequence[float]  # shares of masked rows, one per head
    rows: CachedRows
    val: CachedRows | None
    target: Target
    draw: DrawAnchors
    draws: int  # anchors per row and step
    bank: Tensor | None  # anchors of validation [K, d]
    settings: FitSettings
    tempered: bool = False

    def __post_init__(self) -> None:
        self.keeps_start = True  # training must not make a head worse
        self.steps = _STEPS if self.settings.epochs is None else None  # None: every row once
        self.settings = _automatic(self.settings, len(self.rows), self.val is not None)
        self.stack, self.size = _StackedHeads(self.heads), len(self.heads)
        self.shares = torch.tensor(self.masks, dtype=torch.float64).view(-1, 1, 1)
        learned = [p for p in self.stack.parameters.values() if p.requires_grad]
        lr, decay = self.settings.lr_at(0), self.settings.weight_decay
        self.optimizer = torch.optim.Adam(learned, lr, weight_decay=decay, fused=True)

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Row numbers, an anchor per draw ``[D, 1, d]``, and which rows lack it ``[G, D, n]``.

        One anchor for all rows of a step costs n times less than one per row, and 200 steps of
        D draws see enough of them: validation and test likelihoods came out alike.
        """
        self.stack.module.train()
        generator = torch.Generator().manual_seed(derived(self.settings.seed, epoch, 1))
        for index in self._row_numbers(generator):
            c = self.draw(self.draws, generator).to(self.rows.h).unsqueeze(1)
            shape = self.draws, len(index)
            uniform = torch.rand(*shape, generator=generator, dtype=torch.float64)
            masked = (uniform < self.shares).to(c.device)
            yield index.to(c.device), c, masked

    def _row_numbers(self, generator: torch.Generator) -> Iterator[Tensor]:
        rows = len(self.rows)
        size = min(self.settings.graphs_per_step, rows)
        if self.steps is None:
            parts = list(torch.randperm(rows, generator=generator).split(size))
            if len(parts) > 1 and len(parts[-1]) == 1:  # BatchNorm needs two rows
                parts[-2:] = [torch.cat(parts[-2:])]
            return iter(parts)
        orders = -(-self.steps * size // rows)
        order = torch.cat([torch.randperm(rows, generator=generator) for _ in range(orders)])
        return iter(order[: self.steps * size].split(size))

    def losses(self, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        index, c, masked = batch
        outputs = self.stack(self.rows.h[index], c, masked)
        losses, each = self.target.weighted_losses(outputs, self.rows.y[index], masked)
        return losses.sum(dim=(1, 2)), each.sum(dim=(1, 2))

    def validate(self) -> list[dict[str, float]]:
        if self.val is None:
            return []
        temperatures = _TEMPERATURES if self.tempered else (1.0,)
        found = self.stack.losses_at(self.val, self.target, self.bank, temperatures)
        return [{"val_loss": loss} for loss in found.amin(dim=0).tolist()]

    def state(self) -> dict[str, Tensor]:
        return {**self.stack.parameters, **self.stack.buffers}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Give every head its own part."""
        for g, head in enumerate(self.stack.heads):
            for name, value in (*head.named_parameters(), *head.named_buffers()):
                value.copy_(state[name][g])
