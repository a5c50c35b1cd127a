"""Evidence behind docs/calibration.md: which calibrator, how many rows, mean or every sample.

``python reproduction/benchmarks/calibration_evidence.py [methods|planted|sizes|axis|axis_strong]``
prints Markdown tables. All data is synthetic. Every number is a mean over seeds 10 to 14: the
calibrators' defaults (widths of priors, what the anchor-aware temperature reads) were chosen on
seeds 0 to 2, looking at test rows, so those seeds say nothing about them any more.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data

import gduq
from gduq.calibration import AnchorAwareTemperature, Calibrator, TemperatureScaling, methods_for
from gduq.data import View
from gduq.evaluation import corrupted_predictions
from gduq.metrics import distance, ece, nll
from gduq.prediction import Prediction, predict

METHODS = methods_for("classes")
SEEDS = range(10, 15)
Table = dict[str, dict[str, float]]

# -- a node task with shifted nodes ----------------------------------------------------------------


def node_task(
    seed: int, nodes: int = 4000, classes: int = 6, width: int = 16
) -> tuple[Data, dict[str, Tensor]]:
    """A block-model graph whose last quarter of nodes is noisier and less homophilous."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(classes, (nodes,), generator=generator)
    ood = torch.arange(nodes) >= nodes * 3 // 4
    noise = torch.where(ood, 3.5, 2.0)[:, None] * torch.randn(nodes, width, generator=generator)
    x = torch.randn(classes, width, generator=generator)[label] + noise
    source = torch.randint(nodes, (3 * nodes,), generator=generator)
    draw = torch.rand(2, 3 * nodes, generator=generator)
    alike = draw[0] < torch.where(ood[source], 0.35, 0.6)
    order, count = label.argsort(), torch.bincount(label)
    within = order[
        (count.cumsum(0) - count)[label[source]] + (draw[1] * count[label[source]]).long()
    ]
    sink = torch.where(alike, within, (draw[1] * nodes).long())
    edges = torch.stack([torch.cat([source, sink]), torch.cat([sink, source])])
    position = torch.arange(nodes)
    masks = {
        "train": position < 400,
        "val": (position >= 400) & (position < 1000),
        "test": (position >= 1000) & ~ood,
        "ood": ood,
    }
    return Data(x=x, edge_index=edges, y=label), masks


def anchored_model(data: Data, train: Tensor, seed: int, epochs: int = 200) -> gduq.Anchored:
    """A GCN anchored at its second layer, trained on some nodes of a graph."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = gduq.nn.GNN(data.x.size(1), 32, int(data.y.max()) + 1, 3, conv="gcn", task="node")
        model = gduq.anchor(net, at=1, recipe="paper", num_anchors=10, seed=seed)
        marked = data.clone()
        marked.row_mask = train
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        model.train()
        for _ in range(epochs):
            optimiser.zero_grad()
            F.cross_entropy(model(marked)[train], data.y[train]).backward()
            optimiser.step()
    model.fit_bank(marked)
    return model.eval()


def _calibrated(
    data: Data, masks: Mapping[str, Tensor], model: gduq.Anchored, p: Prediction
) -> Iterator[tuple[str, Prediction]]:
    for name in METHODS:
        calibrator = _made(name, data, p, masks["train"])
        yield name, calibrator.fit(p, rows=masks["val"])(p)
    copies = corrupted_predictions(model, View(data, masks["val"]))
    aware = AnchorAwareTemperature().fit(p, rows=masks["val"], corrupted=copies)
    yield "anchor_aware+corrupted", aware(p)
    # the control: blind to disagreement, it is one temperature for clean rows and copies
    blind = AnchorAwareTemperature()
    blind.fit(_mean_only(p), rows=masks["val"], corrupted=[_mean_only(copy) for copy in copies])
    yield "temperature, the same copies", blind(_mean_only(p))


def _made(name: str, data: Data, p: Prediction, train: Tensor) -> Calibrator:
    options: dict[str, Any] = {"graph": data} if METHODS[name].needs_graph else {}
    if name == "gats":
        options["train_rows"] = train
    if METHODS[name].needs_features:
        options["train"] = p[train]
    return METHODS[name](**options)


def _mean_only(p: Prediction) -> Prediction:
    return p.with_samples(p.logits.unsqueeze(0))


def methods() -> Table:
    """Every calibrator on an anchored GCN: in distribution and on shifted nodes."""
    runs: dict[str, list[dict[str, float]]] = {}
    for seed in SEEDS:
        data, masks = node_task(seed)
        model = anchored_model(data, masks["train"], seed)
        p = predict(model, data, features=True)
        runs.setdefault("none", []).append(_judge(p, p, masks))
        double = TemperatureScaling().neutral(p.num_classes, p.num_samples)
        double._state["temperature"] *= 2  # the control that any claim must beat
        runs.setdefault("T = 2", []).append(_judge(double(p), p, masks))
        for name, q in _calibrated(data, masks, model, p):
            runs.setdefault(name, []).append(_judge(q, p, masks))
    table = _means(runs)
    for name, values in table.items():
        values |= _against_temperature(runs[name], runs["temperature"])
    return table


def _against_temperature(
    runs: list[dict[str, float]], reference: list[dict[str, float]]
) -> dict[str, float]:
    """Mean difference of NLL to temperature scaling's, seed by seed, and its standard error."""
    found = {}
    for split in ("test", "ood"):
        pairs = zip(runs, reference, strict=True)
        gaps = [a[f"{split} NLL"] - b[f"{split} NLL"] for a, b in pairs]
        found[f"Δ {split}"] = statistics.mean(gaps)
        found[f"± {split}"] = statistics.stdev(gaps) / len(gaps) ** 0.5
    return found


