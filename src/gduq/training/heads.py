"""Heads on a frozen trunk: it runs once, and small heads learn side by side from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from gduq._torch import derived
from gduq.errors import InputError
from gduq.graphs import check_graph, on_device
from gduq.models.predictor import CachedRows, DrawAnchors, Predictor
from gduq.prediction import Target, TargetSample
from gduq.prediction.predicting import device_of_model
from gduq.tracing.call import evaluating
from gduq.tracing.trunk import Trunk
from gduq.training.batches import Batches, InferTarget, check_leak, labels
from gduq.training.finishing import clean_and_shifted_weights, joined, row_structure
from gduq.training.history import Epoch, History
from gduq.training.loop import FitSettings, Learner, train

__all__ = ["HeadLearner", "SeenRows", "TrunkRows", "fit_on_rows", "run_trunk"]

_STEPS, _EPOCHS, _BLIND = 8, 25, 8  # per epoch; epochs with and without validation rows
_CHUNK = 2**17  # numbers of a hidden layer that are computed at once: what a cache holds
_STOPPING = 3  # anchors that decide when to stop: all of them would at twice the cost
_TEMPERATURES = tuple(4.0 ** (i / 4 - 1) for i in range(9))  # 1/4 to 4


class TrunkRows(NamedTuple):
    """All rows that training needs, each seen once by the trunk."""

    train: CachedRows
    val: CachedRows | None
    copies: Sequence[CachedRows]  # shifted copies of the validation rows


SeenRows = dict[tuple[Trunk, Batches], CachedRows]


def _run_trunk(trunk: Trunk, data: Batches, name: str) -> CachedRows:
    device, parts = device_of_model(trunk), []
    with torch.no_grad(), evaluating(trunk):
        for graph in data.batches(256):
            check_leak(graph, name)
            graph = on_device(graph, device)
            check_graph(graph)
            h, out = (trunk.labelled(found, graph) for found in trunk.run(graph))
            if bool(out.isnan().any()):
                raise InputError(f"a network whose outputs for {name} are numbers", "NaN")
            structure = row_structure(graph, trunk.row_kind, data)
            parts.append((h, labels(graph, out.size(0)), out, structure))
    rows, truth, outputs, structures = zip(*parts, strict=True)
    return CachedRows(torch.cat(rows), torch.cat(truth), torch.cat(outputs), joined(structures))


def run_trunk(
    trunk: Trunk,
    train_data: Batches,
    val_data: Batches | None,
    copies: Iterable[Batches],
    infer: InferTarget,
    seen: SeenRows | None = None,
) -> tuple[Target, TrunkRows]:
    """Run a trunk over all rows; ``seen`` keeps what it gave, for models that share it."""

    def run(data: Batches, name: str) -> CachedRows:
        if seen is None:
            return _run_trunk(trunk, data, name)
        if (trunk, data) not in seen:
            seen[trunk, data] = _run_trunk(trunk, data, name)
        return seen[trunk, data]

    first, held = run(train_data, "train"), None
    goal = infer(TargetSample(first.y, first.outputs, first.y, True, trunk.bounded))
    if val_data is not None:
        held = run(val_data, "val")
        held = replace(held, y=goal.check_val(held.y, first.y))
    found = (run(copy, "val") for copy in copies)
    shifted = [replace(copy, y=goal.check(copy.y, "val")) for copy in found]
    return goal, TrunkRows(replace(first, y=goal.check(first.y, "train")), held, shifted)


def fit_on_rows(
    model: Predictor,
    goal: Target,
    rows: TrunkRows,
    settings: FitSettings,
    show: Callable[[Epoch], None],
    tempered: bool,
) -> History:
    """Train what of a model reads the rows of a trunk, without calibration.

    ``tempered`` compares epochs at the best temperature of each: right where one is fitted
    afterwards.
    """
    history = History()

    def learn(
        heads: Sequence[nn.Module],
        masks: Sequence[float],
        target: Target,
        draw: DrawAnchors,
        draws: int = 1,
        bank: Tensor | None = None,
    ) -> list[nn.Module]:
        """See `gduq.models.predictor.TrainHeads`."""
        nonlocal history
        if bank is not None and rows.val is None:  # nothing can be chosen: a small mask
            index = min(range(len(masks)), key=lambda i: abs(masks[i] - 0.05))
            heads, masks = [heads[index]], [masks[index]]
        few = None if bank is None else bank[:_STOPPING]
        given = rows.train, rows.val, target, draw, draws, few, settings, tempered
        learner = HeadLearner(heads, masks, *given)
        histories = train(learner, learner.settings, show)
        if bank is None:
            history = History(members=tuple(histories))
            return list(heads)
        best = 0 if rows.val is None else learner.best([rows.val, *rows.copies], bank)
        history = histories[best]
        return [heads[best]]

    before, model.target = model.target, goal
    model.check_target()
    model.set_temperature(1.0, None)
    model.fit_rows(rows.train, rows.train if rows.val is None else rows.val, learn, before)
    return history


@dataclass(eq=False)
class HeadLearner(Learner):
    """Heads of one architecture on cached rows, for the loop.

    A head's ``forward(h, c, masked)`` takes rows ``[n, d]``, anchors ``[D, 1, d]`` or ``None``,
    and a boolean ``[D, n]`` or ``None``; it gives ``[D, n, O]``, with D = 1 without anchors.

    Without ``epochs`` they have 8 steps, and end when the validation likelihood of every head has
    stopped rising for 6 of them (or as many as it takes to see every row), 25 at most; without
    validation rows there are 8. The learning rate is then 3e-3 up to 6400 rows.

    ``val`` decides when to stop and which epoch to keep, the start included; without it the last
    epoch stays.
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
        self.size, self.automatic = len(self.heads), self.settings.epochs is None
        self.settings = _complete(self.settings, len(self.rows), self.val is not None)
        self.parameters, self.buffers = stack_module_state(list(self.heads))
        self.shares = torch.tensor(self.masks, dtype=torch.float64).view(-1, 1, 1)
        learned = [p for p in self.parameters.values() if p.requires_grad]
        lr, decay = self.settings.lr_at(0), self.settings.weight_decay
        self.optimizer = torch.optim.Adam(learned, lr, weight_decay=decay, fused=True)

    def outputs(self, h: Tensor, c: Tensor | None, masked: Tensor | None) -> Tensor:
        """Of all heads ``[G, D, n, O]``; h and c are the same for all, masks ``[G, D, n]``."""

        def alone(state: tuple[dict[str, Tensor], ...], masked: Tensor | None) -> Tensor:
            return cast(Tensor, functional_call(self.heads[0], state, (h, c, masked)))

        axes = (0, None if masked is None else 0)
        every = vmap(alone, axes, randomness="same")  # a head alone draws the same dropout
        return every((self.parameters, self.buffers), masked)

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Row numbers, an anchor per draw ``[D, 1, d]``, and which rows lack it ``[G, D, n]``.

        One anchor for all rows of a step costs n times less than one per row, and 200 steps of
        D draws see enough of them: validation and test likelihoods came out alike.
        """
        self.heads[0].train()
        generator = torch.Generator().manual_seed(derived(self.settings.seed, epoch, 1))
        for index in self._row_numbers(generator):
            c = self.draw(self.draws, generator).to(self.rows.h).unsqueeze(1)
            shape = self.draws, len(index)
            uniform = torch.rand(*shape, generator=generator, dtype=torch.float64)
            yield index.to(c.device), c, (uniform < self.shares).to(c.device)

    def _row_numbers(self, generator: torch.Generator) -> Iterator[Tensor]:
        rows = len(self.rows)
        size = min(self.settings.graphs_per_step, rows)
        if self.automatic:  # so many steps, however many rows
            orders = -(-_STEPS * size // rows)
            order = torch.cat([torch.randperm(rows, generator=generator) for _ in range(orders)])
            return iter(order[: _STEPS * size].split(size))
        parts = list(torch.randperm(rows, generator=generator).split(size))
        if len(parts) > 1 and len(parts[-1]) == 1:  # BatchNorm needs two rows
            parts[-2:] = [torch.cat(parts[-2:])]
        return iter(parts)

    def losses(self, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        index, c, masked = batch
        outputs = self.outputs(self.rows.h[index], c, masked)
        losses, each = self.target.weighted_losses(outputs, self.rows.y[index], masked)
        return losses.sum(dim=(1, 2)), each.sum(dim=(1, 2))

    def validate(self) -> list[dict[str, float]]:
        if self.val is None:
            return []
        found = self._losses_at(self.val, self.bank, _TEMPERATURES if self.tempered else (1.0,))
        return [{"val_loss": loss} for loss in found.amin(dim=0).tolist()]

    def best(self, sets: Sequence[CachedRows], bank: Tensor | None) -> int:
        """The head of the lowest loss on validation rows and, half and half, on their copies, at
        the best of a few temperatures: masking leaves a head less sure of itself, and likelihood
        without the temperature that is fitted afterwards would count that against it."""
        if self.size == 1:
            return 0
        self.parameters, self.buffers = stack_module_state(list(self.heads))
        losses = torch.stack([self._losses_at(rows, bank, _TEMPERATURES) for rows in sets])
        shares = losses.new_tensor(clean_and_shifted_weights(len(sets) - 1)).view(-1, 1, 1)
        return int((shares * losses).sum(dim=0).amin(dim=0).argmin())

    @torch.no_grad()
    def _losses_at(
        self, rows: CachedRows, bank: Tensor | None, temperatures: Sequence[float]
    ) -> Tensor:
        """The mean negative log-likelihood ``[T, G]`` of each head's mixture over the bank."""
        self.heads[0].eval()
        anchors = None if bank is None else bank.to(rows.h).unsqueeze(1)
        width = max(v.size(1) for v in self.parameters.values() if v.dim() > 1)
        chunk = max(1, _CHUNK // (self.size * (1 if bank is None else bank.size(0)) * width))
        scales = [torch.tensor(t, device=rows.h.device) for t in temperatures]
        sums = torch.zeros(len(scales), self.size, dtype=torch.float64)
        for h, y in zip(rows.h.split(chunk), rows.y.split(chunk), strict=True):
            out = self.outputs(h, anchors, None)
            found = [self.target.nll(self.target.scaled(out, t), y).sum(dim=-1) for t in scales]
            sums += torch.stack(found).cpu()
        return sums / len(rows)

    def state(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Give every head its own part."""
        for g, head in enumerate(self.heads):
            head.eval()
            for name, value in (*head.named_parameters(), *head.named_buffers()):
                value.copy_(state[name][g])


def _complete(settings: FitSettings, rows: int, validated: bool) -> FitSettings:
    """The settings, with what nobody chose chosen by the number of rows."""
    patience = settings.patience if validated else None
    if settings.epochs is not None:
        if settings.epochs < 1:
            raise InputError("epochs of at least 1", settings.epochs)
        return replace(settings, patience=patience)
    size = settings.graphs_per_step
    # Where the steps see less than every row once, a fast start harms and takes long to mend.
    lr = settings.lr or (1e-3 if rows > _EPOCHS * _STEPS * size else 3e-3)
    if not validated:
        return replace(settings, epochs=_BLIND, lr=lr, patience=None)
    patience = patience or max(6, -(-rows // (_STEPS * size)))
    return replace(settings, epochs=_EPOCHS, lr=lr, patience=patience)
