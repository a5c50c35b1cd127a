"""`fit`: train any of the library's models with one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import PicklingError
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from gduq.baselines.network import as_predictor
from gduq.data.parallel import progress_bar
from gduq.errors import InputError
from gduq.nn.call import Call
from gduq.nn.trunk import Trunk
from gduq.prediction.predictor import Calibrate, Predictor
from gduq.randomness import isolated
from gduq.targets import FirstLook, Target, resolve_target
from gduq.targets.classes import ClassWeights
from gduq.training.batches import as_batches, first_graph, packed, warn_of_overlap
from gduq.training.checkpoint import weights
from gduq.training.epochs import Run
from gduq.training.fabric import checked_fabric, evaluating_after
from gduq.training.finishing import copies_of, finish_model
from gduq.training.fit_settings import FitSettings, Select
from gduq.training.history import History, epoch_bar
from gduq.training.trunk_rows import TrunkRows, fit_on_rows
from gduq.whole import whole

__all__ = ["Fit", "fit"]


def fit(
    model: nn.Module,
    train: Any,
    val: Any = None,
    *,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    weight_decay: float = 0.0,
    class_weights: ClassWeights = None,
    class_names: Sequence[str] | None = None,
    target: Target | str | None = None,
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
    select: Select = "best",
    patience: int | None = None,
    calibrate: Calibrate | str = "default",
    seed: int = 0,
    call: Call | None = None,
    processes: int = 1,
    progress: bool = True,
    resume: str | Path | None = None,
    fabric: Fabric | None = None,
) -> History:
    r"""Train a model, calibrate it, and note what its training data are like.

    A head on a frozen network (what ``gduq.anchor(net)`` gives) needs no ``epochs``: the network
    runs once over the data, heads with several shares of masked rows are trained side by side and
    stop early, and the most likely one stays. Everything else is trained with Adam for ``epochs``:
    with D draws of anchors and m labelled rows in a batch, a step minimises

    .. math::
        \frac{1}{Dm} \sum_{k,i} \begin{cases} -\log p_{ki}(y_i) \\
        -\frac1C \sum_c \log p_{ki}(c) & \text{where row i of draw k is masked} \end{cases}

    At the end one temperature is fitted, free in both directions, on validation rows and on
    shifted copies of them (by which validation rows may lose `Target.price`), and a sample of the
    training rows is kept, against which ``novelty`` is measured. Without ``val`` the model is not
    calibrated, and its predictions say so.

    Only labelled rows count; a single graph (node tasks) makes one step per epoch. A second call
    goes on from where the first one ended; anchor again to start afresh. The same seed gives the
    same bits on one thread, and global random states are left as they were. Interrupted or not, the
    model ends in evaluation mode, on the device it was trained on. Over several processes gradients
    are those of the whole batch; BatchNorm, dropout and random anchors are each process's own.

    Args:
        model: What `gduq.anchor` gave, a plain network, or a baseline: `Ensemble` (members with
            seeds ``seed``, ``seed + 1``, ...), `MCDropout`, `HeadEnsemble`, `LastLayerLaplace`,
            `Neighbours`.
        train: A View, a ``Data``, a list of them, a PyG dataset, or a loader (``NeighborLoader``
            too), which keeps its own batch size.
        val: Data to judge every epoch by, to choose with and to calibrate on.
        epochs: Passes over ``train``; 0 only calibrates a trained network, ensemble or dropout
            model. ``None``, for a frozen network only: until validation rows say stop.
        lr: Learning rate of Adam; default 0.001, or by the number of rows for a head without
            ``epochs``. Where a trained network trains on with anchors, the first ten steps have
            less.
        batch_size: Graphs per step, over all processes; rows where a head is trained. Default 32.
        weight_decay: L2 penalty, as in Adam.
        class_weights: One weight per class, or ``"balanced"``; for rows that are not masked.
        class_names: A name per class, label or value; predictions and bundles carry them.
        target: What ``y`` is: ``"classes"``, ``"labels"`` (several yes/no columns, NaN where
            unknown), ``"values"`` (regression), or an object of `gduq.targets`. Default: told from
            ``y``, see `gduq.targets.infer_target`.
        milestones: Epochs after which the learning rate is multiplied by ``gamma``.
        gamma: See ``milestones``.
        select: ``"best"`` keeps the weights of the lowest validation loss, ``"last"`` the last. A
            trained network that trains on with anchors has its start among the best: it ends no
            worse.
        patience: Stop after so many epochs without a lower validation loss.
        calibrate: ``"shifted"``, ``"clean"`` (validation rows only) or ``None``; default: as the
            model's recipe says, which is ``"shifted"``. Where no copies can be made (a
            heterogeneous graph, a loader other than PyG's ``DataLoader`` of graphs in memory)
            or none of them changes an output, ``"shifted"`` means ``"clean"``.
        seed: Decides the order of graphs, anchors, dropout.
        call: As in `gduq.anchor`, for a plain network.
        processes: Train the members of an `Ensemble` in so many processes, one thread each.
        progress: Show a bar, on a terminal.
        resume: Folder for a checkpoint, rewritten at an epoch's end as often as that takes no more
            than a twentieth of the time. If there is one, training goes on from it and ends as if
            it had never stopped. A head on a frozen network is trained anew; it takes seconds.
        fabric: Where to train; default: the first GPU, else the CPU. Its loggers get every
            epoch's figures. For several processes ``Fabric(devices=2, strategy="ddp")``, launched.

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
        >>> history = fit(net, graphs[:40], graphs[40:], epochs=3)
        >>> model = gduq.anchor(net, num_anchors=5)
        >>> history = fit(model, graphs[:40], graphs[40:])
        >>> p = gduq.predict(model, graphs[:3])
        >>> p.samples.shape, p.calibrated
        (torch.Size([5, 3, 2]), 'shifted')
    """
    known = as_predictor(model, call, trains=True)
    settings = FitSettings(
        epochs, lr, batch_size, weight_decay, tuple(milestones), gamma, select, patience, seed
    )
    how = known.calibrate if calibrate == "default" else calibrate
    if how not in ("shifted", "clean", None):
        raise InputError("calibrate 'shifted', 'clean' or None", repr(calibrate))
    if whole("processes", processes, 1) > 1 and (len(known.parts) < 2 or fabric is not None):
        raise InputError(
            "processes > 1 with an Ensemble and without a fabric",
            f"processes={processes} for {type(known).__name__}",
            "To train one model in several processes pass Fabric(devices=2, strategy='ddp').",
        )
    if val is not None:
        warn_of_overlap(train, val)
    words = class_weights, class_names, target
    call_it = Fit(train, val, settings, *words, progress, fabric, processes)
    try:
        return call_it.run(known, how, resume)  # type: ignore[arg-type]
    finally:
        known.note()


@dataclass(frozen=True)
class Fit:
    """One call of `fit`, for a model or a part of it; data are packed once for all of it."""

    train: Any  # whatever `as_batches` takes; then what it makes of it
    val: Any
    settings: FitSettings
    class_weights: ClassWeights = None
    class_names: Sequence[str] | None = None
    target: Target | str | None = None
    progress: bool = True
    fabric: Fabric | None = None
    processes: int = 1

    def read_target(self, look: FirstLook) -> Target:
        """What the outputs of a network mean: as given, or told from ``y``."""
        return resolve_target(look, self.target, self.class_weights, self.class_names)

    def __post_init__(self) -> None:
        for name in ("train", "val") if self.val is not None else ("train",):
            object.__setattr__(self, name, packed(as_batches(getattr(self, name), name)))

    def run(
        self,
        model: Predictor,
        calibrate: Calibrate,
        resume: str | Path | None = None,
        title: str = "",
    ) -> History:
        """Any model: what it is made of is trained first."""
        if model.parts:
            return self._parts(model, calibrate, None if resume is None else Path(resume))
        model.locate(first_graph(self.train))
        fabric, trunk = checked_fabric(self.fabric), model.trunk
        with isolated(fabric.device), evaluating_after(model, self.settings.epochs != 0):
            if trunk is not None and trunk.has_head and not _learns(model, trunk):
                return self._on_rows(model, trunk, calibrate, fabric, title)
            settings = self.settings
            if settings.epochs is None and model.frozen:
                settings = settings.until_stopped(self.val is not None)
            data = self.train, self.val
            run = Run(model, *data, settings, self.read_target, calibrate, fabric)
            run.continue_from(resume)
            if not run.finished:
                run.epochs(self.progress, title)
                run.finish()
            return run.history

    def _on_rows(
        self, model: Predictor, trunk: Trunk, calibrate: Calibrate, fabric: Fabric, title: str
    ) -> History:
        settings = self.settings
        if self.val is None and settings.patience is not None:
            raise InputError("validation data with patience", "none", "Pass val.")
        fabric.strategy.precision.convert_module(model.to(fabric.device))
        copies = copies_of(self.val, settings.seed) if calibrate == "shifted" else ()
        rows = TrunkRows.collect(trunk, self.train, self.val, self.read_target, copies)
        with epoch_bar(settings.epochs, 0, self.progress, title or "heads") as show:
            history = fit_on_rows(model, rows, settings, calibrate, show)
        for record in history.records:
            fabric.log_dict(record.figures, step=record.epoch)
        return replace(history, overhead_seconds=history.overhead_seconds + rows.seconds)

    def _parts(self, model: Predictor, calibrate: Calibrate, resume: Path | None) -> History:
        """The parts one by one, or in processes of their own; then the whole is calibrated."""
        jobs: list[Job] = []
        for i, (name, part) in enumerate(model.parts.items()):
            own = replace(self, settings=replace(self.settings, seed=self.settings.seed + i))
            folder = None if resume is None else resume / name
            jobs.append((own, part, folder, f"{name} of {len(model.parts)}"))
        with evaluating_after(model, self.settings.epochs != 0):
            if self.processes > 1:
                histories = _in_processes(jobs, self.processes, self.progress)
            else:
                histories = [own.run(part, None, place, title) for own, part, place, title in jobs]
            start = time.perf_counter()
            target = next(iter(model.parts.values())).target
            model.target = None if target is None else target.combined()
            size = min(256, 8 * self.settings.batch_size)
            finish_model(model, self.train, self.val, calibrate, size, self.settings.seed)
        return History(members=tuple(histories), overhead_seconds=time.perf_counter() - start)


Job = tuple[Fit, Predictor, Path | None, str]  # a part, its folder for a checkpoint and its title


def _in_processes(jobs: Sequence[Job], processes: int, progress: bool) -> list[History]:
    """Train parts in processes of their own; the weights come back."""
    import joblib  # type: ignore[import-untyped]

    pool, histories = joblib.Parallel(n_jobs=processes, return_as="generator"), []
    with progress_bar("ensemble", len(jobs), None if progress else False) as advance:
        try:
            found = pool(joblib.delayed(_remote)(*job) for job in jobs)
            for (own, part, *_), (history, target, state) in zip(jobs, found, strict=True):
                part.locate(first_graph(own.train))
                part.load_state_dict(state)
                part.target = target
                part.eval()
                histories.append(history)
                advance()
        except PicklingError as error:
            raise InputError(
                "a model and data that can be sent to another process", error, "Use processes=1."
            ) from error
    return histories


def _remote(
    own: Fit, part: Predictor, folder: Path | None, title: str
) -> tuple[History, Target | None, dict[str, Tensor]]:
    torch.set_num_threads(1)
    history = replace(own, progress=False, processes=1).run(part, None, folder, title)
    return history, part.target, weights(part)


def _learns(model: Predictor, trunk: nn.Module) -> bool:
    """Whether the trunk itself is trained."""
    inside = {id(p) for p in trunk.parameters()}
    return any(p.requires_grad and id(p) in inside for p in model.parameters())
