"""`fit`: train any of the library's models with one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from pickle import PicklingError
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from gduq.auto import AutoAnchored, settled
from gduq.baselines import Ensemble, MCDropout
from gduq.data.parallel import progress_bar
from gduq.errors import InputError
from gduq.nn.call import Call
from gduq.training.checkpoint import weights
from gduq.training.halving import choose
from gduq.training.history import History
from gduq.training.loss import ClassWeights
from gduq.training.run import train as train_one
from gduq.training.settings import Select, Settings

__all__ = ["fit"]


def fit(
    model: nn.Module,
    train: Any,
    val: Any = None,
    *,
    epochs: int,
    lr: float = 1e-3,
    batch_size: int = 32,
    weight_decay: float = 0.0,
    draws: int | None = None,
    mask: float | None = None,
    class_weights: ClassWeights = None,
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
    select: Select = "best",
    patience: int | None = None,
    seed: int = 0,
    call: Call | None = None,
    processes: int = 1,
    progress: bool = True,
    resume: str | Path | None = None,
    fabric: Fabric | None = None,
) -> History:
    r"""Train a model with Adam and cross-entropy, then fit its bank of anchors.

    With D ``draws`` of anchors and m labelled rows in a batch, a step minimises

    .. math::
        \frac{1}{Dm} \sum_{k,i} \begin{cases} -\log p_{ki}(y_i) \\
        -\frac1C \sum_c \log p_{ki}(c) & \text{where row i of draw k is masked} \end{cases}

    Over several processes gradients are those of the whole batch; BatchNorm statistics, dropout
    and random anchors are each process's own, as in any data-parallel training, so only a network
    without them ends exactly as in one process.

    Only labelled rows count. Graph tasks see mini-batches in random order; a single graph (node
    tasks) makes one step an epoch; a last batch of one to three graphs joins the others. With
    ``freeze=True`` the frozen part runs once, before the first epoch (unless graphs come from a
    loader or through a dataset's ``transform``, which may be random).

    The same seed gives the same bits on one thread. Global random states are left as they were.
    Interrupted or not, the model ends in evaluation mode, on the device it was trained on.

    Args:
        model: `Anchored`, a plain network, `Ensemble` (members with seeds ``seed``, ``seed + 1``,
            ...), `MCDropout` (its network), or `AutoAnchored`, whose place is then chosen: see
            `gduq.training.halving`.
        train: A View, a ``Data``, a list of them, a PyG dataset, or a loader; ``NeighborLoader``
            batches (seed nodes first) are fine. A loader keeps its own batch size.
        val: Data to judge every epoch by: loss, accuracy and ECE of the mean logits, for anchored
            models over a bank from one training batch. With ``temper=True`` (see `gduq.anchor`)
            they also say at the end if confidence has to be lowered.
        epochs: Passes over ``train``.
        lr: Learning rate of Adam.
        batch_size: Graphs a step, over all processes; labelled nodes where a head is trained on a
            frozen network, which reads node by node.
        weight_decay: L2 penalty, as in Adam.
        draws: Anchors a row and step, all through one pass (anchored models). Default: 10 at the
            readout of a network with a two-layer head, where they cost next to nothing; else 1.
        mask: Share of rows whose anchor half is zeroed and whose target is the uniform
            distribution (anchored models). Default: 0.2 where 10 draws are the default; else 0.
        class_weights: One weight a class, or ``"balanced"``; for rows that are not masked.
        milestones: Epochs after which the learning rate is multiplied by ``gamma``.
        gamma: See ``milestones``.
        select: ``"best"`` keeps the weights of the lowest validation loss (without ``val``: the
            last ones). The loss, not accuracy: it judges the probabilities that uncertainty is made
            of, and on few rows it has no ties. ``"last"`` keeps the last.
        patience: Stop after so many epochs without a lower validation loss.
        seed: Decides the order of graphs, anchors, dropout.
        call: As in `gduq.anchor`, for a plain network.
        processes: Train the members of an `Ensemble` in so many processes, one thread each.
        progress: Show a bar, on a terminal.
        resume: Folder for a checkpoint, rewritten at an epoch's end as often as that takes no more
            than a twentieth of the time. If there is one, training goes on from it and ends as if
            it had never stopped.
        fabric: Where to train; default: the first GPU, else the CPU. Its loggers get every
            epoch's figures. For several processes ``Fabric(devices=2, strategy="ddp")``, launched.

    Returns:
        The epochs, with losses, times and validation figures.

    Example:
        >>> from torch_geometric.data import Data
        >>> import gduq
        >>> def graph(y):
        ...     return Data(x=torch.full((2, 1), y), edge_index=torch.tensor([[0, 1], [1, 0]]), y=y)
        >>> graphs = [graph(i % 2) for i in range(20)]
        >>> model = gduq.anchor(gduq.nn.GNN(1, 8, 2, num_layers=2), at="readout", num_anchors=5)
        >>> history = fit(model, graphs[:15], graphs[15:], epochs=3)
        >>> len(history), model.sample(graphs[0]).shape
        (3, torch.Size([5, 1, 2]))
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper shares the parameters
    settings = Settings(
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        weight_decay=weight_decay,
        draws=draws,
        mask=mask,
        class_weights=class_weights,
        milestones=tuple(milestones),
        gamma=gamma,
        select=select,
        patience=patience,
        seed=seed,
        call=call,
    )
    _check_processes(model, processes, fabric)
    if isinstance(model, Ensemble) and processes > 1:
        return _in_parallel(model, train, val, settings, resume, progress, processes)
    return _fit(model, train, val, settings, resume, progress, fabric)


def _fit(
    model: nn.Module,
    train: Any,
    val: Any,
    settings: Settings,
    resume: str | Path | None,
    progress: bool,
    fabric: Fabric | None = None,
    title: str = "",
) -> History:
    """Any model: what it is made of is trained, one after the other."""
    if isinstance(model, AutoAnchored) and not model.is_settled:
        return choose(model, train, val, settings, fabric, resume, progress, title)
    model = settled(model)
    if isinstance(model, MCDropout):
        inner = _with_call(settings, model.call)
        history = _fit(model.net, train, val, inner, resume, progress, fabric, title)
        model.net = settled(model.net)
        model.eval()
        return history
    if isinstance(model, Ensemble):
        histories = []
        for i, member in enumerate(model.members):
            own, folder = _of_member(model, settings, resume, i)
            name = f"member {i + 1} of {len(model.members)}"
            histories.append(_fit(member, train, val, own, folder, progress, fabric, name))
            model.members[i] = settled(member)
        model.eval()
        return History(members=tuple(histories))
    return train_one(model, train, val, settings, fabric, resume, progress, title)


def _with_call(settings: Settings, call: Call | None) -> Settings:
    return settings if settings.call is not None else replace(settings, call=call)


def _of_member(
    model: Ensemble, settings: Settings, resume: str | Path | None, i: int
) -> tuple[Settings, Path | None]:
    """Settings and checkpoint folder of member i."""
    own = replace(_with_call(settings, model.call), seed=settings.seed + i)
    return own, None if resume is None else Path(resume) / f"member-{i}"


def _in_parallel(
    model: Ensemble,
    train: Any,
    val: Any,
    settings: Settings,
    resume: str | Path | None,
    progress: bool,
    processes: int,
) -> History:
    """The members in processes of their own; the weights come back."""
    import joblib  # type: ignore[import-untyped]

    jobs = []
    for i, member in enumerate(model.members):
        own, folder = _of_member(model, settings, resume, i)
        jobs.append(joblib.delayed(_remote)(i, member, train, val, own, folder))
    histories: dict[int, History] = {}
    pool = joblib.Parallel(n_jobs=processes, return_as="generator_unordered")
    with progress_bar("ensemble", len(jobs), None if progress else False) as advance:
        try:
            for i, history, state, choice in pool(jobs):
                member = model.members[i]
                if isinstance(member, AutoAnchored) and not member.is_settled:
                    member.settle(*choice)
                model.members[i] = settled(member)
                model.members[i].load_state_dict(state)
                histories[i] = history
                advance()
        except PicklingError as error:
            raise InputError(
                "a model and data that can be sent to another process", error, "Use processes=1."
            ) from error
    model.eval()
    return History(members=tuple(histories[i] for i in range(len(jobs))))


def _remote(
    i: int, member: nn.Module, train: Any, val: Any, settings: Settings, folder: Path | None
) -> tuple[int, History, dict[str, Tensor], Any]:
    """Train one member in a process of its own; also what it chose, if it had a choice."""
    torch.set_num_threads(1)
    history = _fit(member, train, val, settings, folder, progress=False)
    choice = (member.at, member.scores) if isinstance(member, AutoAnchored) else None
    return i, history, weights(settled(member)), choice


def _check_processes(model: nn.Module, processes: int, fabric: Fabric | None) -> None:
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise InputError("processes >= 1", repr(processes))
    if processes > 1 and (not isinstance(model, Ensemble) or fabric is not None):
        raise InputError(
            "processes > 1 with an Ensemble and without a fabric",
            f"processes={processes} for {type(model).__name__}",
            "To train one model in several processes pass Fabric(devices=2, strategy='ddp').",
        )
