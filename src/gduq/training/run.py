"""One training run of one network: the loop, on Lightning Fabric."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq import metrics
from gduq.anchored import Anchored
from gduq.baselines import sample
from gduq.calibration.scaling import softening
from gduq.errors import InputError
from gduq.graph import label_rows, targets
from gduq.prediction import predict
from gduq.training.batches import (
    Batches,
    as_batches,
    cached,
    check_range,
    class_counts,
    described,
    even_size,
    some,
)
from gduq.training.checkpoint import (
    Checkpoint,
    State,
    optimizer_tensors,
    restore_optimizer,
    weights,
)
from gduq.training.history import Epoch, History, best_epoch
from gduq.training.loss import class_weights, row_losses
from gduq.training.processes import Processes
from gduq.training.progress import epoch_bar
from gduq.training.randomness import derived, isolated, seed_all
from gduq.training.settings import Settings
from gduq.training.step import Step, checked_fabric, evaluating_after

__all__ = ["Run", "train"]

_PROBE = 256  # rows
_DRY = 0  # the "epoch" whose random numbers serve what is drawn outside of epochs


def train(
    model: nn.Module,
    train_data: Any,
    val_data: Any,
    settings: Settings,
    fabric: Fabric | None = None,
    resume: str | Path | None = None,
    progress: bool = True,
    title: str = "",
) -> History:
    """Train one network, plain or anchored; `gduq.fit` describes the arguments."""
    fabric = checked_fabric(fabric)
    with isolated(fabric.device), evaluating_after(model):
        run = Run(model, as_batches(train_data, "train"), settings, fabric)
        if val_data is not None:
            run.judge_by(as_batches(val_data, "val"))
        run.continue_from(resume)
        run.complete(progress, title)
        return run.history


class Run:
    """The state of a run and the steps that move it on.

    Everything that can be wrong with the data or the model shows in a dry pass, before the first
    epoch and before the first file.
    """

    def __init__(
        self, model: nn.Module, train: Batches, settings: Settings, fabric: Fabric
    ) -> None:
        self.model, self.train, self.settings, self.fabric = model, train, settings, fabric
        self.processes = Processes(fabric)
        self.val: Batches | None = None
        self.records: tuple[Epoch, ...] = ()
        self.best: dict[str, Tensor] = {}
        self.checkpoint: Checkpoint | None = None
        self.finished = False
        self.around = 0.0  # seconds outside of epochs
        self.eval_size = min(256, 8 * settings.batch_size)  # no gradients: more fit in memory
        self.draws, self.mask = settings.draws_and_mask(model)
        if not isinstance(model, Anchored) and (self.draws > 1 or self.mask > 0):
            raise InputError(
                "draws=1 and mask=0 for a network without anchors",
                f"draws={self.draws}, mask={self.mask}",
            )
        model.to(fabric.device)
        seed_all(derived(settings.seed, _DRY))
        self.counts = self.processes.counts(train)
        self.probe = self._some_batches()
        self.classes = self._dry_pass()
        chosen = class_weights(settings.class_weights, self.counts, self.classes)
        self.weights = None if chosen is None else chosen.to(fabric.device)
        self._set_up()

    # -- before the first epoch ----------------------------------------------------------------

    def judge_by(self, val: Batches) -> None:
        """Validate on these rows after every epoch."""
        check_range(class_counts(val, "val"), self.classes, "val")
        self.val = val

    def continue_from(self, folder: str | Path | None) -> None:
        """Start, or go on from the checkpoint in a folder."""
        saved = None
        if self.val is None and self.settings.patience is not None:
            raise InputError("validation data with patience", "none", "Pass val.")
        if folder is not None:
            rows = None if self.val is None else described(self.val, "val")
            more = {"val": rows, "processes": self.fabric.world_size}
            identity = self.settings.identity(self.model, self.counts, **more)
            self.checkpoint = Checkpoint(folder, identity)
            saved = self.checkpoint.load()
            self.fabric.barrier()  # all have looked before the first writes
        if saved is not None:
            self._restore(saved)
        if not self.finished:
            self._start(saved)

    def _restore(self, saved: State) -> None:
        self.records, self.around = saved.records, saved.around
        self.best = dict(saved.best or saved.last)  # the best is left out where it is the last
        if len(self.records) > self.settings.epochs:
            raise InputError(
                f"epochs >= {len(self.records)}, as many as the checkpoint has seen",
                self.settings.epochs,
            )
        self.finished = saved.finished and self._done
        self.model.load_state_dict(saved.last)
        if self.finished:
            self.model.load_state_dict({**saved.last, **saved.best, **saved.final})

    def _set_up(self) -> None:
        """Optimiser and processes; from here on the model has the Fabric's precision."""
        settings = self.settings
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("a network with parameters to train", "none that requires_grad")
        optimizer = torch.optim.Adam(
            self.parameters, settings.lr, weight_decay=settings.weight_decay, fused=True
        )
        self.step, self.optimizer = self.fabric.setup(Step(self.model, settings.call), optimizer)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """What is done within this context belongs to the time around the epochs."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.around += time.perf_counter() - start

    def _start(self, saved: State | None) -> None:
        with self.timed():
            self._prepare(saved)
        if saved is None:
            self._save()

    def _prepare(self, saved: State | None) -> None:
        """Cached prefixes, Gaussian input anchors, the optimiser's past."""
        model, settings = self.model, self.settings
        self.train = cached(model, self.train)
        self.val = None if self.val is None else cached(model, self.val)
        self.probe = self._some_batches()
        self.batch_size = even_size(self.train, settings.batch_size, self.fabric.world_size)
        if saved is not None:
            restore_optimizer(self.optimizer.optimizer, saved.optimizer)
        elif isinstance(model, Anchored) and model.at == "input":
            model.fit_anchors(self.train, self.eval_size)

    def _some_batches(self) -> list[Data]:
        rows = 1
        if isinstance(self.model, Anchored):  # to tell a reach by, more than anchors are needed
            rows = max(self.model.num_anchors, _PROBE if self.model.temper else 1)
        generator = torch.Generator().manual_seed(derived(self.settings.seed, _DRY))
        found = some(self.train, rows, self.settings.batch_size, generator)
        return [self.fabric.to_device(graph) for graph in found]

    def _dry_pass(self) -> int:
        """The number of classes, from a pass without consequences."""
        self._fit_bank_to_probe()
        with torch.no_grad():
            logits = sample(self.model, self.probe[0], self.settings.call)
        targets(self.probe[0], logits.size(1))
        classes = max(2, logits.size(2))
        check_range(self.counts, classes, "train")
        return classes

    def _fit_bank_to_probe(self) -> None:
        """A bank for validation, at the price of one batch; the source's own statistics stay."""
        if isinstance(self.model, Anchored):
            before = {k: v.clone() for k, v in self.model.source.state_dict().items()}
            self.model.fit_bank(iter(self.probe))
            self.model.source.load_state_dict(before)

    # -- epochs --------------------------------------------------------------------------------

    @property
    def _done(self) -> bool:
        patience, best = self.settings.patience, best_epoch(self.records)
        stale = patience is not None and best is not None and len(self.records) - best >= patience
        return stale or len(self.records) >= self.settings.epochs

    @property
    def kept_epoch(self) -> int:
        """The epoch whose weights the model ends with."""
        best = best_epoch(self.records) if self.settings.select == "best" else None
        return len(self.records) if best is None else best

    @property
    def history(self) -> History:
        """What happened so far."""
        return History(self.records, self.kept_epoch, around=self.around)

    def epochs(self, until: int, progress: bool, title: str = "") -> None:
        """Train up to an epoch or until done, with checkpoints at the end of epochs."""
        if self._done or len(self.records) >= until:
            return
        with epoch_bar(until, len(self.records), progress, title) as show:
            while not self._done and len(self.records) < until:
                record = self._epoch(len(self.records) + 1)
                self.records += (record,)
                if self.kept_epoch == record.epoch:
                    self.best = weights(self.model) if self.settings.select == "best" else {}
                self._save()
                numbers = {k: v for k, v in asdict(record).items() if v is not None}
                self.fabric.log_dict(numbers, step=record.epoch)
                show(record)

    def complete(self, progress: bool, title: str = "") -> None:
        """Train all epochs that are left, and finish."""
        if not self.finished:
            self.epochs(self.settings.epochs, progress, title)
            self.finish()

    def keep(self) -> None:
        """Write a checkpoint now, however fresh the last one is."""
        self._save(always=True)

    @contextmanager
    def as_it_would_end(self) -> Iterator[None]:
        """Within this context the model has the weights that are to be kept so far."""
        last = weights(self.model)
        self.model.load_state_dict(self._kept(last))
        try:
            yield
        finally:
            self.model.load_state_dict(last)

    def _kept(self, last: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.best if self.kept_epoch != len(self.records) else last

    def _epoch(self, epoch: int) -> Epoch:
        start, lr = time.perf_counter(), self.settings.lr_at(epoch)
        loss = self._train_epoch(epoch, lr)
        self.processes.share(self.model.buffers())
        try:
            judged = self._judge()
        except InputError as error:
            if error.expected != "finite logits":
                raise
            raise self._diverged(epoch, loss) from error
        record = Epoch(epoch, loss, lr, time.perf_counter() - start, **judged)
        return self.fabric.broadcast(record)

    def _train_epoch(self, epoch: int, lr: float) -> float:
        """The mean loss of all steps of an epoch."""
        fabric, seed = self.fabric, self.settings.seed
        seed_all(derived(seed, epoch, fabric.global_rank))
        generator = torch.Generator().manual_seed(derived(seed, epoch))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.step.train()
        total = torch.zeros(2, dtype=torch.float64, device=fabric.device)
        shard = (fabric.global_rank, fabric.world_size)
        for graph in self.train.batches(self.batch_size, True, generator, shard):
            graph = fabric.to_device(graph)
            if self.processes.all_have_labels(graph):
                total += self._train_step(graph)
        total = self.processes.reduced(total, "sum")
        loss = float(total[0] / total[1])
        if not math.isfinite(loss) or not all(bool(p.isfinite().all()) for p in self.parameters):
            raise self._diverged(epoch, loss)
        return loss

    def _train_step(self, graph: Data) -> Tensor:
        """One step of the optimiser; the sums of weighted losses and of weights."""
        logits, masked = self._pass(graph)
        rows = label_rows(graph, logits.size(1))
        logits, masked = logits[:, rows], masked[:, rows]
        y = targets(graph, logits.size(1))
        assert y is not None
        losses, counts = row_losses(logits, masked, y.reshape(-1).long(), self.weights)
        # Processes average their gradients: each divides by the weight of all, times their number.
        share = self.processes.reduced(counts.sum(), "sum") / self.fabric.world_size
        self.optimizer.zero_grad()
        self.fabric.backward(losses.sum() / share)
        self.optimizer.step()
        return torch.stack([losses.detach().sum(), counts.sum()]).double()

    def _pass(self, graph: Data) -> tuple[Tensor, Tensor]:
        try:
            logits, masked = self.step(graph, self.draws, self.mask)
        except RuntimeError as error:
            if "find_unused_parameters" not in str(error):
                raise
            raise InputError(
                "a network that uses all its parameters in every step",
                "some without a gradient",
                "Use Fabric(..., strategy='ddp_find_unused_parameters_true').",
            ) from error
        return logits, masked

    def _diverged(self, epoch: int, loss: float) -> InputError:
        return InputError(
            "a training loss and weights that stay finite",
            f"a loss of {loss} in epoch {epoch}",
            f"Use a learning rate below {self.settings.lr_at(epoch):g}, or rescale the features.",
        )

    def _judge(self) -> dict[str, float]:
        if self.val is None:
            return {}
        self._fit_bank_to_probe()
        p = predict(self.model, self.val, self.eval_size, self.settings.call)
        return {
            "val_loss": metrics.nll(p),
            "val_accuracy": metrics.accuracy(p),
            "val_ece": metrics.ece(p, strict=False),
        }

    # -- files ---------------------------------------------------------------------------------

    def _save(self, always: bool = False, **more: Any) -> None:
        """Write a checkpoint if one is due; the final state is always written."""
        if self.checkpoint is None or not self.fabric.is_global_zero:
            return
        if not (always or more or self.checkpoint.is_due):
            return
        best = self._kept({})
        last = more.pop("last", None) or weights(self.model)
        optimizer = optimizer_tensors(self.optimizer.optimizer)
        state = State(self.records, last, optimizer, best, around=self.around, **more)
        self.checkpoint.save(state)

    def finish(self) -> None:
        """Keep the chosen weights, fit the bank to all training rows and the temperature to the
        validation rows, and say so on disk."""
        last = weights(self.model)
        self.model.load_state_dict(self._kept(last))
        kept = weights(self.model)
        self.optimizer.zero_grad()
        if isinstance(self.model, Anchored):
            seed_all(derived(self.settings.seed, _DRY))
            with self.timed():
                self.model.fit_bank(self.train, batch_size=self.eval_size)
                if self.model.temper is True and self.val is not None:
                    p = predict(self.model, self.val, self.eval_size, self.settings.call)
                    self.model.temperature.copy_(softening(p))
            self.processes.share(self.model.buffers())
        final = {k: v for k, v in weights(self.model).items() if not torch.equal(v, kept[k])}
        self._save(last=last, final=final, finished=True)
        self.finished = True
