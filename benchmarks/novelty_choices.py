"""How novelty is measured: neighbours, reference rows, centring, against what it has to tell.

    GDUQ_DATA=RAW python benchmarks/novelty_choices.py tu/PROTEINS/size cbas/color/covariate

One row per choice: AUROC for OOD rows (against ID test) and for the network's errors on OOD rows,
averaged over the datasets, and the distance of ID test rows from uniform (Kolmogorov-Smirnov times
the root of the number of rows: 1.36 is the 5 % level). OOD rows are those of ood_val: choices are
made on them, and ood_test stays unseen.
"""

from __future__ import annotations

import argparse

import torch
from scipy import stats
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import normalize

import gduq
from gduq.data import load

Rows = dict[str, tuple[Tensor, Tensor]]  # split -> features [m, d], whether the network errs [m]
CHOICES = [
    *({"k": k} for k in (1, 5, 10, 50)),
    *({"k": k, "mean": False} for k in (5, 10, 50)),
    *({"size": size} for size in (512, 1024, 2048, 8192)),
    *({"k": k, "size": 512, "kmeans": True} for k in (1, 10)),
    {"centred": True},
]


def rows_of(name: str, seed: int) -> Rows:
    """Train a small network and keep its rows before the head."""
    splits = dict(load(name, seed=0))
    train, node = splits["train"], "tu/" not in name
    classes = 1 + int(max(view.target.max() for view in splits.values()))
    width = train.graphs[0].x.size(1)
    torch.manual_seed(seed)
    conv, task = ("gcn", "node") if node else ("gin", "graph")
    net = gduq.nn.GNN(width, 64, classes, 3, conv=conv, task=task, head="mlp", dropout=0.5)
    options = {"epochs": 200, "lr": 5e-3} if node else {"epochs": 60, "lr": 1e-3}
    gduq.fit(net, train, splits["id_val"], **options, weight_decay=1e-3, seed=seed, progress=False)
    found = {k: gduq.predict(net, view, features=True) for k, view in splits.items()}
    return {k: (p.features.double(), p.label != p.target) for k, p in found.items()}


def judge(
    rows: Rows,
    k: int = 10,
    size: int = 4096,
    mean: bool = True,
    centred: bool = False,
    kmeans: bool = False,
) -> list[float]:
    """AUROC for OOD rows, for errors on them, and the scaled distance from uniform."""
    centre = rows["train"][0].mean(dim=0) * centred
    known = normalize(rows["train"][0] - centre, dim=1)
    if len(known) > size and kmeans:
        found = MiniBatchKMeans(size, n_init=1, random_state=0).fit(known.numpy())
        known = normalize(torch.as_tensor(found.cluster_centers_), dim=1)
    elif len(known) > size:
        known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:size]]

    def far(split: str) -> Tensor:
        nearest = (normalize(rows[split][0] - centre, dim=1) @ known.T).topk(min(k, len(known)))[0]
        return 1 - (nearest.mean(dim=1) if mean else nearest[:, -1])

    same, other, val = far("id_test"), far("ood_val"), far("id_val").sort().values
    ood = roc_auc_score([0] * len(same) + [1] * len(other), torch.cat([same, other]))
    wrong = roc_auc_score(rows["ood_val"][1], other)
    share = torch.searchsorted(val, same) / len(val)
    distance = stats.kstest(share.numpy(), "uniform").statistic
    return [ood, wrong, distance * (len(same) * len(val) / (len(same) + len(val))) ** 0.5]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", help="datasets, as in gduq.data.load")
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    cells = [rows_of(name, seed) for name in args.names for seed in range(args.seeds)]
    print("| choice (else k=10, 4096 random rows, mean, as they are) | OOD | errors | KS |")
    for choice in CHOICES:
        scores = torch.tensor([judge(rows, **choice) for rows in cells]).mean(dim=0).tolist()
        label = ", ".join(f"{name}={value}" for name, value in choice.items())
        print(f"| {label} | " + " | ".join(f"{s:.3f}" for s in scores) + " |")


if __name__ == "__main__":
    main()
