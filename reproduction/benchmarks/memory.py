"""Peak memory of ``gduq.fit`` and ``gduq.predict`` against that of the plain network.

``python reproduction/benchmarks/memory.py [NODES FEATURES]`` trains PyG's ``GCN`` for three epochs
on a generated graph with dense features, of the size of Coauthor Physics unless told otherwise,
plain and with anchors, each in a process of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import gduq
from gduq.data import View


def main(nodes: int, features: int, anchored: bool) -> None:
    """Print the peak in MiB."""
    torch.manual_seed(0)
    x = torch.zeros(nodes, features)
    x[torch.randint(nodes, (33 * nodes,)), torch.randint(features, (33 * nodes,))] = 1.0
    ends, y = torch.randint(nodes, (2, 7 * nodes)), torch.randint(5, (nodes,))
    data = Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], dim=1), y=y)
    rows = torch.arange(nodes)
    network = GCN(features, 16, 2, out_channels=5)
    if anchored:
        model = gduq.anchor(network)
        train, val = View(data, rows[:100]), View(data, rows[100:400])
        gduq.fit(model, train, val, epochs=3, progress=False)
        gduq.predict(model, data)
    else:
        optimiser = torch.optim.Adam(network.parameters())
        for _ in range(3):
            optimiser.zero_grad()
            F.cross_entropy(network(x, data.edge_index)[:100], y[:100]).backward()
            optimiser.step()
        with torch.no_grad():
            network.eval()(x, data.edge_index)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    size = [int(number) for number in sys.argv[1:3]] or [34493, 8415]
    if len(sys.argv) > 3:
        main(*size, anchored=sys.argv[3] == "anchored")
    else:
        peaks = []
        for what in ("plain", "anchored"):
            command = [sys.executable, __file__, *map(str, size), what]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            peaks.append(float(done.stdout.split()[-1]))
        print(f"{size[0]} nodes, {size[1]} dense features: {peaks[0]:.0f} MiB plain, "
              f"{peaks[1]:.0f} MiB with anchors, {peaks[1] / peaks[0]:.2f}x")  # fmt: skip
