"""A backbone: any torch module. gduq finds its head and its layers in one pass over a graph."""

import tempfile

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv, global_mean_pool

import gduq


class SageNet(nn.Module):
    """Two layers of GraphSAGE, the mean of the nodes, a head. No word of anchors."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = SAGEConv(in_channels, hidden_channels)
        self.second = SAGEConv(hidden_channels, hidden_channels)
        self.head = nn.Linear(hidden_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        h = self.first(x, edge_index).relu()
        h = self.second(h, edge_index).relu()
        return self.head(global_mean_pool(h, batch))


def ring(label: int, generator: torch.Generator) -> Data:
    """A ring of eight nodes whose features have the label as their mean."""
    x = torch.randn(8, 3, generator=generator) + label
    node = torch.arange(8)
    return Data(x=x, edge_index=torch.stack([node, (node + 1) % 8]), y=torch.tensor([label]))


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    graphs = [ring(i % 3, generator) for i in range(120)]
    train, val, test = graphs[:80], graphs[80:100], graphs[100:]
    torch.manual_seed(0)
    net = SageNet(3, 16, 3)
    gduq.fit(net, train, val, epochs=3, lr=0.01)

    model = gduq.anchor(net)  # the head reads anchors, the network stays as it is
    gduq.fit(model, train, val)
    p = gduq.predict(model, test)
    print(model, p, sep="\n")

    inner = gduq.anchor(net, at=1, num_anchors=4)  # at the second convolution
    gduq.fit(inner, train, val, epochs=2)
    print(inner)

    with tempfile.TemporaryDirectory() as folder:
        gduq.save(model, f"{folder}/model")
        again, _ = gduq.load(f"{folder}/model", net=SageNet(3, 16, 3))  # yours built, ours filled
    assert torch.equal(gduq.predict(again, test).samples, p.samples)
