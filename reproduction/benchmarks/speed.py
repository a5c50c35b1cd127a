"""`make bench`: speed, every figure a ratio of medians measured side by side in this run: tasks
take turns, so that a busy moment hits all of them.

``python reproduction/benchmarks/speed.py [part of a row's group ...]`` measures some groups only.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN

import gduq
from gduq.data import View
from naive import NaiveGNN

HIDDEN = 300
REPEATS = 5
Row = tuple[str, float, str]  # what, ratio, note
Task = Callable[[], object]


def seconds(task: Task) -> float:
    """Of one run."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def medians(**tasks: Task) -> dict[str, float]:
    """Median seconds of each task."""
    for task in tasks.values():
        task()  # warm up: caches, allocator, threads
    turns = [{name: seconds(task) for name, task in tasks.items()} for _ in range(REPEATS)]
    return {name: statistics.median(turn[name] for turn in turns) for name in tasks}


# -- data --------------------------------------------------------------------------------------


def wide_graph() -> Data:
    """A graph of the shape of Coauthor CS, with sparse features."""
    generator = torch.Generator().manual_seed(0)
    nodes, words, edges, entries = 18333, 6805, 81894, 1_110_000
    ends = torch.randint(nodes, (2, edges), generator=generator)
    index = torch.stack([torch.randint(n, (entries,), generator=generator) for n in (nodes, words)])
    x = torch.sparse_coo_tensor(index, torch.ones(entries), (nodes, words)).coalesce()
    y = torch.randint(15, (nodes,), generator=generator)
    return Data(x=x.to_sparse_csr(), edge_index=torch.cat([ends, ends.flip(0)], dim=1), y=y)


def motif_graphs(count: int = 2000) -> list[Data]:
    """Motif graphs with four random features a node."""
    generator = torch.Generator().manual_seed(0)
    graphs = list(gduq.data.load("motif/basis/covariate", limit=2 * count).train.graphs)[:count]
    features = [torch.randn(graph.num_nodes, 4, generator=generator) for graph in graphs]
    pairs = zip(features, graphs, strict=True)
    return [Data(x=x, edge_index=g.edge_index, y=g.y) for x, g in pairs]


# -- groups of rows ----------------------------------------------------------------------------


def anchors_at_the_input() -> Iterator[Row]:
    """Against the plain way: dense pairs, a loop over anchors, PyG's layers."""
    graph = wide_graph()
    dense = Data(x=graph.x.to_dense(), edge_index=graph.edge_index, y=graph.y)
    net = gduq.nn.GNN(graph.x.size(1), HIDDEN, 15, 3, conv="gcn", task="node", dropout=0.0).eval()
    model = gduq.anchor(net, at="input", recipe="paper").fit_anchors(graph).eval()
    plain, naive = NaiveGNN(net).eval(), NaiveGNN(model).eval()
    with torch.no_grad():
        torch.testing.assert_close(
            model.sample(graph)[:2], naive.sample(dense, model.bank[:2]), rtol=1e-3, atol=1e-4
        )
        found = medians(
            ours=lambda: model.sample(graph),
            plain=lambda: plain(dense),
            naive=lambda: naive(dense, model.bank[0]),  # one of the loop's K equal passes
        )
    anchors = model.bank.size(0)
    yield "K = 10, the plain way / ours", anchors * found["naive"] / found["ours"], ""
    yield "K = 10, ours / one plain PyG pass", found["ours"] / found["plain"], ""
    mean, std = graph.x.to_dense().mean(dim=0), graph.x.to_dense().std(dim=0)

    def pairs() -> Tensor:
        drawn: Tensor = naive(dense, mean + torch.randn(graph.num_nodes, len(mean)) * std)
        return drawn

    found = medians(
        ours=_step(model.train(), lambda: model(graph), graph),
        vanilla=_step(net.train(), lambda: net(graph), graph),
        naive=_step(naive.train(), pairs, graph),
    )
    yield "training step, ours / our plain step", found["ours"] / found["vanilla"], ""
    yield "training step, the plain way / ours", found["naive"] / found["ours"], ""


def _step(net: nn.Module, forward: Callable[[], Tensor], graph: Data) -> Task:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(forward(), graph.y).backward()
        optimizer.step()

    return step


