"""A target: counts. The network gives the logarithm of a rate, and y is Poisson around it."""

from dataclasses import dataclass

import torch
from torch_geometric.data import Data

import gduq
from gduq.prediction import Target, ValuePrediction


@dataclass(frozen=True)
class Counts(Target):
    kind = "counts"
    mean: float = 1.0  # of y in training; rows without an anchor are trained towards it

    def fit(self, sample):
        if sample.outputs.size(1) != 1:
            raise gduq.InputError("one output for counts", sample.outputs.size(1))
        return Counts(float(self.check(sample.y, "train").mean()))

    def check(self, y, name):
        if bool(((y < 0) | (y != y.round())).any()):
            raise gduq.InputError(f"whole numbers from 0 up in {name}", "others")
        return y.reshape(-1, 1).float()

    def losses(self, outputs, y):  # [..., m, 1] and [m, 1] -> [..., m, 1]
        return outputs.exp() - y * outputs + torch.lgamma(y + 1)

    def masked_losses(self, outputs):
        return self.losses(outputs, outputs.new_tensor(self.mean))

    def scaled(self, samples, temperature, weights=None):  # no width of its own: hypotheses move
        centre = samples.mean(dim=-3, keepdim=True)
        return centre + temperature.to(samples) * (samples - centre)

    def prediction(self, samples, y=None, **more):  # its mean and its variance are the rate
        return ValuePrediction(torch.cat([samples.exp(), samples], dim=-1), y, **more)


if __name__ == "__main__":
    edges, rates = torch.tensor([[0, 1], [1, 0]]), torch.arange(300) % 8 + 1.0
    y = torch.poisson(rates, generator=torch.Generator().manual_seed(0))
    graphs = [Data(x=r.expand(2, 1), edge_index=edges, y=c) for r, c in zip(rates, y, strict=True)]
    net = gduq.nn.GNN(1, 16, 1, num_layers=2, dropout=0.0, head="mlp")
    gduq.fit(net, graphs[:200], graphs[200:250], epochs=3, lr=0.01, target=Counts())
    model = gduq.anchor(net)
    gduq.fit(model, graphs[:200], graphs[200:250], target=Counts())
    p = gduq.predict(model, graphs[250:])
    print(p, p.mean[:3], p.std[:3], gduq.metrics.rmse(p), sep="\n")
