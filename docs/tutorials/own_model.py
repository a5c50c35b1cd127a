"""Wrap a network of your own, trained in your own loop."""

# %% Any PyG model: here one that reads edge weights too
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

import gduq


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(4, 32), GCNConv(32, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, x, edge_index, edge_weight=None, batch=None):
        x = self.first(x, edge_index, edge_weight).relu()
        x = self.second(x, edge_index, edge_weight).relu()
        return self.out(global_mean_pool(x, batch))


def ring(nodes: int, generator: torch.Generator) -> Data:
    """A ring whose label is the sign of its mean feature."""
    line = torch.arange(nodes)
    edges = torch.stack([line, line.roll(1)])
    x = torch.randn(nodes, 4, generator=generator)
    return Data(x=x, edge_index=edges, edge_weight=torch.ones(nodes), y=int(x.mean() > 0))


generator = torch.Generator().manual_seed(0)
graphs = [ring(5 + i % 10, generator) for i in range(400)]
train, val, test = graphs[:240], graphs[240:320], graphs[320:]

# %% Your own training loop stays as it is
torch.manual_seed(0)
net = Mine()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(10):
    for batch in DataLoader(train, batch_size=64):
        optimizer.zero_grad()
        out = net(batch.x, batch.edge_index, batch.edge_weight, batch.batch)
        nn.functional.cross_entropy(out, batch.y).backward()
        optimizer.step()

# %% Wrap: its last part is one linear layer, so a second branch beside it reads the anchors
model = gduq.anchor(net)
gduq.fit(model, train, val, progress=False)
print(model)
p = gduq.predict(model, test)
print("accuracy", round(float(gduq.metrics.accuracy(p)), 3), "calibrated on", p.calibrated)

# %% Other places have names, too
for at, shape in gduq.cut_points(net, train[0]):
    print(at, shape)
hidden = gduq.anchor(net, at="second")  # trains on with the whole network, so it needs epochs
gduq.fit(hidden, train, val, epochs=3, progress=False)

# %% Sets with a guarantee, and a rule for when not to answer
p_val = gduq.predict(model, val)
sets = gduq.conformal.SplitConformal(alpha=0.1).fit(p_val)(p)
decision = gduq.ood.Abstention(coverage=0.8).fit(p_val)(p)
size = sets.size.float().mean()
print(f"sets hold the truth in {sets.coverage:.0%}, with {size:.2f} classes on average")
print(f"answering {decision.coverage:.0%}, right in {decision.accuracy:.0%} of the answers")

# %% A bundle holds no code: hand in the network, built as before, to load it
gduq.save(model, "out/tutorial-own")
again, _ = gduq.load("out/tutorial-own", net=Mine())
assert (gduq.predict(again, test).samples == p.samples).all()
