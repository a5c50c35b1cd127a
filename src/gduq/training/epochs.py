"""One training run of one network: the loop, on Lightning Fabric."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction.predictor import Calibrate, Predictor
from gduq.randomness import derived, seed_all
from gduq.targets import FirstLook, Target, Values, target_from
from gduq.training.batches import (
    Batches,
    ReadTarget,
    described,
    even_size,
    labels,
    some,
    truths,
)
from gduq.training.checkpoint import (
    Checkpoint,
    RunState,
    optimizer_tensors,
    restore_optimizer,
    weights,
)
from gduq.training.fabric import FabricProcesses, LossStep
from gduq.training.finishing import finish_model, judged, warn_of_one_voice
from gduq.training.fit_settings import FitSettings
from gduq.training.history import Epoch, History, best_epoch, epoch_bar

__all__ = ["Run", "told_target"]

_ENOUGH = 256  # rows that tell the units of a network
_WARM = 10  # steps until a trained network has its whole learning rate: Adam's first ones are large
_DRY = 0  # the "epoch" whose random numbers serve what is drawn outside of epochs


@torch.no_grad()
def told_target(
    model: Predictor, batches: Iterable[Any], y: Tensor, stays: bool, read_target: ReadTarget
) -> Target:
    """What some batches, on the device of a model that can answer, tell of its outputs.

    ``y`` is the truth of all training rows; a network that ``stays`` is not trained any more.
    """
    model.target = Values()  # nothing is known: these are the bare outputs
    outputs: list[Tensor] = []
    truth: list[Tensor] = []
    for graph in batches:
        outputs.append(model.sample(graph).mean(dim=0))
        truth.append(labels(graph, outputs[-1].size(0)))
    look = FirstLook(y, torch.cat(outputs), torch.cat(truth), stays, model.bounded)
    return read_target(look)


class Run:
    """The state of a run and the steps that move it on.

    Everything that can be wrong with the data or the model shows in a dry pass, before the first
    epoch and before the first file.
    """

    def __init__(
        self,
        model: Predictor,
        train: Batches,
        val: Batches | None,
        settings: FitSettings,
        read_target: ReadTarget,
        calibrate: Calibrate,
        fabric: Fabric,
    ) -> None:
        if settings.epochs is None:
            raise InputError(
                "epochs=, how long to train",
                "none",
                "Only a head on a frozen network (gduq.anchor(net), without at=) needs none. Pass "
                "epochs=100, for example, or epochs=0 to calibrate a trained model as it is.",
            )
        if val is None and settings.patience is not None:
            raise InputError("validation data with patience", "none", "Pass val.")
        self.model, self.train, self.val = model, train, val
        self.settings, self.fabric, self.processes = settings, fabric, FabricProcesses(fabric)
        self.epochs_asked, self.calibrate = settings.epochs, calibrate
        self.records: tuple[Epoch, ...] = ()
        self.start_loss: float | None = None  # validation loss before the first epoch
        self.best: dict[str, Tensor] = {}  # weights of the epoch that is kept; empty: the last
        self.checkpoint: Checkpoint | None = None
        self.finished = False
        self.overhead_seconds = 0.0  # outside of epochs
        self.batch_size = even_size(train, settings.batch_size, fabric.world_size)
        self.eval_size = min(256, 8 * settings.batch_size)  # no gradients: more fit in memory
        model.to(fabric.device)
        seed_all(derived(settings.seed, _DRY))
        self.y = self.processes.truths(train)
        self.probe = self._some_batches(model.rows_to_be_ready)
        self._dry_pass(read_target)
        self.y_val = None if val is None else truths(val, "val")
        if self.y_val is not None:
            self._target.check_val(self.y_val, self.y)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("a network with parameters to train", "none that requires_grad")
        decay = settings.weight_decay
        optimizer = torch.optim.Adam(self.parameters, settings.lr, weight_decay=decay, fused=True)
        # from here on the model has the Fabric's precision
        self.step, self.optimizer = fabric.setup(LossStep(model), optimizer)

    # -- before the first epoch ----------------------------------------------------------------

    @property
    def _target(self) -> Target:
        assert self.model.target is not None
        return self.model.target

    def _some_batches(self, rows: int) -> list[Any]:
        generator = torch.Generator().manual_seed(derived(self.settings.seed, _DRY))
        found = some(self.train, rows, self.settings.batch_size, generator)
        return [self.fabric.to_device(graph) for graph in found]

    def _dry_pass(self, read_target: ReadTarget) -> None:
        """What the outputs mean, from a pass without consequences."""
        model = self.model
        model.locate(self.probe[0])
        model.to(self.fabric.device)
        model.set_temperature(1.0, None)  # epochs are judged by what the weights say
        model.ready(self.probe)
        known = self.y, self.epochs_asked == 0 or model.frozen, read_target
        found = told_target(model, self.probe[:1], *known)
        if found.kind == "values":  # a few rows do not tell the units of a network
            found = told_target(model, self._some_batches(_ENOUGH), *known)
        model.target = found
        model.check_target()
        with torch.no_grad():
            model.sample(self.probe[0])  # logits are looked at, now that they are some

    def continue_from(self, folder: str | Path | None) -> None:
        """Start, or go on from the checkpoint in a folder."""
        saved = None
        if folder is not None:
            identity = self.settings.identity(
                self.model,
                described(self.train, self.y),
                val=None if self.y_val is None else described(self.val, self.y_val),
                processes=self.fabric.world_size,
                calibrate=self.calibrate,
                target=self._target.spec(),
            )
            self.checkpoint = Checkpoint(folder, identity)
            saved = self.checkpoint.load()
            self.fabric.barrier()  # all have looked before the first writes
        if saved is not None:
            self._restore(saved)
        else:
            start = time.perf_counter()
            self.model.prepare(self.train, self.eval_size)
            judges = self.val is not None and self.settings.select == "best"
            if judges and self.epochs_asked and self.model.starts_trained:
                self.start_loss = self.fabric.broadcast(self._judge()["val_loss"])
                self.best = weights(self.model)  # training on must not make it worse
            self.overhead_seconds += time.perf_counter() - start
            self._save()

    def _restore(self, saved: RunState) -> None:
        self.records, self.overhead_seconds = saved.records, saved.overhead_seconds
        self.start_loss = saved.start_loss
        self.best = dict(saved.best or saved.last)  # the best is left out where it is the last
        if len(self.records) > self.epochs_asked:
            raise InputError(
                f"epochs >= {len(self.records)}, as many as the checkpoint has seen",
                self.epochs_asked,
            )
        self.finished = saved.finished and self._done
        self.model.load_state_dict(saved.last)
        if self.finished:
            self.model.load_state_dict({**saved.last, **saved.best, **saved.final})
            assert saved.target is not None
            self.model.target = target_from(saved.target)
        else:
            restore_optimizer(self.optimizer.optimizer, saved.optimizer)

    # -- epochs --------------------------------------------------------------------------------

    @property
    def _done(self) -> bool:
        patience, best = self.settings.patience, best_epoch(self.records, self.start_loss)
        stale = patience is not None and best is not None and len(self.records) - best >= patience
        return stale or len(self.records) >= self.epochs_asked

    @property
    def kept_epoch(self) -> int:
        """The epoch whose weights the model ends with; 0: those it had before the first."""
        judged = self.settings.select == "best"
        best = best_epoch(self.records, self.start_loss) if judged else None
        return len(self.records) if best is None else best

    @property
    def history(self) -> History:
        """What happened so far."""
        return History(self.records, self.kept_epoch, overhead_seconds=self.overhead_seconds)

    def epochs(self, progress: bool, title: str = "") -> None:
        """Train until done, with checkpoints at the end of epochs."""
        if self._done:
            return
        with epoch_bar(self.epochs_asked, len(self.records), progress, title) as show:
            while not self._done:
                record = self._epoch(len(self.records) + 1)
                self.records += (record,)
                if self.kept_epoch == record.epoch:
                    self.best = weights(self.model) if self.settings.select == "best" else {}
                self._save()
                self.fabric.log_dict(record.figures, step=record.epoch)
                show(record)

    def _epoch(self, epoch: int) -> Epoch:
        start, lr = time.perf_counter(), self.settings.lr_at(epoch)
        loss = self._train_epoch(epoch, lr)
        self.processes.share(self.model.buffers())
        figures = self._judge()
        if not all(math.isfinite(value) for value in figures.values()):
            raise self.settings.diverged(loss, epoch)
        record = Epoch(epoch, loss, lr, time.perf_counter() - start, **figures)
        return self.fabric.broadcast(record)

    def _train_epoch(self, epoch: int, lr: float) -> float:
        """The mean loss of all steps of an epoch."""
        fabric, seed = self.fabric, self.settings.seed
        seed_all(derived(seed, epoch, fabric.global_rank))
        generator = torch.Generator().manual_seed(derived(seed, epoch))
        self.step.train()
        total = torch.zeros(2, dtype=torch.float64, device=fabric.device)
        shard = (fabric.global_rank, fabric.world_size)
        for graph in self.train.batches(self.batch_size, True, generator, shard):
            graph = fabric.to_device(graph)
            if self.processes.all_have_labels(graph):
                for group in self.optimizer.param_groups:
                    group["lr"] = lr * self._warmth
                total += self._train_step(graph)
        total = self.processes.summed(total)
        loss = float(total[0] / total[1])
        if not math.isfinite(loss) or not all(bool(p.isfinite().all()) for p in self.parameters):
            raise self.settings.diverged(loss, epoch)
        return loss

    @property
    def _warmth(self) -> float:
        """The share of the learning rate that the next step has."""
        if not self.model.starts_trained:
            return 1.0
        state: dict[str, Any] = next(iter(self.optimizer.optimizer.state.values()), {})
        return min(1.0, (1.0 + float(state.get("step", 0.0))) / _WARM)

    def _train_step(self, graph: Any) -> Tensor:
        """One step of the optimiser; the sums of weighted losses and of weights."""
        losses, counts = self.step(graph)
        # Processes average their gradients: each divides by the weight of all, times their number.
        share = self.processes.summed(counts.sum()) / self.fabric.world_size
        if float(share) == 0.0:  # no label of these rows is known
            return torch.zeros(2, dtype=torch.float64, device=counts.device)
        self.optimizer.zero_grad()
        self.fabric.backward(losses.sum() / share)
        self.optimizer.step()
        return torch.stack([losses.detach().sum(), counts.sum()]).double()

    def _judge(self) -> dict[str, float]:
        if self.val is None:
            return {}
        if not all(bool(b.isfinite().all()) for b in self.model.buffers() if b.is_floating_point()):
            return {"val_loss": math.nan}
        self.model.ready(self.probe)
        found = judged(self.model, self.val, self.eval_size)
        return self._target.figures(found.outputs, found.y, found.weights)

    # -- after the last epoch ------------------------------------------------------------------

    def finish(self) -> None:
        """Keep the chosen weights, fit what prediction needs, calibrate, and say so on disk."""
        saves = self.checkpoint is not None
        last = weights(self.model) if saves else {}
        if self.best:
            self.model.load_state_dict(self.best)
        kept = weights(self.model) if saves else {}
        self.optimizer.zero_grad()
        seed_all(derived(self.settings.seed, _DRY))
        start, data = time.perf_counter(), (self.train, self.val)
        self.model.finish(self.train, self.eval_size)
        sets = finish_model(self.model, *data, self.calibrate, self.eval_size, self.settings.seed)
        if sets and self.model.reads_anchors():
            warn_of_one_voice(self.model, sets[0])
        self.overhead_seconds += time.perf_counter() - start
        self.processes.share(self.model.buffers())
        final = {
            name: value
            for name, value in (weights(self.model) if saves else {}).items()
            if name not in kept or not torch.equal(value, kept[name])
        }
        self._save(last, final=final, finished=True, target=self._target.spec())
        self.finished = True

    def _save(self, last: Mapping[str, Tensor] | None = None, **more: Any) -> None:
        """Write a checkpoint if one is due; the final state is always written."""
        if self.checkpoint is None or not self.fabric.is_global_zero:
            return
        if more or self.checkpoint.is_due:
            last = weights(self.model) if last is None else last
            best = self.best if self.kept_epoch != len(self.records) else {}
            tensors = last, optimizer_tensors(self.optimizer.optimizer), best
            more |= {"overhead_seconds": self.overhead_seconds, "start_loss": self.start_loss}
            self.checkpoint.save(RunState(self.records, *tensors, **more))