def _judge(q: Prediction, p: Prediction, masks: Mapping[str, Tensor]) -> dict[str, float]:
    scores = {}
    for name in ("test", "ood"):
        part = q[masks[name]]
        scores[f"{name} ECE"] = ece(part)
        scores[f"{name} NLL"] = nll(part)
    test = masks["test"] | masks["ood"]
    scores["labels changed"] = float((q.label != p.label)[test].float().mean())
    return scores


# -- where each one's assumption holds -------------------------------------------------------------


def planted_task(kind: str, seed: int, rows: int = 3000, classes: int = 6) -> _Planted:
    """Logits three times too large; in all but the first kind something else tells bad rows."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(rows, classes, generator=generator)
    target = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
    logits, jitter = 3 * truth, torch.full((rows, 1), 0.3)
    features = torch.randn(rows, 3, generator=generator)
    position = torch.arange(rows)
    train, val = position < 300, (position >= 300) & (position < 1000)
    source, sink = torch.randint(rows, (2, 3 * rows), generator=generator)
    bad = torch.rand(rows, 1, generator=generator)
    bad[train] = 0.0
    if kind == "class":
        mix = 0.15 * torch.randn(classes, classes, generator=generator)
        logits = logits @ (torch.eye(classes) + mix) + torch.randn(classes, generator=generator)
    elif kind == "distance":
        features = features / features.norm(dim=1, keepdim=True) * (0.5 + 8 * bad)
    elif kind == "disagreement":
        jitter = jitter + 3 * bad
    elif kind == "steps":  # nodes not linked to a training node are bad
        graph = Data(edge_index=torch.stack([source, sink]), num_nodes=rows)
        bad = (distance(graph, train) > 1).float()[:, None]
    if kind not in ("none", "class"):
        wrong = torch.rand(rows, generator=generator) < 0.7 * bad.squeeze(1)
        target = torch.where(wrong, torch.randint(classes, (rows,), generator=generator), target)
    noise = torch.randn(8, rows, classes, generator=generator)
    p = Prediction(logits + jitter * (noise - noise.mean(dim=0)), target, features=features)
    edges = torch.stack([torch.cat([source, sink]), torch.cat([sink, source])])
    masks = {"train": train, "val": val, "test": position >= 1000}
    return p, Data(edge_index=edges, num_nodes=rows), masks


_Planted = tuple[Prediction, Data, dict[str, Tensor]]


def planted() -> Table:
    """NLL on 2 000 test rows minus temperature scaling's, where bad rows can be told by ..."""
    found: Table = {}
    for kind in ("none", "class", "distance", "disagreement", "steps"):
        runs: dict[str, list[float]] = {}
        for seed in SEEDS:
            p, graph, masks = planted_task(kind, seed)
            reference = nll(TemperatureScaling().fit(p, rows=masks["val"])(p, rows=masks["test"]))
            runs.setdefault("none", []).append(nll(p[masks["test"]]) - reference)
            for name in METHODS:
                calibrator = _made(name, graph, p, masks["train"]).fit(p, rows=masks["val"])
                runs.setdefault(name, []).append(nll(calibrator(p, rows=masks["test"])) - reference)
        for name, values in runs.items():
            line = found.setdefault(name, {})
            line[kind] = statistics.mean(values)
            line[f"± {kind}"] = statistics.stdev(values) / len(values) ** 0.5
    return found


# -- how many validation rows ----------------------------------------------------------------------


