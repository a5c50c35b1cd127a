"""How novelty is measured: rules, neighbours and reference rows, against what it has to tell.

    GDUQ_DATA=RAW python reproduction/benchmarks/novelty_choices.py rings:sum tu/PROTEINS/size:sum

A name is a dataset of gduq.data.load, or ``rings``; ``:sum`` adds up the nodes of a graph, else
they are averaged. One row per choice, averaged over the datasets, about the number that a user
gets: AUROC for OOD rows (against ID test) and for errors on OOD rows (of values: those above the
median), each on all datasets, where sizes or degrees shift, and elsewhere; the distance of ID test
rows from uniform (Kolmogorov-Smirnov times the root of the number of rows: 1.36 is the 5 % level);
how corruptions of ID test move mean novelty, rise from severity 0 to 5 and share of those that end
higher; and the shares of OOD and of ID rows above 0.99. OOD rows are those of ood_val: choices are
made on them, and ood_test stays unseen.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from scipy import stats
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import normalize
from torch_geometric.data import Data

import gduq
from gduq.data import View, load
from novelty_structure import STRUCTURED, Seen, numbers, share, structured

Rows = dict[str, Seen]  # by split
Far = Callable[[Tensor], Tensor]  # rows [m, d] -> how far they are [m]
KINDS = ("feature_noise", "feature_mask", "edge_drop", "edge_rewire")
MOST = {"train": 1500}  # graphs of a split; 500 of the others


def ring(nodes: int, generator: torch.Generator) -> Data:
    """As in docs/tutorials/values.py: its value is a noisy sum over its nodes."""
    line, x = torch.arange(nodes), torch.randn(nodes, 4, generator=generator)
    y = 300 + 5 * x[:, 0].sum() + 3 * torch.randn((), generator=generator)
    return Data(x=x, edge_index=torch.stack([line, line.roll(1)]), y=y.view(1))


def splits_of(name: str) -> dict[str, View]:
    """All but ood_test, of large sets a part."""
    generator = torch.Generator().manual_seed(0)
    if name == "rings":
        small = [ring(4 + i % 6, generator) for i in range(900)]
        large = View([ring(14 + i % 6, generator) for i in range(300)])
        parts = [View(part) for part in (small[:500], small[500:700], small[700:])]
        return dict(zip(("train", "id_val", "id_test", "ood_val"), (*parts, large), strict=True))
    splits = {k: view for k, view in dict(load(name, seed=0)).items() if k != "ood_test"}
    for key, view in splits.items():
        if name.startswith("motif"):
            order = torch.randperm(len(view), generator=generator)[: MOST.get(key, 500)]
            splits[key] = View([view.graphs[int(i)] for i in order])
    return splits


def rows_of(name: str, seed: int) -> Rows:
    """Train a small network and keep its rows before the head."""
    name, _, readout = name.partition(":")
    splits = splits_of(name)
    train, ringed = splits["train"], name == "rings"
    node, values = train.task == "node", train.target.is_floating_point()
    outputs = 1 if values else 1 + int(max(view.target.max() for view in splits.values()))
    torch.manual_seed(seed)
    net = gduq.nn.GNN(
        train.graphs[0].x.size(1),
        32 if ringed else 64,
        outputs,
        2 if ringed else 3,
        conv="gcn" if node or ringed else "gin",
        task="node" if node else "graph",
        head="mlp",
        dropout=0.0 if ringed else 0.5,
        readout="sum" if readout == "sum" else "mean",
    )
    epochs = 100 if node else 60 if "MUTAG" in name else 30
    options: dict[str, Any] = {"epochs": epochs, "lr": 5e-3 if node or ringed else 2e-3}
    options["target"] = "values" if values else None
    gduq.fit(net, train, splits["id_val"], **options, weight_decay=1e-3, seed=seed, progress=False)
    some = splits["id_test"] if node else View(list(splits["id_test"].graphs)[:400])
    for kind in KINDS:
        change = getattr(gduq.shifts, kind)
        splits |= {f"{kind} {severity}": change(some, severity) for severity in (0, 5)}
    return {key: answered(net, view, values) for key, view in splits.items()}


def answered(net: torch.nn.Module, view: View, values: bool) -> Seen:
    """Features and structure of all rows, and how far off the network is."""
    p = gduq.predict(net, view, features=True)
    off = (p.mean - p.target.view(-1)).abs() if values else (p.label != p.target).double()
    structure = torch.cat([numbers(graph, view.task) for graph in view.batches()])
    return Seen(p.features.double(), off, structure)


# -- rules: how far rows are from some training rows -----------------------------------------------


def joint(
    known: Tensor, pair: Callable[[Tensor, Tensor], Tensor], k: int = 10, last: bool = False
) -> Far:
    """Mean over the k nearest, or the last of them, by cosines and quotients of lengths [m, R]."""
    unit, length = normalize(known, dim=1), known.norm(dim=1).clamp_min(1e-12)

    def far(rows: Tensor) -> Tensor:
        cosine = normalize(rows, dim=1) @ unit.T
        quotient = rows.norm(dim=1).clamp_min(1e-12).unsqueeze(1) / length
        near = pair(cosine, quotient).topk(min(k, len(known)), dim=1, largest=False).values
        return near[:, -1] if last else near.mean(dim=1)

    return far


def cosine(
    known: Tensor, val: Tensor, k: int = 10, last: bool = False, centred: bool = False
) -> Far:
    """Direction alone, seen from zero or from the mean."""
    centre = known.mean(dim=0) * centred
    far = joint(known - centre, lambda c, q: 1 - c, k, last)
    return lambda rows: far(rows - centre)


def length(known: Tensor, val: Tensor, weight: float = 0.5, k: int = 10) -> Far:
    """Direction, and the relative difference of lengths at some weight: gduq's rule."""
    return joint(known, lambda c, q: 1 - c + (weight * (q - 1)) ** 2 / 2, k)


