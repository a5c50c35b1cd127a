"""Predictions of every kind on every split, made without training, and a model of nodes."""

from __future__ import annotations

from functools import cache

import pandas as pd
import torch
from torch_geometric.data import Data

from gduq.evaluation import Evaluation, evaluate
from gduq.graphs.view import Splits, View
from gduq.prediction import ClassPrediction, LabelPrediction, Prediction, ValuePrediction

FAST = {"resamples": 20}
NAN = float("nan")
KINDS = ("classes", "labels", "values")
CALIBRATORS = {"classes": ["temperature", "vector"], "labels": ["per_label"],
               "values": ["deviation"]}  # fmt: skip


def draw_classes(m: int, seed: int, noise: float = 1.0, k: int = 3) -> ClassPrediction:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (m,), generator=generator)
    h = torch.nn.functional.one_hot(y, 3) * 2 + noise * torch.randn(m, 3, generator=generator)
    samples = 2 * h + 0.3 * torch.randn(k, m, 3, generator=generator)
    return ClassPrediction(
        samples, target=y, features=h, novelty=h.norm(dim=1).div(20).clamp_max(1)
    )


def draw_values(m: int, seed: int, wrong: float = 1.0, width: int = 1) -> ValuePrediction:
    """True errors are ``wrong`` times what the deviations say."""
    g = torch.Generator().manual_seed(seed)
    mean, std = torch.randn(m, width, generator=g), 0.2 + torch.rand(m, width, generator=g)
    y = mean + wrong * std * torch.randn(m, width, generator=g)
    means = mean + 0.1 * torch.randn(3, m, width, generator=g)
    samples = torch.cat([means, (2 * std.log()).expand_as(means)], dim=2)
    h = torch.randn(m, 4, generator=g) * wrong
    names = ("logS",) if width == 1 else tuple(f"v{t}" for t in range(width))
    return ValuePrediction(samples, y, names, features=h, novelty=torch.rand(m, generator=g))


def draw_labels(m: int, seed: int, noise: float = 1.0, width: int = 3) -> LabelPrediction:
    """Rare positives, some unknown; ``noise`` makes it wrong more often."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(m, width, generator=g) - 1.5
    y = (torch.rand(m, width, generator=g) < z.sigmoid()).float()
    y[torch.rand(m, width, generator=g) < 0.2] = NAN
    samples = 2 * z + noise * torch.randn(3, m, width, generator=g)
    h = torch.randn(m, 4, generator=g) * noise
    names = tuple("abc"[:width])
    return LabelPrediction(samples, y, names, features=h, novelty=torch.rand(m, generator=g))


DRAW = {"classes": draw_classes, "labels": draw_labels, "values": draw_values}


def splits_of(kind: str, **more) -> dict[str, Prediction]:
    sizes = {"train": (150, 0, 1.0), "id_val": (120, 1, 1.0), "id_test": (110, 2, 1.0),
             "ood_val": (90, 3, 2.0), "ood_test": (80, 4, 3.0)}  # fmt: skip
    return {name: DRAW[kind](m, seed, off, **more) for name, (m, seed, off) in sizes.items()}


@cache
def judged(kind: str) -> tuple[dict[str, Prediction], Evaluation]:
    """Predictions of a kind, and what `evaluate` finds of them; made once."""
    predictions = splits_of(kind)
    return predictions, evaluate(predictions, calibrators=CALIBRATORS[kind], **FAST)


def part(found: Evaluation, **wanted: str) -> pd.DataFrame:
    """The rows of the table that have such entries."""
    table = found.table
    for column, value in wanted.items():
        table = table[table[column] == value]
    return table


def numbers(found: Evaluation, **wanted: str) -> dict[str, float]:
    """Values by measure."""
    rows = part(found, **wanted)
    return dict(zip(rows.measure, rows.value, strict=True))


def node_splits(n: int = 240) -> Splits:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (n,), generator=generator)
    x = torch.nn.functional.one_hot(y, 3) + 0.5 * torch.randn(n, 3, generator=generator)
    data = Data(x=x, y=y, edge_index=torch.randint(n, (2, 3 * n), generator=generator))
    data.y[-1] = -1  # a node without a label is in no split
    rows = torch.arange(n - 1)
    parts = {
        name: View([data], rows=rows[rows % 5 == i])
        for i, name in enumerate(("train", "id_val", "id_test", "ood_val", "ood_test"))
    }
    return Splits(**parts)


def graph_views() -> dict[str, View]:
    generator = torch.Generator().manual_seed(0)

    def graphs(count: int, nodes: int) -> list[Data]:
        made = []
        for i in range(count):
            x = torch.randn(nodes + i % 3, 4, generator=generator) + i % 2
            edges = torch.randint(len(x), (2, 12), generator=generator)
            made.append(Data(x=x, edge_index=edges, y=torch.tensor([i % 2])))
        return made

    sizes = {"train": 30, "id_val": 20, "id_test": 20, "ood_test": 20}
    return {n: View(graphs(c, 12 if n == "ood_test" else 5)) for n, c in sizes.items()}
