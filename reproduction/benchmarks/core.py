"""Speed of the core: anchors at the input, in hidden layers and at the readout, plain layers."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, GINConv

import gduq
from gduq.data.motif import draw_recipe
from gduq.data.motif_graphs import build_motif
from gduq.nn.layers import GCNLayer, GINLayer
from gduq.nn.neighbourhoods import Structure
from naive import NaiveGNN
from timing import Row, at_least, at_most, medians, peak_memory

HIDDEN = 300


def rows(repeats: int = 3) -> Iterator[Row]:
    """All rows, with one and with two threads."""
    graph, source = wide_graph()
    twice = generated_graph(2)
    graphs = motif_graphs(2000)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        label = f"{threads} thread" + "s" * (threads > 1)
        yield from _input_inference(graph, f"{source}, {label}", repeats)
        yield _larger_input(twice, f"generated, twice Coauthor CS, {label}", repeats)
        yield from _input_training(graph, f"{source}, {label}", repeats)
        yield from _readout(graphs, label, repeats)
        yield from _hidden(graphs, label, repeats)
        yield from _frozen(graphs, label, repeats)
        yield from _layers(graph, graphs, label, repeats)


# -- data --------------------------------------------------------------------------------------


def wide_graph() -> tuple[Data, str]:
    """Coauthor CS with sparse features, or a generated graph of its shape."""
    if os.environ.get("GDUQ_DATA"):
        with tempfile.TemporaryDirectory() as root:
            splits = gduq.data.load("coauthor-cs/word/no_shift", root=root)
            graph = next(splits.train.batches())
            return Data(x=graph.x, edge_index=graph.edge_index, y=graph.y), "Coauthor CS"
    return generated_graph(1), "generated like Coauthor CS"


def generated_graph(times: int) -> Data:
    """A graph with as many words as Coauthor CS and ``times`` its nodes, edges and entries of x."""
    generator = torch.Generator().manual_seed(0)
    nodes, words, edges, entries = times * 18333, 6805, times * 81894, times * 1_110_000
    ends = torch.randint(nodes, (2, edges), generator=generator)
    places = torch.stack(
        [
            torch.randint(nodes, (entries,), generator=generator),
            torch.randint(words, (entries,), generator=generator),
        ]
    )
    x = torch.sparse_coo_tensor(places, torch.ones(entries), (nodes, words)).coalesce()
    y = torch.randint(15, (nodes,), generator=generator)
    edge_index = torch.cat([ends, ends.flip(0)], dim=1)
    return Data(x=x.to_sparse_csr(), edge_index=edge_index, y=y)


def motif_graphs(count: int) -> list[Data]:
    """Motif graphs with four random features a node."""
    generator = torch.Generator().manual_seed(0)
    recipe, cut = draw_recipe("basis", "covariate", generator, total=4 * count)
    packed = build_motif(recipe, generator, cut)
    graphs = []
    for i in range(count):
        graph = packed[i]
        x = torch.randn(graph.num_nodes, 4, generator=generator)
        graphs.append(Data(x=x, edge_index=graph.edge_index, y=graph.y))
    return graphs


# -- the rows ----------------------------------------------------------------------------------


def _input_inference(graph: Data, label: str, repeats: int) -> Iterator[Row]:
    net = gduq.nn.GNN(graph.x.size(1), HIDDEN, 15, 3, conv="gcn", task="node").eval()
    model = gduq.anchor(net, at="input", recipe="paper").fit_bank(graph).eval()
    dense = _dense(graph)
    plain, naive = NaiveGNN(net).eval(), NaiveGNN(model).eval()
    with torch.no_grad():
        _check_equal(model.sample(graph)[:2], naive.sample(dense, model.bank[:2]))
        added = peak_memory(lambda: model.sample(graph))
        tasks = {
            "ours": lambda: model.sample(graph),
            "plain": lambda: plain(dense),
            "naive": lambda: naive(dense, model.bank[0]),  # one of the loop's K equal passes
        }
        seconds = medians(tasks, repeats)
    slow = model.bank.size(0) * seconds["naive"]
    yield at_least(
        f"input anchors, K = 10, against the plain way ({label})", slow / seconds["ours"], 30
    )
    yield at_most(
        f"input anchors, K = 10, against one plain PyG pass ({label})",
        seconds["ours"] / seconds["plain"],
        0.6,
    )
    if added is not None:
        met = added <= 1.0
        yield Row(
            row=f"  its peak memory, GB added ({label})", ratio=added, bar="<= 1", met=met, note=""
        )


def _larger_input(graph: Data, label: str, repeats: int) -> Row:
    """The same ratio on a larger graph; the plain way itself would not fit into memory there."""
    net = gduq.nn.GNN(graph.x.size(1), HIDDEN, 15, 3, conv="gcn", task="node").eval()
    model = gduq.anchor(net, at="input", recipe="paper").fit_bank(graph).eval()
    plain, dense = NaiveGNN(net).eval(), _dense(graph)
    tasks = {"ours": lambda: model.sample(graph), "plain": lambda: plain(dense)}
    with torch.no_grad():
        seconds = medians(tasks, repeats)
    ratio = seconds["ours"] / seconds["plain"]
    return at_most(f"input anchors, K = 10, against one plain PyG pass ({label})", ratio, 0.6)


def _input_training(graph: Data, label: str, repeats: int) -> Iterator[Row]:
    net = gduq.nn.GNN(graph.x.size(1), HIDDEN, 15, 3, conv="gcn", task="node", dropout=0.0)
    model = gduq.anchor(net, at="input", recipe="paper").fit_anchors(graph)
    dense = _dense(graph)
    plain, naive = net.train(), NaiveGNN(model).train()
    mean, std = model.source.mean.float(), model.source.std.float()

    def draw() -> torch.Tensor:
        return mean + torch.randn(graph.num_nodes, mean.numel()) * std

    tasks = {
        "ours": _step(model, lambda: model(graph), graph),
        "vanilla": _step(plain, lambda: plain(graph), graph),
        "naive": _step(naive, lambda: naive(dense, draw()), graph),
    }
    seconds = medians(tasks, repeats)
    yield at_most(
        f"input anchors, training step against our vanilla step ({label})",
        seconds["ours"] / seconds["vanilla"],
        1.4,
    )
    yield at_least(
        f"input anchors, training step against the plain way ({label})",
        seconds["naive"] / seconds["ours"],
        10,
    )


def _readout(graphs: list[Data], label: str, repeats: int) -> Iterator[Row]:
    batch = Batch.from_data_list(graphs)
    net = gduq.nn.GNN(4, HIDDEN, 3, 3, conv="gin").eval()
    tasks: dict[str, Callable[[], object]] = {"plain": lambda: net(batch)}
    for k in (10, 100):
        model = gduq.anchor(net, at="readout", recipe="paper", num_anchors=k).fit_bank(batch).eval()
        tasks[f"K = {k}"] = lambda model=model: model.sample(batch)
        with torch.no_grad():
            naive = NaiveGNN(model).eval().sample(batch, model.bank[:2])
            _check_equal(model.sample(batch)[:2], naive)
    with torch.no_grad():
        seconds = medians(tasks, repeats)
    for k, bar in ((10, 1.05), (100, 1.2)):
        ratio = seconds[f"K = {k}"] / seconds["plain"]
        yield at_most(f"readout, K = {k}, against one plain pass ({label})", ratio, bar)


def _hidden(graphs: list[Data], label: str, repeats: int) -> Iterator[Row]:
    batch = Batch.from_data_list(graphs)
    net = gduq.nn.GNN(4, HIDDEN, 3, 3, conv="gin").eval()
    for at, bar in ((1, 0.6), (2, 0.35)):
        model = gduq.anchor(net, at=at, recipe="paper", num_anchors=10).fit_bank(batch).eval()
        naive = NaiveGNN(model).eval()
        with torch.no_grad():
            _check_equal(model.sample(batch)[:2], naive.sample(batch, model.bank[:2]))
            tasks = {
                "ours": lambda m=model: m.sample(batch),
                "naive": lambda n=naive, m=model: n.sample(batch, m.bank),
            }
            seconds = medians(tasks, repeats)
        ratio = seconds["ours"] / seconds["naive"]
        yield at_most(f"layer {at} of 3, K = 10, against the naive loop ({label})", ratio, bar)


def _frozen(graphs: list[Data], label: str, repeats: int) -> Iterator[Row]:
    """Seconds an epoch, from the records of `gduq.fit` on the same graphs."""
    net = gduq.nn.GNN(4, HIDDEN, 3, 3, conv="gin")
    seconds = {}
    for freeze in (False, True):
        model = gduq.anchor(net, at="readout", recipe="paper", freeze=freeze)
        epochs = repeats * (5 if freeze else 1)
        history = gduq.fit(model, graphs, epochs=epochs, batch_size=64, progress=False)
        seconds[freeze] = statistics.median(epoch.seconds for epoch in history.records)
    ratio = seconds[False] / seconds[True]
    yield at_least(f"frozen readout, epoch against end to end ({label})", ratio, 20)


def _layers(graph: Data, graphs: list[Data], label: str, repeats: int) -> Iterator[Row]:
    batch = next(iter(DataLoader(graphs, batch_size=256)))
    x = {
        "wide": torch.randn(graph.num_nodes, HIDDEN),
        "small": torch.randn(batch.num_nodes, HIDDEN),
    }
    for name, g in (("wide", graph), ("small", batch)):
        ours = {
            "GCN": GCNLayer(HIDDEN, HIDDEN, 0.0, True),
            "GIN": GINLayer(HIDDEN, HIDDEN, 0.0, True),
        }
        mlp = torch.nn.Sequential(
            torch.nn.Linear(HIDDEN, 2 * HIDDEN),
            torch.nn.BatchNorm1d(2 * HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(2 * HIDDEN, HIDDEN),
        )
        theirs = {"GCN": GCNConv(HIDDEN, HIDDEN), "GIN": GINConv(mlp)}
        norm = torch.nn.BatchNorm1d(HIDDEN)
        for kind in ("GCN", "GIN"):
            layer, conv = ours[kind].eval(), theirs[kind].eval()
            norm.eval()
            structure = Structure.of(g)
            tasks = {
                "ours": lambda layer=layer, s=structure, h=x[name]: layer(h, s),
                "theirs": lambda conv=conv, norm=norm, g=g, h=x[name]: norm(conv(h, g.edge_index)),
            }
            with torch.no_grad():
                seconds = medians(tasks, repeats)
            where = "Coauthor-like graph" if name == "wide" else "256 Motif graphs"
            ratio = seconds["ours"] / seconds["theirs"]
            yield at_most(f"plain {kind} layer against PyG's, {where} ({label})", ratio, 1.0)


# -- help --------------------------------------------------------------------------------------


def _dense(graph: Data) -> Data:
    return Data(x=graph.x.to_dense(), edge_index=graph.edge_index, y=graph.y)


def _step(
    net: torch.nn.Module, forward: Callable[[], torch.Tensor], graph: Data
) -> Callable[[], None]:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(forward(), graph.y).backward()
        optimizer.step()

    return step


def _check_equal(ours: torch.Tensor, reference: torch.Tensor) -> None:
    torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-4)
