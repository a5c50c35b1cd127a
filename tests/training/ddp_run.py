"""Training under several processes, run as a script by test_training (and imported by it)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from safetensors.torch import save_file
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv, global_mean_pool

import gduq
from gduq.data import View
from gduq.training import fit


class Net(nn.Module):
    """Two layers without BatchNorm and dropout: a sum over rows is a sum over processes."""

    def __init__(self, classes: int = 3, node_task: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = GraphConv(4, 8)
        self.head = nn.Linear(8, classes)
        self.node_task = node_task
        self.double()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.conv(x, edge_index).tanh()
        return self.head(h if self.node_task else global_mean_pool(h, batch))


def graphs(count: int, classes: int = 3, seed: int = 0) -> list[Data]:
    """Random graphs whose features tell their class."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        nodes = 3 + i % 4
        x = torch.randn(nodes, 4, generator=generator, dtype=torch.float64) + i % classes
        edges = torch.randint(nodes, (2, 2 * nodes), generator=generator)
        found.append(Data(x=x, edge_index=edges, y=torch.tensor([i % classes])))
    return found


def node_view(nodes: int = 41, marked: int = 25, classes: int = 3) -> View:
    """One graph, some of whose nodes are labelled."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(nodes, 4, generator=generator, dtype=torch.float64)
    edges = torch.randint(nodes, (2, 3 * nodes), generator=generator)
    y = torch.arange(nodes) ** 2 % classes
    return View(Data(x=x, edge_index=edges, y=y), torch.arange(marked))


def anchored(draws: int = 1) -> gduq.Anchored:
    """One fixed anchor: the same in every process."""
    anchors = torch.full((1, 8), 0.3, dtype=torch.float64)
    recipe = gduq.Recipe.paper("graph", num_anchors=1, anchors=anchors, draws=draws)
    return gduq.anchor(Net(), recipe=recipe, like=graphs(1)[0]).double()


def models(folder: Path, fabric: Fabric | None = None) -> dict[str, nn.Module]:
    """Every case, trained."""
    quick: dict[str, Any] = {"epochs": 4, "lr": 0.01, "progress": False, "fabric": fabric}
    found: dict[str, nn.Module] = {"graphs": Net(), "nodes": Net(node_task=True)}
    fit(found["graphs"], graphs(23), graphs(24, seed=5), batch_size=8, **quick)
    fit(found["nodes"], node_view(), class_weights="balanced", **quick)
    found["anchored"] = anchored(draws=2)
    fit(found["anchored"], graphs(21), batch_size=6, **quick)
    found["head"] = gduq.anchor(Net(), num_anchors=3, like=graphs(1)[0])
    fit(found["head"], graphs(21), graphs(24, seed=5), batch_size=6, **quick)
    # stopped and resumed
    fit(Net(), graphs(23), batch_size=8, resume=folder / "run", **{**quick, "epochs": 2})
    found["resumed"] = Net(seed=9)
    fit(found["resumed"], graphs(23), batch_size=8, resume=folder / "run", **quick)
    return found


def main() -> None:
    """Train in two processes and write what came out, with what both agree on."""
    folder = Path(sys.argv[1])
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    found = models(folder, fabric)
    # random anchors and BatchNorm: not as in one process, but all processes must agree
    net = gduq.nn.GNN(4, 8, 3, num_layers=3, virtual_node=True)
    found["batchnorm"] = gduq.anchor(net, at=1, anchors="gaussian", mask=0.2).double()
    options: dict[str, Any] = {"epochs": 2, "batch_size": 8, "fabric": fabric, "progress": False}
    history = fit(found["batchnorm"], graphs(23), graphs(24), **options)
    for name, model in found.items():
        save_file(dict(model.state_dict()), folder / f"{name}-{fabric.global_rank}.safetensors")
    history.to_pandas().to_csv(folder / f"history-{fabric.global_rank}.csv")
    _refused(fabric, folder)
    fabric.barrier()


def _refused(fabric: Fabric, folder: Path) -> None:
    """A loader that would show every process the same graphs."""
    loader = torch.utils.data.DataLoader(graphs(4), batch_size=None)
    try:
        fit(Net(), loader, epochs=1, fabric=fabric, progress=False)
    except gduq.InputError as error:
        (folder / f"refused-{fabric.global_rank}.txt").write_text(str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