def log_length(known: Tensor, val: Tensor, weight: float = 0.5) -> Far:
    """Direction, and the difference of logarithms of lengths."""
    return joint(known, lambda c, q: 1 - c + (weight * q.log()) ** 2 / 2)


def relative(known: Tensor, val: Tensor) -> Far:
    """Squared difference of rows in units of the training row's length."""
    return joint(known, lambda c, q: q * q + 1 - 2 * q * c)


def euclidean(known: Tensor, val: Tensor, standardised: bool = False) -> Far:
    """Plain distance, or that of features at mean 0 and deviation 1."""
    spread = known.std(dim=0) if standardised else torch.ones(known.size(1))
    spread = torch.where(spread > 0, spread, 1.0).to(known)
    k = min(10, len(known))

    def far(rows: Tensor) -> Tensor:
        distances: Tensor = torch.cdist(rows / spread, known / spread)
        return distances.topk(k, largest=False).values.mean(dim=1)

    return far


def ranks(known: Tensor, val: Tensor, join: Callable[[Tensor, Tensor], Tensor]) -> Far:
    """Two shares of validation rows: nearer in direction, and nearer to the middle in length."""
    near, middle = cosine(known, val), known.norm(dim=1).log().median()

    def odd(rows: Tensor) -> Tensor:
        gap: Tensor = rows.norm(dim=1).clamp_min(1e-12).log() - middle
        return gap.abs()

    return lambda rows: join(share(near(val), near(rows)), share(odd(val), odd(rows)))


