"""Heads that learn side by side: each becomes what it would alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gduq._torch import derived
from gduq.anchoring.anchors import AnchoredLinear
from gduq.models.predictor import CachedRows, HeadTask
from gduq.prediction import Classes
from gduq.training.loop import FitSettings, History, train
from gduq.training.rows import HeadLearner

D, WIDE, CLASSES = 4, 6, 3
TARGET = Classes(CLASSES)


class Anchored(nn.Module):
    def __init__(self, *norms: nn.Module) -> None:
        super().__init__()
        self.linear = AnchoredLinear(D, WIDE)
        self.tail = nn.Sequential(*norms, nn.ReLU(), nn.Dropout(0.3), nn.Linear(WIDE, CLASSES))

    def forward(self, h: Tensor, c: Tensor, masked: Tensor | None) -> Tensor:
        z = self.linear.residual(h) + self.linear.shift(c, masked)
        return self.tail(z.flatten(0, 1)).unflatten(0, z.shape[:2])


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(D, WIDE), nn.Tanh(), nn.Linear(WIDE, CLASSES))

    def forward(self, h: Tensor, c: Tensor | None, masked: Tensor | None) -> Tensor:
        if c is None or masked is None:
            return self.head(h).unsqueeze(0)
        return self.head(torch.where(masked.unsqueeze(-1), h - c, h))


def rows(count: int, seed: int = 0) -> CachedRows:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(count, D, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(count, CLASSES, generator=generator, dtype=torch.float64)
    return CachedRows(h, (h[:, :CLASSES] + noise).argmax(dim=1), h)


TRAIN, VAL = rows(70), rows(30, seed=1)
BANK = TRAIN.h[:5]


def draw(count: int, generator: torch.Generator) -> Tensor:
    return TRAIN.h[torch.randint(len(TRAIN), (count,), generator=generator)]


def made(count: int, kind: type[nn.Module] = Anchored, *norms: nn.Module) -> list[nn.Module]:
    heads = []
    with torch.random.fork_rng():
        for seed in range(count):
            torch.manual_seed(seed)
            heads.append(kind(*copy.deepcopy(norms)).double())
    return heads


def fit(heads: list[nn.Module], masks: list[float], **more: Any) -> list[History]:
    """Train heads; on other rows, with another target or other settings, if given."""
    known = {"target": TARGET, "draw": draw, "draws": 3, "bank": BANK}
    task = HeadTask(heads, masks, **{name: more.pop(name, value) for name, value in known.items()})
    train_rows, val = more.pop("rows", TRAIN), more.pop("val", VAL)
    settings = FitSettings(**{"lr": 0.02, "seed": 5, **more})
    learner = HeadLearner(task, train_rows, val, settings)
    with torch.random.fork_rng():
        return train(learner)


def close(one: nn.Module, two: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return all(torch.allclose(a.double(), b.double(), rtol=1e-8, atol=1e-10) for a, b in pairs)


def kept_loss(run: History) -> float:
    return run.records[run.kept_epoch - 1]["val_loss"]


@torch.no_grad()
def loss_of(head: nn.Module) -> float:
    """At the best of a few temperatures."""
    logits = head(VAL.h, BANK.unsqueeze(1), None)
    losses = [TARGET.nll(logits / 4.0 ** (i / 4 - 1), VAL.y).mean() for i in range(9)]
    return float(torch.stack(losses).min())


NORMS = {"none": (), "batch": (nn.BatchNorm1d(WIDE),), "layer": (nn.LayerNorm(WIDE),)}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("epochs", [None, 4])
def test_together_as_alone(norm: str, epochs: int | None) -> None:
    masks = [0.0, 0.2, 0.6]
    together, alone = made(3, Anchored, *NORMS[norm]), made(3, Anchored, *NORMS[norm])
    runs = fit(together, masks, epochs=epochs, weight_decay=1e-3, patience=3)
    for head, twin, mask, run in zip(together, alone, masks, runs, strict=True):
        assert not close(head, twin)  # it learned
        (own,) = fit([twin], [mask], epochs=epochs, weight_decay=1e-3, patience=3)
        assert close(head, twin)
        assert own.kept_epoch == run.kept_epoch
        assert len(own.records) == len(run.records)
        assert kept_loss(own) == pytest.approx(kept_loss(run), rel=1e-9)


def test_one_step_is_that_of_adam_on_the_loss_by_hand() -> None:
    """One batch of all rows, no randomness but masks: the loss is written out here."""
    target = Classes(CLASSES, weights=(1.0, 2.0, 5.0))
    (head,), (twin,) = made(1, Plain), made(1, Plain)
    anchor = torch.ones(D, dtype=torch.float64)
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, args: seen.append(args[2]))
    more = {"draw": lambda n, _: anchor.expand(n, D), "draws": 2, "batch_size": 70, "seed": 0}
    fit([head], [0.4], target=target, epochs=1, lr=0.1, val=None, bank=None, **more)
    hook.remove()
    # vmap hands out batched tensors; what they hold is the same for one head
    masked = torch._C._functorch.get_unwrapped(seen[0])[0]
    assert 0.2 < masked.double().mean() < 0.6
    order = _order_of_first_epoch(0)
    h, y = TRAIN.h[order], TRAIN.y[order]
    total = weight = torch.zeros((), dtype=torch.float64)
    for k in range(2):
        logp = twin.head(torch.where(masked[k].unsqueeze(-1), h - anchor, h)).log_softmax(-1)
        for i in range(len(y)):
            w = 1.0 if masked[k, i] else (1.0, 2.0, 5.0)[int(y[i])]
            total = total - w * (logp[i].mean() if masked[k, i] else logp[i, y[i]])
            weight = weight + w
    (total / weight).backward()
    torch.optim.Adam(twin.parameters(), 0.1).step()
    assert close(head, twin)


def _order_of_first_epoch(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(derived(seed, 1, 1))
    return torch.randperm(len(TRAIN), generator=generator)


def test_a_single_draw_is_an_anchor_per_row() -> None:
    task = HeadTask(made(1), [0.0], TARGET, draw, 1, BANK)
    learner = HeadLearner(task, TRAIN, VAL, FitSettings(epochs=1))
    index, c, masked = next(learner.batches(1))
    assert c.shape == (1, len(index), D)
    assert masked.shape == (1, 1, len(index))
    assert len(c[0].unique(dim=0)) > len(index) / 2


def test_the_lowest_validation_loss_is_kept_and_the_start_where_training_harms() -> None:
    heads = made(2)
    for head, run in zip(heads, fit(heads, [0.1, 0.3], epochs=12, lr=0.2), strict=True):
        losses = [record["val_loss"] for record in run.records]
        assert run.kept_epoch == losses.index(min(losses)) + 1
        assert min(losses) == pytest.approx(loss_of(head), rel=1e-9)
    good = copy.deepcopy(heads[0])
    wrong = replace(TRAIN, y=(TRAIN.y + 1) % CLASSES)
    (run,) = fit(heads[:1], [0.0], rows=wrong, epochs=3)
    assert run.kept_epoch == 0
    assert close(heads[0], good)


def test_automatic_training_learns_and_is_short() -> None:
    heads = made(2)
    start = [loss_of(head.eval()) for head in heads]
    runs = fit(heads, [0.0, 0.1], lr=None)
    assert all(kept_loss(run) < 0.8 * loss for run, loss in zip(runs, start, strict=True))
    assert max(len(run.records) for run in runs) <= 25
    (blind,) = fit(made(1), [0.0], val=None, lr=None)
    assert blind.kept_epoch == len(blind.records) == 8
    assert "val_loss" not in blind.records[-1]
