"""`fit`: train any of the library's models with one call, calibrate it, note its training rows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from scipy.optimize import brentq
from torch import Tensor, nn
from torch_geometric.loader import DataLoader

from gduq._torch import derived, device_of_model, isolated, seed_all
from gduq.errors import InputError, warn_user
from gduq.graphs import Batches, Graph, Graphs, View, on_device
from gduq.models.network import as_predictor
from gduq.models.predictor import CachedRows, Calibrate, Predictor
from gduq.ood.nearest import Novelty
from gduq.ood.trust import Evidence, Trust
from gduq.prediction import ClassWeights, Target, TargetSample, Values, resolve_target
from gduq.shifts.corruptions import shifted_copies
from gduq.tracing.call import Call
from gduq.tracing.trunk import Trunk
from gduq.training.loop import Checkpoint, FitSettings, History, Learner, signature, train
from gduq.training.rows import (
    InferTarget,
    LabelledOutputs,
    TrunkRows,
    as_batches,
    clean_and_shifted_weights,
    described,
    even_size,
    fit_on_rows,
    labelled_outputs,
    labels,
    packed,
    random_batches,
    read_rows,
    trunk_rows,
    truths,
    warn_of_overlap,
)

__all__ = ["Fit", "GraphLearner", "affordable", "fit", "fit_with_novelty", "warn_of_doubts"]

_FEW = 20  # validation rows below which a temperature says little
_ENOUGH = 256  # rows that show the units of a network
_MOST = 20_000  # rows that novelty looks at
_OUTSIDE = 0  # the "epoch" whose random numbers serve what is drawn outside of epochs
_OPEN_ENDED = 100, 10, 20  # epochs and patience of a frozen network, epochs without validation rows


def fit(
    model: nn.Module,
    train: Graphs,
    val: Graphs | None = None,
    *,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int = 32,
    weight_decay: float = 0.0,
    class_weights: ClassWeights = None,
    class_names: Sequence[str] | None = None,
    target: Target | str | None = None,
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
    patience: int | None = None,
    calibrate: Calibrate | str = "default",
    seed: int = 0,
    call: Call | None = None,
    progress: bool = True,
    resume: str | Path | None = None,
) -> History:
    r"""Train a model, calibrate it, and note what its training data are like.

    A head on a frozen network (what ``gduq.anchor(net)`` gives) needs no ``epochs``: the network
    runs once over the data, heads with several shares of masked rows are trained side by side and
    stop early, and the most likely one stays. Everything else is trained with Adam for ``epochs``:
    with D draws of anchors and m labelled rows in a batch, a step minimises

    .. math::
        \frac{1}{Dm} \sum_{k,i} \begin{cases} -\log p_{ki}(y_i) \\
        -\frac1C \sum_c \log p_{ki}(c) & \text{where row i of draw k is masked} \end{cases}

    The weights of the lowest validation loss stay (the start among them, where a trained network
    trains on with anchors); without ``val`` the last ones. At the end one temperature is fitted on
    validation rows and on shifted copies of them (by which validation rows may lose
    `Target.price`), and a sample of the training rows is kept, against which ``novelty`` is
    measured. Without ``val`` the model is not calibrated, and its predictions say so.

    A second call goes on from where the first one ended. The same seed gives the same bits on one
    thread, and global random states are left as they were.

    Args:
        model: What `gduq.anchor` gave, a plain network, or a baseline: `Ensemble` (members with
            seeds ``seed``, ``seed + 1``, ...), `MCDropout`, `HeadEnsemble`, `LastLayerLaplace`,
            `Neighbours`. It is trained on the device it lies on.
        train: A View, a ``Data``, a list of them, a PyG dataset, or a loader (``NeighborLoader``
            too), which keeps its own batch size. Only labelled rows count.
        val: Data to judge every epoch by, to choose with and to calibrate on.
        epochs: Passes over ``train`` (a single graph is one step); 0 only calibrates a trained
            network, ensemble or dropout model. ``None``, for a frozen network only: until
            validation rows say stop.
        lr: Learning rate of Adam; default 0.001, or by the number of rows for a head without
            ``epochs``. A trained network that trains on with anchors begins with less.
        batch_size: Graphs per step; rows where a head is trained.
        weight_decay: L2 penalty, as in Adam.
        class_weights: One weight per class, or ``"balanced"``; for rows that are not masked.
        class_names: A name per class, label or value; predictions and bundles carry them.
        target: What ``y`` is: ``"classes"``, ``"labels"`` (several yes/no columns, NaN where
            unknown), ``"values"`` (regression), or a `gduq.prediction.Target`. Default: inferred
            from ``y``, see `gduq.prediction.infer_target`.
        milestones, gamma: Epochs after which the learning rate is multiplied by ``gamma``.
        patience: Stop after so many epochs without a lower validation loss.
        calibrate: ``"shifted"``, ``"clean"`` (validation rows only) or ``None``; default: as the
            model's recipe says, which is ``"shifted"``. Where no copies can be made (a
            heterogeneous graph, a loader other than PyG's ``DataLoader`` of graphs in memory)
            or none of them changes an output, ``"shifted"`` means ``"clean"``.
        seed: Decides the order of graphs, anchors, dropout.
        call: As in `gduq.anchor`, for a plain network.
        progress: Show a bar, on a terminal.
        resume: Folder for a checkpoint, rewritten at an epoch's end as often as that takes no more
            than a twentieth of the time. If there is one, training goes on from it and ends as if
            it had never stopped. A head on a frozen network is trained anew; it takes seconds.

    Returns:
        The epochs, with losses, times and validation figures.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> import gduq
        >>> def graph(y):
        ...     return Data(x=torch.full((2, 1), y), edge_index=torch.tensor([[0, 1], [1, 0]]), y=y)
        >>> graphs = [graph(float(i % 2)) for i in range(60)]
        >>> net = gduq.nn.GNN(1, 8, 2, num_layers=2, head="mlp")
        >>> history = gduq.fit(net, graphs[:40], graphs[40:], epochs=3)
        >>> model = gduq.anchor(net, num_anchors=5)
        >>> history = gduq.fit(model, graphs[:40], graphs[40:])
        >>> p = gduq.predict(model, graphs[:3])
        >>> p.samples.shape, p.calibrated
        (torch.Size([5, 3, 2]), 'shifted')
    """
    known, falls = as_predictor(model, call, trains=True), tuple(milestones)
    how = cast(Calibrate, known.calibrate if calibrate == "default" else calibrate)
    settings = FitSettings(epochs, lr, batch_size, weight_decay, falls, gamma, patience, how, seed)
    words = {"class_weights": class_weights, "class_names": class_names}
    infer = partial(resolve_target, given=target, **words)  # type: ignore[arg-type]
    work = Fit.of(train, val, settings, infer, progress)
    history, sets = work.run(known, Path(resume) if resume else None)
    warn_of_doubts(known, sets)
    return history


@dataclass(frozen=True)
class Fit:
    """One call of `fit`, for a model or a part of it; data are packed once for all of it."""

    train: Batches
    val: Batches | None
    settings: FitSettings
    infer: InferTarget  # what the outputs of a network mean: as given, or inferred from y
    progress: bool = True
    copies: Sequence[Batches] | None = None  # shifted copies of val, where several models use them
    seen: dict[Trunk, TrunkRows] = field(default_factory=dict)  # what trunks have given of all rows

    @classmethod
    def of(
        cls, train: object, val: object, settings: FitSettings, infer: InferTarget, progress: bool
    ) -> Fit:
        """From whatever holds graphs."""
        given = as_batches(train, "train")
        held = None if val is None else as_batches(val, "val")
        if held is not None:
            warn_of_overlap(given, held)
        elif settings.patience is not None:
            raise InputError("validation data with patience", "none", "Pass val.")
        own = isinstance(val, DataLoader) and val.batch_size  # memory may hold no more
        most = min(settings.most, 8 * settings.batch_size)
        settings = replace(settings, most=min(own or most, most))
        return cls(packed(given), None if held is None else packed(held), settings, infer, progress)

    def first_graph(self, device: torch.device) -> Graph:
        """The first training graph, or a small batch of graphs."""
        return on_device(next(iter(self.train.batches(8))), device)

    def run(
        self, model: Predictor, resume: Path | None = None
    ) -> tuple[History, list[LabelledOutputs]]:
        """Train any model and finish it; see `finish_model` for what comes back.

        However it ends, the model is in evaluation mode. After a failure it does not count as
        calibrated, and knows no novelty.
        """
        start, device, before = time.perf_counter(), device_of_model(model), model.target
        try:
            with isolated(device):
                history, rows = (self._parts if model.parts else self._train)(model, resume)
                train, val, copies = rows or (self.train, self.val, self.shifted_copies())
                sets = finish_model(model, train, val, copies, self.settings)
        except BaseException as error:
            model.set_temperature(1.0, None)
            model.novelty, model.trust = Novelty(), Trust()
            if isinstance(error, InputError):  # what was refused is no target
                model.target = before
            raise
        finally:
            model.eval().note()
        return replace(history, seconds=history.seconds + time.perf_counter() - start), sets

    def shifted_copies(self) -> Iterable[Batches]:
        """Of validation rows, where they are wanted; none of a heterogeneous graph, nor of a loader
        that does not show its graphs."""
        if self.settings.calibrate != "shifted" or not isinstance(self.val, View):
            return ()
        return shifted_copies(self.val, self.settings.seed) if self.copies is None else self.copies

    def with_(self, **changes: Any) -> Fit:
        """The same with other settings."""
        return replace(self, settings=replace(self.settings, **changes))

    def _parts(self, model: Predictor, resume: Path | None) -> tuple[History, None]:
        """What a model is made of, one after the other."""
        histories = []
        for i, (name, part) in enumerate(model.parts.items()):
            own = self.with_(seed=self.settings.seed + i, calibrate=None)
            histories.append(own.run(part, resume and resume / name)[0])
        target = next(iter(model.parts.values())).target
        model.target = None if target is None else target.combined()
        return History(members=tuple(histories)), None

    def _train(self, model: Predictor, resume: Path | None) -> tuple[History, TrunkRows | None]:
        """A model that learns from graphs, or from the rows of a frozen trunk, which come back."""
        model.locate(self.first_graph(device_of_model(model)))
        settings, trunk = self.settings, model.trunk
        frozen = trunk is not None and not any(p.requires_grad for p in trunk.parameters())
        shared = self.copies is not None and settings.epochs == 0
        if trunk is not None and trunk.has_head and (frozen or shared):
            if trunk not in self.seen:
                rows = partial(trunk_rows, trunk, batch_size=settings.most)
                held = None if self.val is None else rows(self.val)
                copies = [rows(copy) for copy in self.shifted_copies()]
                self.seen[trunk] = rows(self.train, name="train"), held, copies
            return fit_on_rows(model, self.seen[trunk], self.infer, settings, self.progress)
        if settings.epochs is None and model.frozen:  # until validation rows end it
            settings = settings.open_ended(self.val is not None, *_OPEN_ENDED)
        learner = GraphLearner(model, replace(self, settings=settings))
        checkpoint = None if resume is None else Checkpoint(resume, learner.identity())
        (history,) = train(learner, self.progress, checkpoint)
        learner.optimizer.zero_grad()
        seed_all(derived(settings.seed, _OUTSIDE))
        if model.num_anchors:
            model.fit_anchors(self.train, batch_size=settings.most)
        return history, None


class GraphLearner(Learner):
    """A model that learns from graphs, for the loop.

    Everything that can be wrong with the data or the model shows in a pass without consequences,
    before the first epoch and before the first file.
    """

    def __init__(self, model: Predictor, fit: Fit) -> None:
        self.model, self.train, self.val = model, fit.train, fit.val
        self.settings = settings = fit.settings
        if settings.epochs is None:
            do = (
                "Only a head on a frozen network (gduq.anchor(net), without at=) needs none. Pass "
                "epochs=100, for example, or epochs=0 to calibrate a trained model as it is."
            )
            raise InputError("epochs=, how long to train", "none", do)
        self.device = device_of_model(model)
        self.keeps_start = self.warms_up = model.starts_trained
        seed_all(derived(settings.seed, _OUTSIDE))
        self.y, self.y_val = truths(self.train), None if self.val is None else truths(self.val)
        model.set_temperature(1.0, None)  # epochs are compared without one
        self.probe = self._some_batches(max(1, model.num_anchors))
        model.init_anchors(self.probe)
        self.target = model.target = fit.infer(self._sample())
        model.check_target()
        with torch.no_grad():
            model.sample(self.probe[0])  # logits are looked at, now that they are some
        if self.y_val is not None:
            self.target.check_val(self.y_val, self.y)
        super().__init__(settings, model.parameters())
        model.prepare(self.train, settings.most)

    def identity(self) -> dict[str, object]:
        """What must be the same in a run that goes on from a checkpoint; epochs may grow."""
        found = asdict(self.settings) | {"lr": self.settings.lr_at(0), "epochs": None}
        val = None if self.val is None else described(self.val, cast(Tensor, self.y_val))
        found |= {"train": described(self.train, self.y), "val": val}
        return found | {"target": self.target.spec(), "model": signature(self.model)}

    def _some_batches(self, rows: int) -> list[Graph]:
        size, seed = max(self.settings.batch_size, rows), derived(self.settings.seed, _OUTSIDE)
        return [on_device(g, self.device) for g in random_batches(self.train, rows, size, seed)]

    def _sample(self) -> TargetSample:
        """What shows what the outputs of the model mean: many rows show the units of a network."""
        model, before, some = self.model, self.model.target, self._some_batches(_ENOUGH)
        stays = self.settings.epochs == 0 or model.frozen  # it is not trained any more
        try:
            model.target = Values()  # nothing is known: these are the bare outputs
            found = read_rows(model, self.train, some, model.forward_samples, False)
        finally:
            model.target = before
        return TargetSample(self.y, found.outputs.mean(dim=0), found.y, stays, model.bounded)

    def batches(self, epoch: int) -> Iterator[Graph]:
        generator = torch.Generator().manual_seed(derived(self.settings.seed, epoch))
        graphs = len(self.train.graphs) if isinstance(self.train, View) else 0
        size = even_size(graphs, self.settings.batch_size)
        self.model.train()
        for graph in self.train.batches(size, True, generator):
            if labels(graph).size(0):
                yield on_device(graph, self.device)

    def losses(self, batch: Graph) -> tuple[Tensor, Tensor]:
        losses, weights = self.model.loss(batch)
        return losses.sum().view(1), weights.sum().view(1)

    def validate(self) -> list[dict[str, float]]:
        if self.val is None:
            return []
        buffers = (b for b in self.model.buffers() if b.is_floating_point())
        if not all(bool(buffer.isfinite().all()) for buffer in buffers):
            return [{"val_loss": torch.nan}]
        self.model.init_anchors(self.probe)
        found = labelled_outputs(self.model, self.val, self.settings.most)
        return [self.target.figures(found.outputs, found.y, found.weights)]

    def state(self) -> dict[str, Tensor]:
        return {name: value.unsqueeze(0) for name, value in self.model.state_dict().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.model.load_state_dict({name: value[0] for name, value in state.items()})


# -- calibration and novelty ----------------------------------------------------------------------


def finish_model(
    model: Predictor,
    train: Batches | CachedRows,
    val: Batches | CachedRows | None,
    copies: Iterable[Batches | CachedRows],
    settings: FitSettings,
) -> list[LabelledOutputs]:
    """Calibrate a trained model on validation rows, if there are any, and on copies of them, and
    note what its training rows are like.

    Rows are graphs, or as a frozen trunk gave them. What comes back is what the model gave for
    validation rows, and then for their copies.
    """
    model.set_temperature(1.0, None)
    model.trust = Trust()
    target, size, sets = cast(Target, model.target), settings.most, list[LabelledOutputs]()
    if target.needs_noise:
        held = labelled_outputs(model, train if val is None else val, size)
        model.target = target = target.with_noise(*held[:3])
    if val is not None:
        clean = labelled_outputs(model, val, size, features=True)
        sets = [clean]
        if settings.calibrate is not None:
            sets += [labelled_outputs(model, rows, size, features=True) for rows in copies]
            # Copies that change nothing do not count. Validation rows alone never lose more than
            # `Target.price` by copies: where these ask for more, the temperature stops there.
            changed = [each for each in sets[1:] if not torch.equal(each.outputs, clean.outputs)]
            shares = clean_and_shifted_weights(len(changed))
            parts = [(z, y, s) for (z, y, *_), s in zip([clean, *changed], shares, strict=True)]
            value = target.best_temperature(parts, clean.weights)
            if changed:
                value = affordable(target, clean, value)
            model.set_temperature(value, "shifted" if changed else "clean")
    if not isinstance(train, CachedRows):  # some rows from all over: data may be sorted
        some, read = random_batches(train, _MOST, size, settings.seed), model.forward_samples
        h, structure = read_rows(model, train, some, partial(read, features=True), True)[3:]
    else:
        h, structure = train.h, train.structure
    if h is not None:  # a model with representations
        near, near_structure = sets[0][3:] if sets else (None, None)
        generator = torch.Generator().manual_seed(settings.seed)
        model.novelty.fit(h, near, generator, structure, near_structure)
        if model.calibration is not None:
            fit_with_novelty(model, sets)
    return sets


def affordable(target: Target, clean: LabelledOutputs, temperature: float) -> float:
    """The temperature next to the given one by which validation rows lose no more than
    `Target.price`, against the one that suits them best."""
    outputs, y, weights = clean[:3]

    def loss(log: float) -> float:
        scale = torch.tensor(log, dtype=torch.float64, device=outputs.device).exp()
        samples = target.scaled(outputs.double(), scale, weights)
        return float(target.nll(samples, y, weights).mean())

    best = math.log(target.best_temperature([(outputs, y, 1.0)], weights))
    most, limit = math.log(temperature), loss(best) + target.price
    if loss(most) <= limit:
        return temperature
    return math.exp(brentq(lambda log: loss(log) - limit, best, most, xtol=1e-6))


@torch.no_grad()
def fit_with_novelty(model: Predictor, sets: Sequence[LabelledOutputs]) -> None:
    """What novelty tells of validation rows, which come first, and of their copies.

    The temperature grows with it as far as validation rows ask for that, and is held to
    `Target.price` once more: part of what it was for is novelty now. Then trust is fitted to the
    calibrated answers, half of the weight on copies.
    """
    target, clean, found = cast(Target, model.target), sets[0], list[Evidence]()
    if not model.novelty.fitted or clean.features is None:
        return
    outputs = model.calibrated(clean.outputs, clean.weights)
    ranks = model.novelty(clean.features, clean.structure)
    model.novelty_slope.fill_(target.novelty_slope(outputs, clean.y, ranks, clean.weights))
    if model.novelty_slope > 0:
        grown = model.calibrated(clean.outputs, clean.weights, ranks)
        model.temperature *= affordable(target, clean._replace(outputs=grown), 1.0)
    shares = clean_and_shifted_weights(len(sets) - 1)
    for (outputs, y, weights, h, structure), share in zip(sets, shares, strict=True):
        assert h is not None
        ranks = model.novelty(h, structure) if model.novelty_slope > 0 else None
        calibrated = model.calibrated(outputs, weights, ranks)
        p = target.prediction(calibrated, target.decode(y), weights=weights)
        found.append(Evidence(p, model.novelty.how_far(h, structure), share))
    model.trust.fit(found)


def warn_of_doubts(model: Predictor, sets: Sequence[LabelledOutputs]) -> None:
    """Say where a temperature is from few rows, or anchors had no effect on validation rows."""
    if model.calibration is None:
        return
    outputs, y, weights = sets[0][:3]
    if y.size(0) < _FEW:
        do = f"expect little of it (from {_FEW} rows on it helps)"
        warn_user(f"calibrated on {y.size(0)} validation rows only: {do}")
    assert model.target is not None
    if model.num_anchors and model.target.agree(model.calibrated(outputs, weights), y, weights):
        warn_user(
            "the hypotheses hardly disagree (epistemic is about 0): the model answers much as the "
            "network does, calibrated and with novelty; use p.novelty as the alarm, or "
            "gduq.choose with a larger budget"
        )
