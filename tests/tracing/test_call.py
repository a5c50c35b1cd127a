"""Networks of all kinds are called with a graph; what they give back, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import RandomLinkSplit, ToUndirected

from gduq.errors import InputError
from gduq.graphs import label_rows, targets
from gduq.graphs.view import View
from gduq.tracing.call import call_network
from tests.conftest import tiny_graph


def hetero(papers: int = 4, authors: int = 5, seed: int = 0) -> HeteroData:
    generator = torch.Generator().manual_seed(seed)
    graph = HeteroData()
    graph["paper"].x = torch.randn(papers, 3, generator=generator).double()
    graph["paper"].y = torch.arange(papers) % 2
    graph["author"].x = torch.randn(authors, 2, generator=generator).double()
    ends = [torch.randint(n, (6,), generator=generator) for n in (authors, papers)]
    graph["author", "writes", "paper"].edge_index = torch.stack(ends)
    return ToUndirected()(graph)


class HeteroNet(nn.Module):
    """One `HeteroConv`; a dictionary of one tensor per type comes out."""

    def __init__(self, kinds: list[tuple[str, str, str]]) -> None:
        super().__init__()
        convs = {kind: pyg.SAGEConv((-1, -1), 3) for kind in kinds}
        self.conv = pyg.HeteroConv(convs)

    def forward(
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[object, Tensor]
    ) -> dict[str, Tensor]:
        return self.conv(x_dict, edge_index_dict)


class Plain(nn.Module):
    """Two layers, to be made heterogeneous by PyG."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = pyg.SAGEConv((-1, -1), 4), pyg.SAGEConv((-1, -1), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.two(self.one(x, edge_index).relu(), edge_index)


