"""Labelled rows: batches of them, what models and frozen trunks give of them, and the small heads
that learn from these together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch_geometric.data import Data, HeteroData

from gduq._torch import derived, device_of_model
from gduq.errors import InputError, warn_user
from gduq.graphs import Batches, Graph, Loader, View, as_graph, iterate, targets
from gduq.graphs import as_batches as any_batches
from gduq.graphs.packed import try_pack
from gduq.graphs.rows import check_graph, label_rows, on_device, row_kind, structure_of
from gduq.graphs.view import overlap
from gduq.models.predictor import CachedRows, HeadTask, ModelOutput, Predictor, RowFit
from gduq.prediction import Target, TargetSample
from gduq.tracing.call import check_logits, evaluating
from gduq.tracing.trunk import Trunk
from gduq.training.loop import FitSettings, History, Learner, short_hash, train

__all__ = [
    "HeadLearner", "InferTarget", "LabelledOutputs", "TrunkRows", "as_batches",
    "clean_and_shifted_weights", "described", "even_size", "fit_on_rows",
    "labelled_outputs", "labels", "packed", "random_batches", "read_rows", "trunk_rows",
    "truths", "warn_of_overlap",
]  # fmt: skip

InferTarget = Callable[[TargetSample], Target]  # what the outputs of a network mean
Answer = Callable[[Graph], ModelOutput]  # of the rows of a graph that count

_STEPS, _EPOCHS, _BLIND = 8, 25, 8  # per epoch; epochs with and without validation rows
_CHUNK = 2**17  # numbers of a hidden layer that are computed at once: what a cache holds
_STOPPING = 3  # anchors that decide when to stop: all of them would at twice the cost
_TEMPERATURES = tuple(4.0 ** (i / 4 - 1) for i in range(9))  # 1/4 to 4


def as_batches(data: object, name: str) -> Batches:
    """Whatever holds labelled rows, as something that hands out mini-batches.

    ``name`` is what the caller calls it, ``"train"`` or ``"val"``.
    """
    if isinstance(data, HeteroData):
        wanted = f"the rows of a HeteroData that count in {name}"
        do = "Pass gduq.data.View(data, mask, node_type=...)."
        raise InputError(wanted, "the graph alone", do)
    source = any_batches(data)
    if isinstance(source, Loader):
        if isinstance(source.own, (Iterator, list, tuple)):
            wanted = f"a View, a Data, a list of graphs, a PyG dataset or a loader as {name}"
            do = "Of sampled neighbourhoods, torch.utils.data.DataLoader(batches, batch_size=None)."
            raise InputError(wanted, type(data).__name__, do)
        if name == "train" or not source.is_plain:  # training keeps the loader's order
            return source
        source = View(cast(Any, data).dataset)
    view = source if source is data else _labelled(source.graphs)
    if view.task == "graph":
        _check_leak(as_graph(view.graphs[0]))
    if len(view) == 0:
        raise InputError(f"at least one labelled row in {name}", "none", "Check the mask.")
    return view


def _labelled(graphs: Sequence[Graph]) -> View:
    """All graphs; where each of them labels its nodes (of a lone one: or edges to predict),
    those that count."""
    first = as_graph(graphs[0])
    if len(graphs) == 1 and isinstance(first, Data) and row_kind(first) == "edge":
        return View(graphs, edges=True)
    if not all(_labels_nodes(graph) for graph in graphs):
        return View(graphs)
    masks = []
    for graph in graphs:
        _check_leak(graph)
        masks.append(torch.zeros(graph.y.size(0), dtype=torch.bool))
        masks[-1][label_rows(graph, graph.y.size(0))] = True
    return View(graphs, torch.cat(masks))


def _labels_nodes(graph: object) -> bool:
    y = graph.get("y") if isinstance(graph, Data) else None
    return isinstance(y, Tensor) and y.dim() > 0 and 1 < y.size(0) == cast(Data, graph).num_nodes


def _check_leak(graph: Graph) -> None:
    """Refuse a graph whose own mask says that not all of its labels are for training."""
    masked = isinstance(graph, Data) and graph.get("train_mask") is not None
    if masked and row_kind(graph) is None and _labels_nodes(graph):
        got = "a whole graph with a train_mask, whose test labels would be used too"
        do = "Pass gduq.data.View(data, data.train_mask) and, as val, View(data, data.val_mask)."
        raise InputError("a choice of nodes", got, do)


def packed(data: Batches) -> Batches:
    """The same rows, of graphs that are packed once where they can be."""
    if not isinstance(data, View) or len(data.graphs) == 1:
        return data
    found = data._packed if data.mask is None else try_pack(data.graphs)
    return data if found is None else replace(data, graphs=found)


def warn_of_overlap(train: Batches, val: Batches) -> None:
    """Say so where validation rows are training rows too, as far as the same objects show it."""
    one, two = (data if isinstance(data, View) else data.rows for data in (train, val))
    if one is not None and two is not None and (shared := overlap(one, two)):
        warn_user(
            f"{shared} of {len(two)} validation rows are training rows too: the epoch chosen and "
            "the calibration will be overconfident (pass rows it is not trained on as val)"
        )


def labels(graph: Graph, rows: int | None = None) -> Tensor:
    """The truth of the rows of a batch that count, ``[m, ...]``; of ``rows`` answers, if given."""
    _check_leak(graph)
    y = targets(graph, rows)
    if y is None:
        raise InputError("graphs with labels y", "a batch without")
    return y


def truths(source: Batches) -> Tensor:
    """The truth of all rows, ``[m, ...]``."""
    if isinstance(source, View):
        return source.target
    found = torch.cat([labels(graph).cpu() for graph in source.batches()])
    if found.numel() == 0:
        raise InputError("at least one labelled row in every loader", "none")
    return found


def described(source: Batches, y: Tensor) -> str:
    """Rows in few words: by their labels, one after the other if their order is known."""
    known = y.tolist() if isinstance(source, View) else sorted(y.flatten().tolist())
    return f"{y.size(0)} rows ({short_hash(known)})"


def random_batches(source: Batches, rows: int, batch_size: int, seed: int) -> Iterator[Graph]:
    """A few random batches with at least ``rows`` labelled rows, if there are as many."""
    seen, generator = 0, torch.Generator().manual_seed(seed)
    for graph in source.batches(batch_size, shuffle=True, generator=generator):
        yield graph
        seen += labels(graph).size(0)
        if seen >= rows:
            break


def even_size(count: int, batch_size: int) -> int:
    """A slightly larger batch size where the last batch would be tiny: BatchNorm needs two rows."""
    least = 4 if batch_size >= 8 else 2
    while batch_size < count and 0 < count % batch_size < least:
        batch_size += 1
    return batch_size


class LabelledOutputs(NamedTuple):
    """What a model gives for rows whose truth is known, before calibration."""

    outputs: Tensor  # [K, n, O]
    y: Tensor  # the truth [n], as the target checked it
    weights: Tensor | None = None  # of the hypotheses [K]; None means equal ones
    features: Tensor | None = None  # representations [n, d], where these were wanted
    structure: Tensor | None = None  # as `gduq.graphs.structure_of` has it [n, s]


@torch.no_grad()
def read_rows(
    model: Predictor | Trunk, data: Batches, graphs: Iterable[Graph], answer: Answer, more: bool
) -> LabelledOutputs:
    """What a function says of the rows that count of some graphs of the data, joined, with their
    truth as it is stored and, where ``more`` is wanted than outputs, their structure."""
    device, weights, parts = device_of_model(model), None, list[tuple[Any, ...]]()
    with evaluating(model):
        for graph in graphs:
            outputs, h, weights = answer(graph := on_device(graph, device))
            # A loader may hand out parts of a graph, in which nodes have fewer edges.
            known = more and (isinstance(data, View) or model.row_kind == "graph")
            structure = structure_of(graph, model.row_kind) if known else None
            parts.append((outputs, labels(graph, outputs.size(-2)), h, structure))
    joined: list[Any] = [
        None if any(part is None for part in each) else torch.cat(each, max(-2, -each[0].dim()))
        for each in zip(*parts, strict=True)
    ]
    return LabelledOutputs(joined[0], joined[1], weights, *joined[2:])


def labelled_outputs(
    model: Predictor, data: Batches | CachedRows, batch_size: int, features: bool = False
) -> LabelledOutputs:
    """What a model gives for labelled rows: of graphs, or as a trunk has given them."""
    if isinstance(data, CachedRows):
        with torch.no_grad(), evaluating(model):
            outputs = model.from_rows(data.h, data.outputs)
        return LabelledOutputs(outputs, data.y, None, data.h, data.structure)
    answer = partial(model.forward_samples, features=features)
    found = read_rows(model, data, iterate(data, batch_size), answer, features)
    return found._replace(y=cast(Target, model.target).check(found.y, "val"))


def clean_and_shifted_weights(copies: int) -> list[float]:
    """How much validation rows and each copy of them count."""
    return [0.5, *[0.5 / copies] * copies] if copies else [1.0]


# Training rows, validation rows and shifted copies of these, each seen once by a trunk.
TrunkRows = tuple[CachedRows, CachedRows | None, Sequence[CachedRows]]


def trunk_rows(trunk: Trunk, data: Batches, batch_size: int, name: str = "val") -> CachedRows:
    """What a trunk gives of labelled rows."""

    def answer(graph: Graph) -> ModelOutput:
        check_graph(graph)
        h, out = (trunk.labelled(found, graph) for found in trunk.run(graph))
        return ModelOutput(out, h)

    found = read_rows(trunk, data, data.batches(batch_size), answer, True)
    if bool(found.outputs.isnan().any()):
        raise InputError(f"a network whose outputs for {name} are numbers", "NaN")
    return CachedRows(cast(Tensor, found.features), found.y, found.outputs, found.structure)


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

    def learn(task: HeadTask) -> list[nn.Module]:
        nonlocal history
        few = None if task.bank is None else task.bank[:_STOPPING]
        learner = HeadLearner(task._replace(bank=few), given, val, settings)
        histories = train(learner, progress)
        if task.bank is None:
            history = History(members=tuple(histories))
            return list(task.heads)
        best = 0 if val is None else learner.best([val, *copies], task.bank)
        history = histories[best]
        return [task.heads[best]]

    before, model.target = model.target, target
    model.check_target()
    model.set_temperature(1.0, None)
    if settings.epochs != 0 or model.frozen:  # else it is only calibrated
        model.fit_rows(RowFit(given, given if val is None else val, learn, before))
    return history, (given, val, copies)


@dataclass(eq=False)
class HeadLearner(Learner):
    """Heads of one architecture on cached rows, for the loop.

    A head's ``forward(h, c, masked)`` takes rows ``[n, d]``, anchors ``[D, 1, d]`` or ``None``,
    and a boolean ``[D, n]`` or ``None``; it gives ``[D, n, O]``, with D = 1 without anchors.

    ``val`` decides when to stop and which epoch to keep, the start included: by the likelihood at
    the best temperature, as one is fitted afterwards. Without it the last epoch stays. Where nobody
    says how long, an epoch has 8 steps, and the likelihood of every head has to stop rising for 6
    epochs, or for as many as it takes to see every row.
    """

    task: HeadTask
    rows: CachedRows
    val: CachedRows | None
    settings: FitSettings

    keeps_start = True  # training must not make a head worse

    def __post_init__(self) -> None:
        self.heads, masks, self.target, self.draw, self.draws, self.bank = self.task
        settings, self.size, rows = self.settings, len(self.heads), len(self.rows)
        self.automatic = settings.epochs is None
        if self.automatic:
            seen = _STEPS * settings.batch_size  # rows in an epoch
            # Where the steps see less than every row once, a fast start harms and is slow to mend.
            lr = settings.lr or (1e-3 if rows > _EPOCHS * seen else 3e-3)
            epochs = _EPOCHS, max(6, -(-rows // seen)), _BLIND
            settings = replace(settings, lr=lr).open_ended(self.val is not None, *epochs)
        elif not settings.epochs:
            raise InputError("epochs of at least 1", settings.epochs)
        self.parameters, self.buffers = stack_module_state(list(self.heads))
        self.shares = torch.tensor(masks, dtype=torch.float64).view(-1, 1, 1)
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
