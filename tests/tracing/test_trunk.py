"""Cuts by a hook: what arrives, what goes on, also in two threads at once."""

from __future__ import annotations

import threading

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from gduq.tracing.call import call_network
from gduq.tracing.trunk import Trunk, run_through
from tests.tracing.test_trace import graphs


class Meets(nn.Module):
    """A network whose pass waits until another thread is in the middle of its own."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__()
        self.conv, self.lin = pyg.GCNConv(4, 8), nn.Linear(8, 3)
        self.barrier, self.meets = barrier, False

    def __deepcopy__(self, memo: dict[int, object]) -> Meets:
        twin = Meets(self.barrier)
        twin.load_state_dict(self.state_dict())
        return twin.to(self.lin.weight.dtype)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv(x, edge_index).relu()
        if self.meets:
            self.barrier.wait(timeout=20)  # fails unless both are here at once
        return self.lin(h)


def test_one_network_is_cut_by_two_threads_at_once() -> None:
    barrier, graph = threading.Barrier(2), graphs()
    net = Meets(barrier).double().eval()
    trunk, found = Trunk.of(net, graph), {}
    h, out = trunk(graph), call_network(net, graph)
    net.meets = True

    def work(factor: float) -> None:
        found[factor] = run_through(net, "lin", graph, None, lambda h: h * factor)[1]

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (1.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(found[1.0], out)
    torch.testing.assert_close(found[3.0], net.lin(3 * h))
    assert not net.lin._forward_pre_hooks
