"""Slips that nothing downstream would show are said: rows used twice, rows in another order."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

import gduq
from gduq.data import Packed, View
from gduq.nn import GNN
from gduq.training.fitting import GraphLearner
from gduq.training.rows import HeadLearner
from tests.conftest import tiny_graph

CHANNELS, CLASSES = 4, 3


def graphs(count: int, first: int = 0) -> list[Data]:
    return [tiny_graph(4 + i % 3, seed=first + i) for i in range(count)]


class InMemory(InMemoryDataset):
    """A PyG dataset as users have them: a slice of it is a copy."""

    def __init__(self, data: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(data)


def node_graph() -> Data:
    graph = tiny_graph(30, seed=1)
    graph.y = torch.arange(30) % CLASSES
    return graph


def said(train, val, model=None) -> list[str]:
    """What `gduq.fit` says about its rows."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        net = model or GNN(CHANNELS, 4, CLASSES, num_layers=1, task="graph").double()
        gduq.fit(net, train, val, epochs=1, calibrate=None, progress=False)
    found = [w for w in found if "training rows" in str(w.message)]
    assert all(w.filename == __file__ for w in found), "points at the user's line"
    return [str(w.message) for w in found]


def node_model() -> GNN:
    return GNN(CHANNELS, 4, CLASSES, num_layers=1, task="node").double()


ALL, OTHERS = graphs(24), graphs(9, first=100)
IN_MEMORY = InMemory(ALL)
PACKED = Packed.pack(ALL)


@pytest.mark.parametrize(
    ("train", "val", "share"),
    [
        (ALL, ALL, "24 of 24"),
        (ALL[:20], ALL[17:], "3 of 7"),
        (View(ALL[:20]), ALL[17:], "3 of 7"),
        (PACKED[torch.arange(20)], PACKED[torch.arange(17, 24)], "3 of 7"),
        (IN_MEMORY[:20], IN_MEMORY[17:], "3 of 7"),
        (Subset(IN_MEMORY, range(20)), IN_MEMORY[17:], "3 of 7"),
        (DataLoader(ALL[:20], 8, shuffle=True), ALL[17:], "3 of 7"),
    ],
)
def test_graphs_in_both_roles_are_counted(train, val, share):
    (text,) = said(train, val)
    assert text.startswith(f"{share} validation rows are training rows too: ")


@pytest.mark.parametrize(
    ("train", "val"),
    [
        (ALL[:15], ALL[15:]),
        (ALL, OTHERS),
        (ALL, [copy.deepcopy(graph) for graph in ALL]),  # not looked into: this must be cheap
        (PACKED[torch.arange(15)], PACKED[torch.arange(15, 24)]),
        (IN_MEMORY, InMemory(ALL)),
        (Subset(ALL, range(15)), Subset(ALL, range(15, 24))),
        (DataLoader(ALL[:15], 8, shuffle=True), DataLoader(ALL[15:], 8)),
        (TorchLoader([Batch.from_data_list(ALL)], batch_size=None), OTHERS),
    ],
)
def test_nothing_is_said_of_other_graphs(train, val):
    assert said(train, val) == []


def test_nodes_in_both_roles_are_counted():
    graph, low = node_graph(), torch.arange(30) < 20
    high = torch.arange(30) >= 17
    (text,) = said(View(graph, low), View(graph, high), node_model())
    assert text.startswith("3 of 13 validation rows")
    # a dataset of one graph hands out a new object every time, with the same tensors
    (text,) = said(View(copy.copy(graph), low), View(copy.copy(graph), high), node_model())
    assert text.startswith("3 of 13 validation rows")
    (text,) = said(graph, graph, node_model())
    assert text.startswith("30 of 30 validation rows")
    assert said(View(graph, low), View(graph, ~low), node_model()) == []
    assert said(View(graph, low), View(graph.clone(), high), node_model()) == []


