"""`fit`: train any of the library's models with one call."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from gduq._torch import derived, isolated, seed_all
from gduq.errors import InputError
from gduq.graphs import Graph, on_device
from gduq.models.network import as_predictor
from gduq.models.predictor import Calibrate, Predictor
from gduq.ood.nearest import Novelty
from gduq.prediction import ClassWeights, Target, TargetSample, Values, resolve_target
from gduq.prediction.predicting import device_of_model
from gduq.tracing.call import Call
from gduq.tracing.trunk import Trunk
from gduq.training.batches import (
    Batches,
    InferTarget,
    as_batches,
    described,
    even_size,
    first_graph,
    labels,
    packed,
    some,
    truths,
    warn_of_overlap,
)
from gduq.training.checkpoint import Checkpoint, signature
from gduq.training.finishing import (
    LabelledOutputs,
    copies_of,
    finish_model,
    labelled_outputs,
    warn_of_doubts,
)
from gduq.training.heads import SeenRows, TrunkRows, fit_on_rows, run_trunk
from gduq.training.history import History, epoch_progress
from gduq.training.loop import FitSettings, Learner, train

__all__ = ["Fit", "GraphLearner", "fit"]

_ENOUGH = 256  # rows that show the units of a network
_OUTSIDE = 0  # the "epoch" whose random numbers serve what is drawn outside of epochs
_MOST_EPOCHS, _PATIENCE, _FEW_EPOCHS = 100, 10, 20  # of a frozen network, where none were given


def fit(
    model: nn.Module,
    train: Any,
    val: Any = None,
    *,
    epochs: int | None = FitSettings.epochs,
    lr: float | None = FitSettings.lr,
    batch_size: int | None = FitSettings.batch_size,
    weight_decay: float = FitSettings.weight_decay,
    class_weights: ClassWeights = None,
    class_names: Sequence[str] | None = None,
    target: Target | str | None = None,
    milestones: Sequence[int] = FitSettings.milestones,
    gamma: float = FitSettings.gamma,
    patience: int | None = FitSettings.patience,
    calibrate: Calibrate | str = "default",
    seed: int = FitSettings.seed,
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

    A single graph (node tasks) makes one step per epoch. A second call goes on from where the
    first one ended. The same seed gives the same bits on one thread, and global random states are
    left as they were.

    Args:
        model: What `gduq.anchor` gave, a plain network, or a baseline: `Ensemble` (members with
            seeds ``seed``, ``seed + 1``, ...), `MCDropout`, `HeadEnsemble`, `LastLayerLaplace`,
            `Neighbours`. It is trained on the device it lies on.
        train: A View, a ``Data``, a list of them, a PyG dataset, or a loader (``NeighborLoader``
            too), which keeps its own batch size. Only labelled rows count.
        val: Data to judge every epoch by, to choose with and to calibrate on.
        epochs: Passes over ``train``; 0 only calibrates a trained network, ensemble or dropout
            model. ``None``, for a frozen network only: until validation rows say stop.
        lr: Learning rate of Adam; default 0.001, or by the number of rows for a head without
            ``epochs``. Where a trained network trains on with anchors, the first ten steps have
            less.
        batch_size: Graphs per step; rows where a head is trained. Default 32.
        weight_decay: L2 penalty, as in Adam.
        class_weights: One weight per class, or ``"balanced"``; for rows that are not masked.
        class_names: A name per class, label or value; predictions and bundles carry them.
        target: What ``y`` is: ``"classes"``, ``"labels"`` (several yes/no columns, NaN where
            unknown), ``"values"`` (regression), or a `gduq.prediction.Target`. Default: inferred
            from ``y``, see `gduq.prediction.infer_target`.
        milestones: Epochs after which the learning rate is multiplied by ``gamma``.
        gamma: See ``milestones``.
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
    known = as_predictor(model, call, trains=True)
    settings = FitSettings(
        epochs, lr, batch_size, weight_decay, tuple(milestones), gamma, patience, seed
    )
    how = known.calibrate if calibrate == "default" else calibrate
    if how not in ("shifted", "clean", None):
        raise InputError("calibrate 'shifted', 'clean' or None", repr(calibrate))
    words = {"class_weights": class_weights, "class_names": class_names}
    infer = partial(resolve_target, given=target, **words)  # type: ignore[arg-type]
    work = Fit.of(train, val, settings, infer, progress)
    folder = None if resume is None else Path(resume)
    try:
        history, sets = work.run(known, cast(Calibrate, how), folder)
    finally:
        known.note()
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
    copies: Iterable[Batches] | None = None  # shifted copies of val, where they are there already
    seen: SeenRows | None = None  # what frozen trunks gave, where several models stand on one

    @classmethod
    def of(
        cls, train: Any, val: Any, settings: FitSettings, infer: InferTarget, progress: bool
    ) -> Fit:
        """From whatever holds graphs."""
        given = as_batches(train, "train")
        held = None if val is None else as_batches(val, "val")
        if held is not None:
            warn_of_overlap(given, held)
        return cls(packed(given), None if held is None else packed(held), settings, infer, progress)

    def run(
        self,
        model: Predictor,
        calibrate: Calibrate,
        resume: Path | None = None,
        title: str = "training",
    ) -> tuple[History, list[LabelledOutputs]]:
        """Any model: what it is made of is trained first; see `finish_model` for what comes back.

        However it ends, the model is in evaluation mode. A failure leaves what an earlier fit has
        left (bank, temperature, novelty, target) as it was; but once weights may have changed, the
        model no longer counts as calibrated, and knows no novelty.
        """
        if self.val is None and self.settings.patience is not None:
            raise InputError("validation data with patience", "none", "Pass val.")
        before, start = _Before(model), time.perf_counter()
        try:
            if model.parts:
                history = self._parts(model, before, resume)
                sets = self._finish(model, calibrate)
            else:
                device = device_of_model(model)
                model.locate(on_device(first_graph(self.train), device))
                with isolated(device):
                    if model.trunk is not None and model.trunk.has_head and not _learns(model):
                        history, sets = self._head(model, model.trunk, before, calibrate, title)
                    else:
                        history = self._network(model, before, calibrate, resume, title)
                        sets = self._finish(model, calibrate)
        except BaseException:
            before.restore()
            raise
        finally:
            model.eval()
        around = time.perf_counter() - start - history.seconds
        return replace(history, overhead_seconds=max(0.0, around)), sets

    def _finish(self, model: Predictor, calibrate: Calibrate) -> list[LabelledOutputs]:
        size, seed = self.settings.graphs_per_pass, self.settings.seed
        trunk = None if self.seen is None or self.settings.epochs != 0 else model.trunk
        if trunk is not None and trunk.has_head:
            target = cast(Target, model.target)
            _, rows = self._rows(trunk, calibrate, lambda _: target)
            return finish_model(model, rows.train, rows.val, calibrate, size, seed, rows.copies)
        return finish_model(model, self.train, self.val, calibrate, size, seed, self.copies)

    def _parts(self, model: Predictor, before: _Before, resume: Path | None) -> History:
        """The parts one by one; then all of it is calibrated."""
        before.stays, histories = self.settings.epochs == 0, []
        for i, (name, part) in enumerate(model.parts.items()):
            own = replace(self, settings=replace(self.settings, seed=self.settings.seed + i))
            folder = None if resume is None else resume / name
            histories.append(own.run(part, None, folder, f"{name} of {len(model.parts)}")[0])
        target = next(iter(model.parts.values())).target
        model.target = None if target is None else target.combined()
        return History(members=tuple(histories))

    def _head(
        self, model: Predictor, trunk: Trunk, before: _Before, calibrate: Calibrate, title: str
    ) -> tuple[History, list[LabelledOutputs]]:
        """A model that reads the rows of a frozen trunk, which runs once."""
        settings = self.settings
        with epoch_progress(settings.epochs, self.progress, title) as show:
            goal, rows = self._rows(trunk, calibrate, self.infer)
            tempered = calibrate is not None
            history = fit_on_rows(model, goal, rows, settings, show, tempered)
        before.stays, seed = False, settings.seed
        return history, finish_model(model, rows.train, rows.val, calibrate, 256, seed, rows.copies)

    def _rows(
        self, trunk: Trunk, calibrate: Calibrate, infer: InferTarget
    ) -> tuple[Target, TrunkRows]:
        copies = self.copies
        if calibrate != "shifted":
            copies = ()
        elif copies is None:
            copies = copies_of(self.val, self.settings.seed)
        return run_trunk(trunk, self.train, self.val, copies, infer, self.seen)

    def _network(
        self,
        model: Predictor,
        before: _Before,
        calibrate: Calibrate,
        resume: Path | None,
        title: str,
    ) -> History:
        """A model that learns from graphs."""
        settings, checkpoint = self.settings, None
        if settings.epochs is None and model.frozen:  # until validation rows end it
            epochs, patience = _FEW_EPOCHS, settings.patience
            if self.val is not None:
                epochs, patience = _MOST_EPOCHS, patience or _PATIENCE
            settings = replace(settings, epochs=epochs, patience=patience)
        learner = GraphLearner(model, self.train, self.val, settings, self.infer)
        if resume is not None:
            known = asdict(settings) | {"lr": settings.lr_at(0), "epochs": None}  # they may grow
            known |= learner.identity | {"calibrate": calibrate}
            checkpoint = Checkpoint(resume, known)
        before.stays = settings.epochs == 0
        with epoch_progress(settings.epochs, self.progress, title) as show:
            (history,) = train(learner, settings, show, checkpoint)
        learner.optimizer.zero_grad()
        seed_all(derived(settings.seed, _OUTSIDE))
        if model.num_anchors:
            model.fit_anchors(self.train, batch_size=settings.graphs_per_pass)
        return history


def _learns(model: Predictor) -> bool:
    """Whether the trunk itself is trained."""
    inside = set() if model.trunk is None else {id(p) for p in model.trunk.parameters()}
    return any(p.requires_grad and id(p) in inside for p in model.parameters())


class _Before:
    """What an earlier fit left in a model, but for its weights."""

    def __init__(self, model: Predictor) -> None:
        self.model, self.target, self.stays = model, model.target, True
        self.buffers = [(module, dict(module._buffers)) for module in model.modules()]
        known = (m for m in model.modules() if isinstance(m, Predictor))
        in_place = [b for m in known for b in (m.temperature, m.novelty_slope, m._calibration)]
        self.in_place = [(buffer, buffer.clone()) for buffer in in_place]

    def restore(self) -> None:
        """Put it back, but for what is about other weights, where these did not stay."""
        for module, buffers in self.buffers:
            module._buffers.update(buffers)
        for buffer, value in self.in_place:
            buffer.copy_(value)
        if self.stays:
            self.model.target = self.target
            return
        self.model.set_temperature(1.0, None)
        self.model.novelty = Novelty(self.model.novelty.k, self.model.novelty.size)


# -- a model that learns from graphs -------------------------------------------------------------


class GraphLearner(Learner):
    """A model that learns from graphs, for the loop.

    Everything that can be wrong with the data or the model shows in a pass without consequences,
    before the first epoch and before the first file.
    """

    def __init__(
        self,
        model: Predictor,
        train: Batches,
        val: Batches | None,
        settings: FitSettings,
        infer: InferTarget,
    ) -> None:
        if settings.epochs is None:
            raise InputError(
                "epochs=, how long to train",
                "none",
                "Only a head on a frozen network (gduq.anchor(net), without at=) needs none. Pass "
                "epochs=100, for example, or epochs=0 to calibrate a trained model as it is.",
            )
        self.model, self.train, self.val, self.settings = model, train, val, settings
        self.device = device_of_model(model)
        self.keeps_start = self.warms_up = model.starts_trained
        seed_all(derived(settings.seed, _OUTSIDE))
        y = truths(train, "train")
        model.set_temperature(1.0, None)  # epochs are compared without one
        self.probe = self._some_batches(max(1, model.num_anchors))
        model.init_anchors(self.probe)
        self.target = model.target = self._target(y, infer)
        model.check_target()
        with torch.no_grad():
            model.sample(self.probe[0])  # logits are looked at, now that they are some
        rows = None
        if val is not None:
            y_val = truths(val, "val")
            self.target.check_val(y_val, y)
            rows = described(val, y_val)
        self.identity: dict[str, object] = {"train": described(train, y), "val": rows}
        self.identity |= {"target": self.target.spec(), "model": signature(model)}
        learned = [p for p in model.parameters() if p.requires_grad]
        if not learned:
            raise InputError("a network with parameters to train", "none that requires_grad")
        lr, decay = settings.lr_at(0), settings.weight_decay
        self.optimizer = torch.optim.Adam(learned, lr, weight_decay=decay, fused=True)
        model.prepare(train, settings.graphs_per_pass)

    def _some_batches(self, rows: int) -> list[Graph]:
        generator = torch.Generator().manual_seed(derived(self.settings.seed, _OUTSIDE))
        size = max(self.settings.graphs_per_step, rows)
        return [on_device(g, self.device) for g in some(self.train, rows, size, generator)]

    @torch.no_grad()
    def _target(self, y: Tensor, infer: InferTarget) -> Target:
        """What the outputs of the model mean: many rows show the units of a network."""
        model, batches = self.model, self._some_batches(_ENOUGH)
        model.target = Values()  # nothing is known: these are the bare outputs
        outputs = [model.sample(graph).mean(dim=0) for graph in batches]
        pairs = zip(batches, outputs, strict=True)
        truth = torch.cat([labels(graph, found.size(0)) for graph, found in pairs])
        stays = self.settings.epochs == 0 or model.frozen  # it is not trained any more
        return infer(TargetSample(y, torch.cat(outputs), truth, stays, model.bounded))

    def batches(self, epoch: int) -> Iterator[Graph]:
        generator = torch.Generator().manual_seed(derived(self.settings.seed, epoch))
        size = even_size(self.train, self.settings.graphs_per_step)
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
        found = labelled_outputs(self.model, self.val, self.settings.graphs_per_pass)
        return [self.target.figures(found.outputs, found.y, found.weights)]

    def state(self) -> dict[str, Tensor]:
        found = self.model.state_dict()
        for name, value in found.items():
            if not isinstance(value, Tensor):
                got = f"{name}: {type(value).__name__}"
                raise InputError("a model whose state_dict holds tensors only", got)
        return {name: value.unsqueeze(0) for name, value in found.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.model.load_state_dict({name: value[0] for name, value in state.items()})