def anchors_in_graphs() -> Iterator[Row]:
    """At the readout and at hidden layers of a GIN, and an epoch of a frozen network."""
    graphs = motif_graphs()
    batch = Batch.from_data_list(graphs)
    net = gduq.nn.GNN(4, HIDDEN, 3, 3, conv="gin").eval()
    for at, anchors in (("readout", 10), ("readout", 100), (1, 10), (2, 10)):
        model = gduq.anchor(net, at=at, recipe="paper", num_anchors=anchors)
        model.fit_anchors(batch).eval()
        naive = NaiveGNN(model).eval()
        with torch.no_grad():
            found = medians(
                ours=lambda m=model: m.sample(batch),
                plain=lambda: net(batch),
                naive=lambda n=naive, m=model: n.sample(batch, m.bank),
            )
        yield f"at {at}, K = {anchors}, ours / one plain pass", found["ours"] / found["plain"], ""
        yield f"at {at}, K = {anchors}, ours / the plain way", found["ours"] / found["naive"], ""
    whole, frozen = (
        _epoch(gduq.anchor(net, at="readout", recipe="paper", freeze=freeze), graphs, 64)
        for freeze in (False, True)
    )
    yield "epoch, end to end / frozen readout", whole / frozen, ""


def _epoch(model: nn.Module, graphs: list[Data], batch_size: int) -> float:
    """Median seconds of an epoch of `gduq.fit`."""
    history = gduq.fit(model, graphs, epochs=REPEATS, batch_size=batch_size, progress=False)
    return statistics.median(epoch["seconds"] for epoch in history.records)


def epochs_against_pyg() -> Iterator[Row]:
    """An epoch of `gduq.fit` against the same network in plain PyG with its DataLoader."""
    graphs = motif_graphs()
    net = gduq.nn.GNN(4, HIDDEN, 3, 3, conv="gin")
    naive, loader = NaiveGNN(net), DataLoader(graphs, batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(naive.parameters(), lr=1e-3)

    def theirs() -> None:
        for batch in loader:
            optimizer.zero_grad()
            F.cross_entropy(naive(batch), batch.y.reshape(-1)).backward()
            optimizer.step()

    ours, pyg = _epoch(net, graphs, 32), medians(theirs=theirs)["theirs"]
    yield "epoch of a GIN, ours / PyG", ours / pyg, f"{ours:.2f} s for {len(graphs)} graphs"


def heads() -> Iterator[Row]:
    """The route of three lines on a network trained on Motif."""
    graphs = motif_graphs()
    train, val, test = graphs[:1200], graphs[1200:1600], graphs[1600:]
    net = gduq.nn.GNN(4, 64, 3, 3, conv="gin", head="mlp")
    options = {"progress": False}
    network = seconds(lambda: gduq.fit(net, train, val, epochs=30, calibrate=None, **options))
    model = gduq.anchor(net)
    fit = seconds(lambda: gduq.fit(model, train, val, **options))
    yield "fit of an anchored head / training the network", fit / network, ""
    chosen = seconds(lambda: gduq.choose(net, train, val, **options))
    yield "choose(budget=1.2) and training / training the network", 1 + chosen / network, ""
    found = medians(head=lambda: gduq.predict(model, test), plain=lambda: gduq.predict(net, test))
    yield "prediction, anchored head / plain network", found["head"] / found["plain"], ""


def memory() -> Iterator[Row]:
    """Of `gduq.fit` and `gduq.predict` on dense features, each in a process of its own."""
    peaks = []
    for anchored in (False, True):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            peaks.append(pool.submit(_peak, anchored).result())
    yield "peak, anchored head / plain network", peaks[1] / peaks[0], f"{peaks[0]:.0f} MiB plain"


def _peak(anchored: bool) -> float:
    """MiB of three epochs and a prediction."""
    graph = wide_graph()
    graph.x, net, rows = graph.x.to_dense(), GCN(6805, 16, 2, out_channels=15), torch.arange(400)
    if anchored:
        model, (train, val) = gduq.anchor(net), rows.split([100, 300])
        gduq.fit(model, View(graph, train), View(graph, val), epochs=3, progress=False)
        gduq.predict(model, graph)
    else:
        step = _step(net, lambda: net(graph.x, graph.edge_index), graph)
        for _ in range(3):
            step()
        with torch.no_grad():
            net.eval()(graph.x, graph.edge_index)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


GROUPS = (anchors_at_the_input, anchors_in_graphs, epochs_against_pyg, heads, memory)


def main(*chosen: str) -> None:
    """Print the machine, then a Markdown table with one and with two threads."""
    warnings.simplefilter("ignore")
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"On {platform.processor() or platform.machine()}, {os.cpu_count()} cores, {versions}.\n")
    print("| group | what | threads | ratio | |\n|---|---|---|---|---|", flush=True)
    for group in GROUPS:
        if not chosen or any(part in group.__name__ for part in chosen):
            for threads in (1, 2):
                torch.set_num_threads(threads)
                for what, ratio, note in group():
                    name = group.__name__.replace("_", " ")
                    print(f"| {name} | {what} | {threads} | {ratio:.2f} | {note} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