class Links(nn.Module):
    """Link prediction: the product of both ends, one logit per edge."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        source, target = self.conv(x, edge_index)[edge_label_index]
        return (source * target).sum(dim=1)


def function(forward):  # type: ignore[no-untyped-def]
    """A module that runs a function of any signature."""
    kind = type("Net", (nn.Module,), {"forward": forward})
    return kind()


GRAPH = tiny_graph(5, seed=3)


@pytest.mark.parametrize("kind", ["HeteroConv", "to_hetero"])
@pytest.mark.parametrize("graphs", [1, 2])
def test_a_dictionary_by_type_gives_the_rows_of_one(kind: str, graphs: int) -> None:
    graph = hetero()
    net = HeteroNet(graph.edge_types) if kind == "HeteroConv" else None
    net = (net or pyg.to_hetero(Plain(), graph.metadata())).double()
    whole = graph if graphs == 1 else Batch.from_data_list([graph, hetero(3, 2, 1)])
    out = call_network(net, whole)
    expected = net(whole.x_dict, whole.edge_index_dict)
    assert torch.equal(out, expected["paper"])
    (marked,) = View(whole, torch.tensor([0, 2]), node_type="author").batches()
    assert torch.equal(call_network(net, marked), expected["author"])


def test_batch_vectors_by_type_are_implied() -> None:
    def forward(self, x_dict, batch_dict):  # type: ignore[no-untyped-def]
        return pyg.global_mean_pool(x_dict["paper"], batch_dict["paper"])

    graph = hetero()
    out = call_network(function(forward), graph)
    torch.testing.assert_close(out, graph["paper"].x.mean(dim=0, keepdim=True))
    pair = Batch.from_data_list([graph, hetero(3, 2, 1)])
    torch.testing.assert_close(call_network(function(forward), pair)[:1], out)


def test_edges_to_be_judged() -> None:
    data = tiny_graph(12, seed=1)
    train, _, _ = RandomLinkSplit(num_val=0.2, num_test=0.2, is_undirected=True)(data)
    view, net = View(train, edges=True), Links().double()
    (graph,) = view.batches()
    out = call_network(net, graph)
    assert out.shape == (len(view), 1)
    assert torch.equal(out[:, 0], net(train.x, train.edge_index, train.edge_label_index))
    counted = label_rows(graph, out.size(0))
    assert torch.equal(targets(graph, out[counted].size(0)), train.edge_label)


ATOMS = Data(z=torch.tensor([1, 6, 8]), pos=torch.rand(3, 3), edge_index=torch.zeros(2, 0).long())


def test_arguments_that_have_defaults() -> None:
    given = {}

    def forward(self, z, pos=None, batch=None, edge_type=None, batch_size=None, more=None):  # type: ignore[no-untyped-def]
        given.update(pos=pos, batch=batch, batch_size=batch_size, more=more)
        return z.unsqueeze(1)

    graph = ATOMS.clone()
    graph.more = 3
    assert call_network(function(forward), graph).tolist() == [[1], [6], [8]]
    assert given["pos"] is graph.pos
    assert given["batch"] is given["batch_size"] is given["more"] is None


def test_batch_size_is_the_number_of_graphs_or_of_seeds() -> None:
    net = function(lambda self, x, batch_size: x[:batch_size])
    assert call_network(net, Batch.from_data_list([GRAPH, GRAPH])).size(0) == 2
    seeds = GRAPH.clone()
    seeds.batch_size = 3
    assert call_network(net, seeds).size(0) == 3


def test_one_logit_per_row() -> None:
    assert call_network(function(lambda self, x: x[:, 0]), GRAPH).shape == (5, 1)  # nodes
    assert call_network(function(lambda self, x: x.mean().view(1)), GRAPH).shape == (1, 1)  # graphs


def test_features_of_another_width_are_told_from_other_errors() -> None:
    net = pyg.GCN(7, 8, 2, 3).double()
    with pytest.raises(InputError, match="width 4"):
        call_network(net, GRAPH)
    single = pyg.GCN(4, 8, 2, 3)  # the right width, another dtype
    with pytest.raises(RuntimeError, match="dtype"):
        call_network(single, GRAPH)


REFUSED = {
    "no names": function(lambda self, *args: args[0]),
    "a tuple": function(lambda self, x: (x, None)),
    "nothing": function(lambda self, x: None),
    "a dictionary": function(lambda self, x: {"paper": x}),
    **{  # three numbers for a graph of five nodes are no rows, but classes that lost their row
        str(shape): function(lambda self, x, shape=shape: torch.zeros(shape))
        for shape in ((), (3,), (5, 3, 1))
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_matrix_needs_call(name: str) -> None:
    with pytest.raises(InputError, match="call=lambda net, graph"):
        call_network(REFUSED[name], GRAPH)
    assert torch.equal(call_network(REFUSED[name], GRAPH, lambda net, graph: graph.x), GRAPH.x)


# -- what a network may do to its input ------------------------------------------------------------


class Writes(nn.Module):
    """Keeps its representation on the graph, as many examples do."""

    def __init__(self, kinds: list[tuple[str, str, str]] | None = None) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(4, 4) if kinds is None else HeteroNet(kinds).conv

    def forward(self, data: Data | HeteroData) -> Tensor:
        if isinstance(data, HeteroData):
            found = self.conv(data.x_dict, data.edge_index_dict)
            data["paper"].x = found["paper"]
            return data["paper"].x
        data.x = self.conv(data.x, data.edge_index)
        data.hidden = data.x
        return data.x


@pytest.mark.parametrize("kind", ["graph", "batch", "hetero", "call"])
def test_what_a_network_writes_on_its_input_stays_its_own(kind: str) -> None:
    graph = {"hetero": hetero(), "batch": Batch.from_data_list([GRAPH, GRAPH])}.get(kind)
    graph = GRAPH.clone() if graph is None else graph
    net = Writes(graph.edge_types if kind == "hetero" else None).double()
    before = {id(store): dict(store) for store in graph.stores}
    call = (lambda net, graph: net(graph)) if kind == "call" else None
    first = call_network(net, graph, call)
    assert torch.equal(first, call_network(net, graph, call))
    for store in graph.stores:
        assert {k: id(v) for k, v in store.items()} == {
            k: id(v) for k, v in before[id(store)].items()
        }


@pytest.mark.parametrize("kind", ["GCNConv", "SGConv", "APPNP"])
def test_layers_that_cache_a_graph_see_every_graph(kind: str) -> None:
    """A cache of an earlier pass is neither used nor lost."""
    other = tiny_graph(5, seed=4)
    other.edge_index = other.edge_index[:, :2]
    plain = pyg.APPNP(2, 0.1) if kind == "APPNP" else getattr(pyg, kind)(4, 3).double()
    cached = copy.deepcopy(plain)
    cached.cached = True
    known = cached(GRAPH.x, GRAPH.edge_index)
    held = {name: value for name, value in vars(cached).items() if name.startswith("_cached")}
    assert any(value is not None for value in held.values())
    assert torch.equal(call_network(cached, other), call_network(plain, other))
    assert not torch.equal(call_network(cached, other), known)
    assert cached.cached
    assert all(getattr(cached, name) is value for name, value in held.items())