class WholeGraph(BaseSampler):
    """All nodes, the seeds first: PyG's own samplers need a library that is not here."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def sample_from_nodes(self, index: NodeSamplerInput, **_: object) -> SamplerOutput:
        count = int(self.data.num_nodes)
        others = torch.ones(count, dtype=torch.bool).index_fill_(0, index.node, False)
        nodes = torch.cat([index.node, torch.nonzero(others).flatten()])
        row, col = torch.argsort(nodes)[self.data.edge_index]
        edges = torch.arange(row.numel())
        return SamplerOutput(nodes, row, col, edges, metadata=(index.input_id, index.time))

    def sample_from_edges(self, index: object, **_: object) -> SamplerOutput:
        raise NotImplementedError


def test_seed_nodes_of_neighbour_loaders_are_counted():
    graph = node_graph()

    def loader(first: int, last: int) -> NodeLoader:
        nodes = torch.arange(first, last)
        return NodeLoader(graph, WholeGraph(graph), nodes, batch_size=8)

    (text,) = said(loader(0, 20), loader(17, 30), node_model())
    assert text.startswith("3 of 13 validation rows")
    (text,) = said(View(graph, torch.arange(20)), loader(17, 30), node_model())
    assert text.startswith("3 of 13 validation rows")
    assert said(loader(0, 20), loader(20, 30), node_model()) == []


# -- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [None, ["red", "green", "blue"]])
@pytest.mark.parametrize("how", ["fit", "head", "choose"])
@pytest.mark.filterwarnings("ignore:the hypotheses hardly disagree")
def test_classes_without_training_rows_are_named(how, names):
    train = [graph for graph in ALL if int(graph.y) != 1]
    net = GNN(CHANNELS, 4, CLASSES, num_layers=1, task="graph", head="mlp").double()
    val = graphs(24, first=100)
    wrong = sum(int(graph.y) == 1 for graph in val)
    named = "class 1" if names is None else "'green'"
    run = {
        "fit": lambda **given: gduq.fit(net, train, val, epochs=1, **given),
        "head": lambda **given: gduq.fit(gduq.anchor(net, num_anchors=2), train, val, **given),
        "choose": lambda **given: gduq.choose(net, train, val, **given),
    }[how]
    with pytest.warns(UserWarning, match=f"{wrong} of 24 .* no training row has, .* {named}"):
        run(class_names=names, progress=False)


@pytest.mark.parametrize(
    ("at", "learner"), [(1, GraphLearner), ("head", HeadLearner), ("head", None)]
)
def test_what_a_failed_fit_leaves_is_not_calibrated(at, learner, monkeypatch):
    """Interrupted, or refused."""
    torch.manual_seed(0)
    net = GNN(CHANNELS, 4, CLASSES, num_layers=2, task="graph", head="mlp").double()
    model, val = gduq.anchor(net, at=at, num_anchors=2), graphs(24, first=100)
    gduq.fit(model, ALL, val, epochs=3, progress=False)
    assert gduq.predict(model, OTHERS).calibrated == "shifted"
    target, more = model.target, {"batch_size": 8, "epochs": 3, "progress": False}
    if learner is None:
        val[0].y = torch.tensor([CLASSES + 2])
    else:

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(learner, "losses", interrupt)
    with pytest.raises((KeyboardInterrupt, gduq.InputError)):
        gduq.fit(model, ALL, val, **more)
    p = gduq.predict(model, OTHERS)
    assert (p.calibrated, p.novelty, p.trust) == (None, None, None)
    assert model.target == target
    assert not model.training


@pytest.mark.parametrize("how", ["fit", "head", "choose"])
def test_a_loader_of_a_masked_graph_is_refused(how):
    """It would train on test labels."""
    graph = node_graph()
    graph.train_mask, net = (
        torch.arange(30) < 20,
        GNN(CHANNELS, 4, CLASSES, num_layers=1, task="node", head="mlp").double(),
    )
    val = View(graph, torch.arange(30) >= 20)
    run = {
        "fit": lambda: gduq.fit(net, DataLoader([graph]), val, epochs=1),
        "head": lambda: gduq.fit(gduq.anchor(net), DataLoader([graph]), val),
        "choose": lambda: gduq.choose(net, DataLoader([graph]), val),
    }[how]
    with pytest.raises(gduq.InputError, match=r"train_mask, whose test labels would be used too"):
        run()


# -- order ---------------------------------------------------------------------------------------
