"""How would your model do on graphs unlike those it was trained on?"""

# %% Your graphs: here rings of 4 to 43 nodes
import torch
from torch_geometric.data import Data

import gduq
from gduq import shifts

generator = torch.Generator().manual_seed(0)


def ring(nodes: int) -> Data:
    line = torch.arange(nodes)
    edges = torch.stack([line, line.roll(1)])
    x = torch.randn(nodes, 3, generator=generator)
    label = int(x[:, 0].sum() > 0)
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=label)


graphs = [ring(4 + i % 40) for i in range(400)]

# %% Train on the smaller half, test on the largest
splits = shifts.size(graphs)
for split in ("train", "ood_test"):
    print(f"{split}: {splits.domains[split].double().mean():.1f} nodes on average")

# %% Two candidates: a trained network, and the same with an anchored head
torch.manual_seed(0)
net = gduq.nn.GNN(3, 16, 2, num_layers=2)
gduq.fit(net, splits.train, splits.id_val, epochs=10, progress=False)
anchored = gduq.anchor(net)
gduq.fit(anchored, splits.train, splits.id_val, progress=False)
models = {"plain": net, "anchored": anchored}
for name, model in models.items():
    found = gduq.evaluate(model, splits, calibrators=["temperature"], resamples=20)
    for split in ("id_test", "ood_test"):
        gap = found.value(split, "ece")
        print(f"{name}, {split}: ECE {gap.value:.3f} ({gap.low:.3f} to {gap.high:.3f})")

# %% Or damage what you have, step by step
for severity in (1, 3, 5):
    noisy = shifts.feature_noise(splits.id_test, severity)
    p = gduq.predict(anchored, noisy)
    accuracy, novelty = gduq.metrics.accuracy(p), p.novelty.mean()
    print(f"feature noise {severity}: accuracy {accuracy:.3f}, mean novelty {novelty:.2f}")
