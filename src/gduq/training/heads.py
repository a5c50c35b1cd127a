"""Labelled rows, as models and frozen trunks give them; small heads learn from these together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from gduq._torch import derived
from gduq.errors import InputError
from gduq.graphs import Graph, Rows, View, check_graph, iterate, on_device, structure_of
from gduq.models.predictor import CachedRows, DrawAnchors, Predictor
from gduq.prediction import Target, TargetSample
from gduq.prediction.predicting import device_of_model
from gduq.tracing.call import check_logits, evaluating
from gduq.tracing.trunk import Trunk
from gduq.training.batches import Batches, InferTarget, even_size, labels, random_batches
from gduq.training.loop import FitSettings, History, Learner, train

__all__ = ["HeadLearner", "LabelledOutputs", "TrunkRows", "clean_and_shifted_weights",
           "fit_on_rows", "labelled_outputs", "over_graphs", "run_trunk"]  # fmt: skip

MOST = 20_000  # rows that novelty looks at
_STEPS, _EPOCHS, _BLIND = 8, 25, 8  # per epoch; epochs with and without validation rows
_CHUNK = 2**17  # numbers of a hidden layer that are computed at once: what a cache holds
_STOPPING = 3  # anchors that decide when to stop: all of them would at twice the cost
_TEMPERATURES = tuple(4.0 ** (i / 4 - 1) for i in range(9))  # 1/4 to 4


class LabelledOutputs(NamedTuple):
    """What a model gives for rows whose truth is known, before calibration."""

    outputs: Tensor  # [K, n, O]
    y: Tensor  # the truth [n], as the target checked it
    weights: Tensor | None = None  # of the hypotheses [K]; None means equal ones
    features: Tensor | None = None  # representations [n, d], where these were wanted
    structure: Tensor | None = None  # as `gduq.graphs.structure_of` has it [n, s]


@torch.no_grad()
def over_graphs(
    model: nn.Module, graphs: Iterable[Graph], answer: Callable[[Graph], Sequence[Tensor | None]]
) -> list[Any]:
    """What a function makes of graphs, joined over rows (the last axis but one); ``None`` of what
    some graph has none."""
    device = device_of_model(model)
    with evaluating(model):
        parts = [answer(on_device(graph, device)) for graph in graphs]
    return [
        None if any(part is None for part in each) else torch.cat(each, max(-2, -each[0].dim()))
        for each in zip(*parts, strict=True)
    ]


def labelled_outputs(
    model: Predictor,
    data: Batches | CachedRows,
    batch_size: int | None = None,
    features: bool = False,
    some: torch.Generator | None = None,
) -> LabelledOutputs:
    """What a model gives for labelled rows: of graphs, or as a trunk has given them; for ``some``,
    of many graphs, from all over: data may be sorted."""
    target, weights = cast(Target, model.target), None
    if isinstance(data, CachedRows):
        with torch.no_grad(), evaluating(model):
            outputs = model.from_rows(data.h, data.outputs)
        return LabelledOutputs(outputs, data.y, None, data.h, data.structure)

    def answer(graph: Graph) -> Sequence[Tensor | None]:
        nonlocal weights
        outputs, h, weights = model.forward_samples(graph, features=features)
        y = target.check(labels(graph, outputs.size(1)), "val")
        return outputs, y, h, row_structure(graph, model.row_kind, data) if features else None

    graphs = iterate(data, batch_size)
    if some is not None:
        graphs = random_batches(data, MOST, batch_size or 1, some)
    outputs, y, h, structure = over_graphs(model, graphs, answer)
    return LabelledOutputs(outputs, y, weights, h, structure)


def row_structure(graph: Graph, row_kind: Rows | None, data: Batches) -> Tensor | None:
    """The structure of rows, where it is theirs: a loader may hand out parts of a graph, in which
    nodes have fewer edges."""
    complete = isinstance(data, View) or row_kind == "graph"
    return structure_of(graph, row_kind) if complete else None


def clean_and_shifted_weights(copies: int) -> list[float]:
    """How much validation rows and each copy of them count."""
    return [0.5, *[0.5 / copies] * copies] if copies else [1.0]


# Training rows, validation rows and shifted copies of these, each seen once by a trunk.
TrunkRows = tuple[CachedRows, CachedRows | None, Sequence[CachedRows]]


def run_trunk(
    trunk: Trunk, train: Batches, val: Batches | None, copies: Iterable[Batches], batch_size: int
) -> TrunkRows:
    """What a trunk gives of labelled rows, in one pass."""

    def rows(data: Batches, name: str) -> CachedRows:
        def answer(graph: Graph) -> Sequence[Tensor | None]:
            check_graph(graph)
            h, out = (trunk.labelled(found, graph) for found in trunk.run(graph))
            if bool(out.isnan().any()):
                raise InputError(f"a network whose outputs for {name} are numbers", "NaN")
            y = labels(graph, out.size(0))
            return h, y, out, row_structure(graph, trunk.row_kind, data)

        return CachedRows(*over_graphs(trunk, data.batches(batch_size), answer))

    held = None if val is None else rows(val, "val")
    return rows(train, "train"), held, [rows(copy, "val") for copy in copies]


def fit_on_rows(
    model: Predictor, rows: TrunkRows, infer: InferTarget, settings: FitSettings, progress: bool
) -> tuple[History, TrunkRows]:
    """Train what of a model reads the rows of a trunk, without calibration. The rows come back with
    their truth as the target has it."""
    (given, val, copies), trunk, history = rows, cast(Trunk, model.trunk), History()
    target = infer(TargetSample(given.y, given.outputs, given.y, True, trunk.bounded))
    if not target.has_units:
        check_logits(given.outputs, known=not trunk.bounded)
    if val is not None:
        val = replace(val, y=target.check_val(val.y, given.y))
    copies = [replace(copy, y=target.check(copy.y, "val")) for copy in copies]
    given = replace(given, y=target.check(given.y, "train"))

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
        if bank is not None and val is None:  # nothing can be chosen: a small mask
            index = min(range(len(masks)), key=lambda i: abs(masks[i] - 0.05))
            heads, masks = [heads[index]], [masks[index]]
        few = None if bank is None else bank[:_STOPPING]
        learner = HeadLearner(heads, masks, given, val, target, draw, draws, few, settings)
        histories = train(learner, progress)
        if bank is None:
            history = History(members=tuple(histories))
            return list(heads)
        best = 0 if val is None else learner.best([val, *copies], bank)
        history = histories[best]
        return [heads[best]]

    before, model.target = model.target, target
    model.check_target()
    model.set_temperature(1.0, None)
    if settings.epochs != 0 or model.frozen:  # else it is only calibrated
        model.fit_rows(given, given if val is None else val, learn, before)
    return history, (given, val, copies)


@dataclass(eq=False)
class HeadLearner(Learner):
    """Heads of one architecture on cached rows, for the loop.

    A head's ``forward(h, c, masked)`` takes rows ``[n, d]``, anchors ``[D, 1, d]`` or ``None``,
    and a boolean ``[D, n]`` or ``None``; it gives ``[D, n, O]``, with D = 1 without anchors.

    ``val`` decides when to stop and which epoch to keep, the start included: by the likelihood at
    the best temperature, as one is fitted afterwards. Without it the last epoch stays.
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

    keeps_start = True  # training must not make a head worse

    def __post_init__(self) -> None:
        settings, self.size = self.settings, len(self.heads)
        self.automatic = settings.epochs is None
        if self.automatic:
            settings = _automatic(settings, len(self.rows), self.val is not None)
        elif not settings.epochs:
            raise InputError("epochs of at least 1", settings.epochs)
        self.parameters, self.buffers = stack_module_state(list(self.heads))
        self.shares = torch.tensor(self.masks, dtype=torch.float64).view(-1, 1, 1)
        super().__init__(settings, self.parameters.values())

    def outputs(self, h: Tensor, c: Tensor | None, masked: Tensor | None) -> Tensor:
        """Of all heads ``[G, D, n, O]``; h and c are the same for all, masks ``[G, D, n]``."""

        def alone(state: tuple[dict[str, Tensor], ...], masked: Tensor | None) -> Tensor:
            return cast(Tensor, functional_call(self.heads[0], state, (h, c, masked)))

        axes = (0, None if masked is None else 0)
        every = vmap(alone, axes, randomness="same")  # a head alone draws the same dropout
        return every((self.parameters, self.buffers), masked)

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Row numbers, an anchor per draw ``[D, 1, d]``, and which rows lack it ``[G, D, n]``.

        One anchor for all rows of a step costs n times less than one per row, and 200 steps of D
        draws see enough of them. A single draw is one per row ``[1, n, d]``, as the paper has it.
        """
        self.heads[0].train()
        generator = torch.Generator().manual_seed(derived(self.settings.seed, epoch, 1))
        rows = len(self.rows)
        size, own = min(self.settings.batch_size, rows), self.draws == 1 and self.bank is not None
        count = _STEPS * size if self.automatic else rows  # so many steps, however many rows
        orders = [torch.randperm(rows, generator=generator) for _ in range(-(-count // rows))]
        for index in torch.cat(orders)[:count].split(even_size(count, size)):
            c = self.draw(len(index) if own else self.draws, generator).to(self.rows.h)
            uniform = torch.rand(self.draws, len(index), generator=generator, dtype=torch.float64)
            yield index.to(c.device), c.unsqueeze(1 - own), (uniform < self.shares).to(c.device)

    def losses(self, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        index, c, masked = batch
        outputs = self.outputs(self.rows.h[index], c, masked)
        losses, each = self.target.weighted_losses(outputs, self.rows.y[index], masked)
        return losses.sum(dim=(1, 2)), each.sum(dim=(1, 2))

    def validate(self) -> list[dict[str, float]]:
        if self.val is None:
            return []
        found = self._losses_at(self.val, self.bank).amin(dim=0)
        return [{"val_loss": loss} for loss in found.tolist()]

    def best(self, sets: Sequence[CachedRows], bank: Tensor | None) -> int:
        """The head of the lowest loss on validation rows and, half and half, on their copies, at
        the best of a few temperatures: masking leaves a head less sure of itself, and likelihood
        without the temperature that is fitted afterwards would count that against it."""
        if self.size == 1:
            return 0
        self.parameters, self.buffers = stack_module_state(list(self.heads))
        losses = torch.stack([self._losses_at(rows, bank) for rows in sets])
        shares = losses.new_tensor(clean_and_shifted_weights(len(sets) - 1)).view(-1, 1, 1)
        return int((shares * losses).sum(dim=0).amin(dim=0).argmin())

    @torch.no_grad()
    def _losses_at(self, rows: CachedRows, bank: Tensor | None) -> Tensor:
        """The mean negative log-likelihood ``[T, G]`` of each head's mixture over the bank, at
        each of a few temperatures."""
        self.heads[0].eval()
        anchors = None if bank is None else bank.to(rows.h).unsqueeze(1)
        width = max(v.size(1) for v in self.parameters.values() if v.dim() > 1)
        chunk = max(1, _CHUNK // (self.size * (1 if bank is None else bank.size(0)) * width))
        scales = [torch.tensor(t, device=rows.h.device) for t in _TEMPERATURES]
        sums = torch.zeros(len(scales), self.size, dtype=torch.float64)
        for h, y in zip(rows.h.split(chunk), rows.y.split(chunk), strict=True):
            out = self.outputs(h, anchors, None)
            found = [self.target.nll(self.target.scaled(out, t), y).sum(dim=-1) for t in scales]
            sums += torch.stack(found).cpu()
        return sums / len(rows)

    def state(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

    def load(self, state: Mapping[str, Tensor]) -> None:
        for g, head in enumerate(self.heads):
            head.eval().load_state_dict({name: value[g] for name, value in state.items()})


def _automatic(settings: FitSettings, rows: int, validated: bool) -> FitSettings:
    """How heads learn where nobody says how long: 8 steps an epoch, until the validation likelihood
    of every head has stopped rising for 6 epochs (or as many as it takes to see every row)."""
    seen = _STEPS * settings.batch_size  # rows in an epoch
    # Where the steps see less than every row once, a fast start harms and takes long to mend.
    lr = settings.lr or (1e-3 if rows > _EPOCHS * seen else 3e-3)
    if not validated:
        return replace(settings, epochs=_BLIND, lr=lr)
    patience = settings.patience or max(6, -(-rows // seen))
    return replace(settings, epochs=_EPOCHS, lr=lr, patience=patience)
