"""Small subjects for the tests of the report, made without training."""

from __future__ import annotations

from functools import cache

import torch
from torch_geometric.data import Data

from gduq.data import Splits, View
from gduq.evaluation import evaluate
from gduq.prediction import Prediction
from gduq.report import Subject, build

EVIL = "<script>alert(1)</script>"
CLASSES = ("a&b", EVIL, "c'\"")


def prediction(m=120, seed=0, sharp=1.0, noise=1.0, k=1, labelled=True) -> Prediction:
    """Three classes; ``sharp`` above 1 makes it over-confident, ``noise`` wrong more often."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(m) % 3
    hot = torch.nn.functional.one_hot(y, 3) * 2
    logits = hot + noise * torch.randn(k, m, 3, generator=generator, dtype=torch.float64)
    return Prediction(sharp * logits, y if labelled else None, CLASSES)


def graph(seed: int, nodes: int = 6) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    more = torch.randint(nodes, (2, 3), generator=generator)
    edges = torch.cat([edges, more], dim=1)
    return Data(
        x=torch.eye(3)[torch.arange(nodes) % 3], edge_index=edges, y=torch.tensor([seed % 3])
    )


def graph_splits(m: int = 120) -> Splits:
    view = View([graph(i, nodes=3 + i % 5) for i in range(m)])
    return Splits(
        view, id_test=view, ood_test=view, name="tu/NCI1/size", description=EVIL,
        class_names=CLASSES,
    )  # fmt: skip


def evaluated(subject: Subject, **options) -> Subject:
    """With an evaluation of few resamples."""
    from dataclasses import replace

    found = evaluate(subject.predictions, subject.splits, resamples=60,
                     subgroups=subject.splits is not None, **options)  # fmt: skip
    return replace(subject, evaluation=found)


def subject(name: str, seed: int = 0, sharp: float = 1.0, noise: float = 1.0, **more) -> Subject:
    splits = {"id_val": 0.7, "id_test": 0.7, "ood_val": 1.0, "ood_test": 1.4}
    found = {
        s: prediction(seed=10 * seed + i, sharp=sharp, noise=noise * n, k=1 + seed % 2 * 3)
        for i, (s, n) in enumerate(splits.items())
    }
    for angle in (0, 60):
        found[f"rotation={angle}"] = prediction(
            seed=seed + angle, sharp=sharp, noise=noise * (0.7 + angle / 60), k=1 + seed % 2 * 3
        )
    return evaluated(Subject(name, found, **more), calibrators=["temperature"])


@cache
def page_of_three() -> str:
    """Made once: it takes seconds."""
    return build(three(), title=f"T {EVIL}", reproduce=f"gduq train {EVIL}")


@cache
def three() -> tuple[Subject, ...]:
    """An over-confident model, one that is not, and one with a dangerous name."""
    splits = graph_splits()
    cost = {"train_seconds": 2.0, "predict_seconds": 0.5}
    config = {"data": {"name": "tu/NCI1/size"}, "note": EVIL}
    return (
        subject("vanilla", 0, sharp=6.0, noise=1.5, cost=cost, config=config, splits=splits),
        subject("mild", 1, noise=1.5, cost={"train_seconds": 6.0, "predict_seconds": 1.5}),
        subject(EVIL, 2, sharp=6.0, noise=1.5, splits=splits, config={EVIL: 1}),
    )
