"""Small subjects for the tests of the report, made without training."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch_geometric.data import Data

from gduq.data import Splits, View
from gduq.evaluation import evaluate
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction
from gduq.report import Subject, build

EVIL = "<script>alert(1)</script>"
CLASSES = ("a&b", EVIL, "c'\"")


def prediction(m=120, seed=0, sharp=1.0, noise=1.0, k=1, labelled=True) -> ClassPrediction:
    """Three classes; ``sharp`` above 1 makes it over-confident, ``noise`` wrong more often."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(m) % 3
    hot = torch.nn.functional.one_hot(y, 3) * 2
    logits = hot + noise * torch.randn(k, m, 3, generator=generator, dtype=torch.float64)
    return ClassPrediction(sharp * logits, y if labelled else None, CLASSES)


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
    found = evaluate(subject.predictions, resamples=60, **options)
    return replace(subject, evaluation=found)


def judged(name: str, predictions, *calibrators: str, **more) -> Subject:
    """One model, evaluated; a single prediction is that of shifted rows."""
    if not isinstance(predictions, dict):
        predictions = {"ood_test": predictions}
    return evaluated(Subject(name, predictions, **more), calibrators=list(calibrators))


def of_classes(name: str, seed: int = 0, sharp: float = 1.0, noise: float = 1.0, **more) -> Subject:
    splits = {"id_val": 0.7, "id_test": 0.7, "ood_val": 1.0, "ood_test": 1.4}
    found = {
        s: prediction(seed=10 * seed + i, sharp=sharp, noise=noise * n, k=1 + seed % 2 * 3)
        for i, (s, n) in enumerate(splits.items())
    }
    for angle in (0, 60):
        found[f"rotation={angle}"] = prediction(
            seed=seed + angle, sharp=sharp, noise=noise * (0.7 + angle / 60), k=1 + seed % 2 * 3
        )
    return judged(name, found, "temperature", **more)


@cache
def page_of_three() -> str:
    """Made once: it takes seconds."""
    return build(three(), title=f"T {EVIL}", reproduce=f"gduq train {EVIL}")


@cache
def three() -> tuple[Subject, ...]:
    """An over-confident model, one that is not, and one with a dangerous name."""
    splits = graph_splits()
    config = {"data": {"name": "tu/NCI1/size"}, "note": EVIL}
    return (
        of_classes("vanilla", 0, sharp=6.0, noise=1.5, config=config, splits=splits),
        of_classes("mild", 1, noise=1.5),
        of_classes(EVIL, 2, sharp=6.0, noise=1.5, splits=splits, config={EVIL: 1}),
    )


# -- values, labels and rare classes -------------------------------------------------------------


def values(m=200, seed=0, wrong=1.0, scale=1.0, width=1, bias=0.0) -> ValuePrediction:
    """Errors ``wrong`` times, and said deviations ``scale`` times, what is usual."""
    g = torch.Generator().manual_seed(seed)
    y = 2 * torch.randn(m, width, generator=g)
    std = 0.3 + torch.rand(m, width, generator=g)
    means = y + bias + wrong * std * torch.randn(m, width, generator=g)
    samples = torch.cat([means, 2 * (scale * std).log()], dim=1)
    names = ("logS",) if width == 1 else tuple(f"v{t}" for t in range(width))
    return ValuePrediction(samples, y, names, novelty=torch.rand(m, generator=g))


def labels(m=200, seed=0, sharp=1.0, noise=0.5, width=3) -> LabelPrediction:
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(m, width, generator=g) - 1.0
    y = (torch.rand(m, width, generator=g) < z.sigmoid()).float()
    y[torch.rand(m, width, generator=g) < 0.15] = float("nan")
    noisy = z + noise * torch.randn(3, m, width, generator=g)
    return LabelPrediction(sharp * noisy, y, tuple("abc"[:width]))


def rare(found: float, right: float, m: int = 1000, names=("no", "yes")) -> ClassPrediction:
    """One row in ten is "yes": ``found`` of these and ``right`` of the others are said rightly."""
    target = (torch.arange(m) % 10 == 0).long()
    rank = torch.arange(m)
    hit = torch.where(target == 1, rank // 10 % 100 < 100 * found, rank % 100 < 100 * right)
    said = torch.where(hit, target, 1 - target)
    return ClassPrediction(2.0 * torch.eye(2)[said], target, names)


def on_three(make, everywhere=(), **shifted) -> dict:
    """On three splits: shifted rows are wrong in their own way."""
    usual = dict(everywhere)
    return {"id_val": make(seed=1, **usual), "id_test": make(seed=2, **usual),
            "ood_test": make(seed=3, **usual, **shifted)}  # fmt: skip


@cache
def of_values() -> tuple[Subject, Subject]:
    """Too narrow under shift, and one that is not."""
    plain, wide = on_three(values, wrong=2.0), on_three(values, wrong=2.0, scale=2.0)
    return (
        judged("plain", plain, "deviation", splits=graph_splits(200)),
        judged("wide", wide),
    )


@cache
def of_labels() -> tuple[Subject, Subject]:
    """Over-confident everywhere, and one that is not."""
    sharp, mild = on_three(labels, {"sharp": 4.0}), on_three(labels)
    return judged("sharp", sharp, "per_label"), judged("mild", mild)
