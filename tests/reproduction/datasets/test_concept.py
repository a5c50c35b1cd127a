"""The concept cut against a slow reference and published counts."""

from functools import partial

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gduq import shifts
from gduq_reproduction.datasets.concept import concept
from tests.data.real import real
from tests.shifts.cases import assert_partition


def slow_concept(values, labels, bias, pick, seed):
    """The five passes of the definition, one row at a time, with the same uniform numbers."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    domains = sorted(set(values))
    earlier = {d: sum(v < d for v in values) for d in domains}
    sign = {d: 1 if earlier[d] < n / 2 else -1 for d in domains}
    mean = sum(labels) / n
    left = sorted(range(n), key=lambda i: values[i])
    parts = {"train": [], "ood_test": [], "ood_val": []}
    for step, name in enumerate(("train", "ood_test", "train", "train", "ood_val")):
        if step == 4:
            parts[name] += left
            break
        draws = torch.rand(len(left), 2, generator=generator, dtype=torch.float64).tolist()
        drawn = dict(zip(left, draws, strict=True))
        flip = 1 if name == "train" else -1
        taken = []
        for domain in domains:
            rows = [i for i in left if values[i] == domain]
            kinds = {True: ([], []), False: ([], [])}  # taken, rejected
            for i in rows:
                u, v = drawn[i]
                aligned = flip * sign[domain] * (labels[i] - mean) > 0
                good = (v < bias[step] if aligned else v > bias[step]) and u < pick[step]
                kinds[aligned][0 if good else 1].append(i)
            present = all(k[0] or k[1] for k in kinds.values())
            got = {kind: bool(k[0]) for kind, k in kinds.items()}
            if present and any(got.values()):
                for kind, (_, rejected) in kinds.items():
                    if not got[kind]:
                        kinds[kind][0].append(rejected[-1])
            taken += [i for k in kinds.values() for i in k[0]]
        parts[name] += taken
        left = [i for i in left if i not in set(taken)]
    return parts


@settings(deadline=None, max_examples=40)
@given(st.integers(40, 120), st.integers(1, 12), st.integers(2, 5), st.integers(0, 1000))
def test_concept_is_the_slow_definition(n, domains, classes, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, domains, n).tolist()
    labels = rng.integers(0, classes, n).tolist()
    bias, pick = (0.9, 0.8, 0.85, 0.7), (0.4, 0.6, 0.5, 1.0)
    slow = slow_concept(values, labels, bias, pick, seed)
    if min(map(len, slow.values())) == 0 or len(slow["train"]) < 14:
        return
    cut = concept(torch.tensor(values), torch.tensor(labels), bias=bias, pick=pick, seed=seed)
    assert_partition(cut, n)
    pool = torch.cat([cut["train"], cut["id_val"], cut["id_test"]])
    assert sorted(pool.tolist()) == sorted(slow["train"])
    assert sorted(cut["ood_test"].tolist()) == sorted(slow["ood_test"])
    assert sorted(cut["ood_val"].tolist()) == sorted(slow["ood_val"])
    assert len(cut["id_val"]) == len(cut["id_test"]) == int(0.15 * len(pool))


def test_published_cora_degree_counts():
    """Full Cora, whose structure is at hand. The published table has these numbers under *word*
    and others under *degree*: its two headings are exchanged, for 3454 nodes have one neighbour,
    3003 have two, and nothing else gives these five numbers."""
    path = real("CoraFull_structure_only/cora_full_graph_and_labels.npz")
    with np.load(path) as file:
        edges, labels = file["edge_index"].astype(np.int64), file["labels"].astype(np.int64)
    labels = torch.from_numpy(labels)
    graph = Data(edge_index=torch.from_numpy(edges), y=labels, num_nodes=len(labels))
    splits = shifts.by(graph, "degree", descending=True)
    assert [len(view) for _, view in splits] == [9378, 1979, 1979, 3003, 3454]
    turned = partial(concept, labels=graph.y)
    cuts = (shifts.by(graph, "degree", turned, seed=seed) for seed in range(40))
    sizes = torch.tensor([[len(view) for _, view in cut] for cut in cuts]).double()
    for published in ([7273, 1558, 1558, 3807, 5597], [7281, 1560, 1560, 3706, 5686]):
        gap = (torch.tensor(published) - sizes.mean(0)).abs()
        assert (gap < 3 * sizes.std(0)).all()