def crooked_logits(rows: int, seed: int, model: int, classes: int = 10) -> Prediction:
    """Rows drawn by ``seed`` from an overconfident ``model`` with favourite classes."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(rows, classes, generator=generator)
    target = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
    taste = torch.Generator().manual_seed(10_000 + model)
    bias = 0.7 * torch.randn(classes, generator=taste)
    mix = torch.eye(classes) + 0.1 * torch.randn(classes, classes, generator=taste)
    return Prediction(2.5 * truth @ mix + bias, target=target)


def sizes() -> Table:
    """NLL on 20 000 test rows after fitting on 50 to 10 000 validation rows."""
    keep = {"missing": "keep"}
    factories: dict[str, Callable[[], Calibrator] | None] = {"none": None}
    for name, cls in METHODS.items():
        if not (cls.needs_graph or cls.needs_features or name == "anchor_aware"):
            options = {} if cls.keeps_accuracy else keep
            factories[name] = partial(cls, **options)
    factories["vector, as published"] = partial(METHODS["vector"], penalty=0.0, **keep)
    factories["dirichlet, ODIR 5e-4"] = partial(METHODS["dirichlet"], penalty=5e-4, **keep)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in factories}
    for seed in SEEDS:
        test = crooked_logits(20_000, 100 + seed, model=seed)
        vals = {rows: crooked_logits(rows, seed, model=seed) for rows in (50, 200, 1000, 10_000)}
        for name, make in factories.items():
            scores = {
                f"n = {rows}": nll(test if make is None else make().fit(val)(test))
                for rows, val in vals.items()
            }
            runs[name].append(scores)
    return _means(runs)


# -- mean or every sample --------------------------------------------------------------------------


def _every_sample(calibrator: Calibrator, p: Prediction, val: Tensor) -> Prediction:
    """Fit on all K samples of the validation rows as rows of their own, and map each sample."""
    k = p.num_samples
    part = p[val]
    calibrator.fit(Prediction(part.samples.flatten(0, 1), part.target.repeat(k)))
    mapped = calibrator(Prediction(p.samples.flatten(0, 1)))
    return p.with_samples(mapped.samples.view(p.samples.shape))


def axis() -> Table:
    """Mean logits or every sample, where hypotheses agree: a GCN anchored at layer 1."""
    runs: dict[str, list[dict[str, float]]] = {}
    for seed in SEEDS:
        data, masks = node_task(seed)
        p = predict(anchored_model(data, masks["train"], seed), data)
        _both_ways(p, masks, runs)
    return _means(runs)


def axis_strong() -> Table:
    """Mean logits or every sample, where hypotheses differ a lot: noise added to true logits."""
    runs: dict[str, list[dict[str, float]]] = {}
    rows = torch.arange(6000)
    masks = {"val": rows < 600, "test": (rows >= 600) & (rows < 3300), "ood": rows >= 3300}
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        truth = 2 * torch.randn(6000, 6, generator=generator)
        target = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
        noise = torch.where(masks["ood"], 4.0, 2.5)[:, None]
        samples = 1.5 * truth + noise * torch.randn(10, 6000, 6, generator=generator)
        _both_ways(Prediction(samples, target), masks, runs)
    return _means(runs)


def _both_ways(
    p: Prediction, masks: Mapping[str, Tensor], runs: dict[str, list[dict[str, float]]]
) -> None:
    runs.setdefault("none", []).append(_axis_scores(p, masks))
    for name in (
        "temperature",
        "ensemble_temperature",
        "matrix",
        "isotonic",
        "histogram",
        "spline",
    ):
        mean = METHODS[name]().fit(p, rows=masks["val"])(p)
        runs.setdefault(f"{name}, mean", []).append(_axis_scores(mean, masks))
        each = _every_sample(METHODS[name](), p, masks["val"])
        runs.setdefault(f"{name}, every sample", []).append(_axis_scores(each, masks))


def _axis_scores(q: Prediction, masks: Mapping[str, Tensor]) -> dict[str, float]:
    scores = {}
    for name in ("test", "ood"):
        scores[f"{name} ECE"] = ece(q[masks[name]])
        scores[f"{name} NLL"] = nll(q[masks[name]])
    score = torch.cat([q[masks["test"]].epistemic, q[masks["ood"]].epistemic])
    positive = torch.arange(len(score)) >= int(masks["test"].sum())
    scores["epistemic AUROC"] = _auroc(score, positive)
    return scores


def _auroc(score: Tensor, positive: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive.numpy(), score.numpy()))


def _means(runs: Mapping[str, list[dict[str, float]]]) -> Table:
    return {
        name: {key: statistics.mean(run[key] for run in several) for key in several[0]}
        for name, several in runs.items()
    }


def show(table: Table) -> None:
    """Print a table as Markdown."""
    columns = list(next(iter(table.values())))
    print("| | " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for name, values in table.items():
        print(f"| {name} | " + " | ".join(f"{values[c]:.3f}" for c in columns) + " |")


TABLES: dict[str, Callable[[], Table]] = {
    "methods": methods,
    "planted": planted,
    "sizes": sizes,
    "axis": axis,
    "axis_strong": axis_strong,
}

if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Sparse CSR")
    for wanted in sys.argv[1:] or list(TABLES):
        print(f"\n{wanted}: {TABLES[wanted].__doc__}\n")
        show(TABLES[wanted]())