CHOICES: dict[str, tuple[Callable[..., Far], dict[str, Any]]] = {
    "cosine": (cosine, {}),
    **{f"cosine, k={k}": (cosine, {"k": k}) for k in (1, 5, 50)},
    **{f"cosine, k-th of {k}": (cosine, {"k": k, "last": True}) for k in (5, 10, 50)},
    **{f"cosine, k={k}, 512 means": (cosine, {"k": k, "means": 512}) for k in (1, 10)},
    "cosine, centred": (cosine, {"centred": True}),
    **{f"cosine, {size} rows": (cosine, {"size": size}) for size in (512, 1024, 8192)},
    "plain Euclidean": (euclidean, {}),
    "Euclidean, standardised": (euclidean, {"standardised": True}),
    "cosine and length, larger rank": (ranks, {"join": torch.maximum}),
    "cosine and length, sum of ranks": (ranks, {"join": torch.add}),
    **{f"cosine + log length at {w}": (log_length, {"weight": w}) for w in (0.5, 1.0)},
    "relative to the training row": (relative, {}),
    **{f"cosine + length at {w}": (length, {"weight": w}) for w in (0.25, 0.5, 0.75, 1.0)},
    **{f"cosine + length at 0.5, k={k}": (length, {"k": k}) for k in (5, 50)},
    **{label: (length, {"structure": options}) for label, options in STRUCTURED.items()},
}


def fitted(
    rows: Rows,
    rule: Callable[..., Far],
    size: int = 2048,
    means: int = 0,
    structure: dict[str, Any] | None = None,
    **options: Any,
) -> Callable[[Seen], Tensor]:
    """What a rule makes of rows: their novelty, against some training rows."""
    train, val = rows["train"], rows["id_val"]
    kept = torch.randperm(len(train.h), generator=torch.Generator().manual_seed(0))[:size]
    known = train.h[kept]
    if 0 < means < len(train.h):
        found = MiniBatchKMeans(means, n_init=1, random_state=0).fit(normalize(train.h, dim=1))
        known = torch.as_tensor(found.cluster_centers_)
    by_h = rule(known, val.h, **options)
    if structure is None:
        return lambda seen: share(by_h(val.h), by_h(seen.h))
    return structured(by_h, train.structure[kept], val, **structure)


def judge(rows: Rows, rule: Callable[..., Far], **options: Any) -> list[float]:
    """The numbers of one row of the table: all that a dataset has to tell."""
    novelty, known = fitted(rows, rule, **options), len(rows["id_val"].h)
    said = {key: novelty(seen) for key, seen in rows.items()}
    same, other, off = said["id_test"], said["ood_val"], rows["ood_val"].off
    wrong = off > (0 if off.unique().numel() <= 2 else off.median())
    ood = roc_auc_score([0] * len(same) + [1] * len(other), torch.cat([same, other]))
    error = roc_auc_score(wrong, other) if 0 < wrong.sum() < len(wrong) else torch.nan
    scale = (len(same) * known / (len(same) + known)) ** 0.5
    distance = scale * stats.kstest(same.numpy(), "uniform").statistic
    rises = torch.stack([said[f"{kind} 5"].mean() - said[f"{kind} 0"].mean() for kind in KINDS])
    alarms = [float((part > 0.99).double().mean()) for part in (other, same)]
    return [ood, error, distance, float(rises.mean()), float((rises > 0).double().mean()), *alarms]


def shifts_structure(name: str) -> bool:
    """Whether a dataset is cut by size or degree."""
    return any(word in name for word in ("size", "degree", "rings"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", help="datasets, as in gduq.data.load, or rings")
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    every = [(name, seed) for name in args.names for seed in range(args.seeds)]
    cells = [rows_of(name, seed) for name, seed in every]
    shifted = torch.tensor([shifts_structure(name) for name, _ in every])
    auroc = "all | size, degree | others"
    columns = f"OOD, {auroc} | errors, {auroc} | KS | rise | higher | alarms OOD | alarms ID"
    print(f"| choice (else k=10, 2048 rows) | {columns} |")
    for label, (rule, options) in CHOICES.items():
        found = torch.tensor([judge(rows, rule, **options) for rows in cells])
        parts = [found[part, :2].nanmean(dim=0) for part in (shifted | True, shifted, ~shifted)]
        means = [*torch.stack(parts).T.flatten(), *found[:, 2:].mean(dim=0)]
        print(f"| {label} | " + " | ".join(f"{s:.3f}" for s in means) + " |", flush=True)


if __name__ == "__main__":
    main()
