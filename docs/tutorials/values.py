"""Regression: values with intervals, from a network of your own."""

# %% A network with one output per value
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool

import gduq


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(4, 32), GCNConv(32, 32)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, edge_index, batch=None):
        x = self.first(x, edge_index).relu()
        x = self.second(x, edge_index).relu()
        return self.head(global_add_pool(x, batch))


def ring(nodes: int, generator: torch.Generator) -> Data:
    """A ring whose value is a noisy sum over its nodes, in kelvin."""
    line = torch.arange(nodes)
    x = torch.randn(nodes, 4, generator=generator)
    y = 300 + 5 * x[:, 0].sum() + 3 * torch.randn((), generator=generator)
    return Data(x=x, edge_index=torch.stack([line, line.roll(1)]), y=y.view(1))


generator = torch.Generator().manual_seed(0)
small = [ring(4 + i % 6, generator) for i in range(500)]
large = [ring(14 + i % 6, generator) for i in range(100)]
train, val, test = small[:300], small[300:400], small[400:]

# %% Train it, then wrap it: the head learns how far off it is
torch.manual_seed(0)
net = Mine()
gduq.fit(net, train, val, epochs=30, lr=3e-3)
model = gduq.anchor(net)
gduq.fit(model, train, val, target=gduq.prediction.Values(names=["melting point"], units=["K"]))

# %% Values come in the units of y
p = gduq.predict(model, test)
low, high = p.interval(0.9)
print(f"{p.mean[0]:.1f} K, 90 % interval {low[0]:.1f} to {high[0]:.1f}")
print(f"RMSE {gduq.metrics.rmse(p):.2f} K, coverage {gduq.metrics.coverage(p, 0.9):.2f}")

# %% Larger rings than any in training: novelty says so
shifted = gduq.predict(model, large)
print(f"novelty {p.novelty.mean():.2f} at home, {shifted.novelty.mean():.2f} under shift")

# %% Intervals with a guarantee, from validation rows
conformal = gduq.conformal.ConformalIntervals(alpha=0.1).fit(gduq.predict(model, val))
print(f"conformal coverage {conformal(p).coverage:.2f}")
