"""Networks of all kinds are called with a graph; what they give back, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import ToUndirected

from gduq.errors import InputError
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


def function(forward):  # type: ignore[no-untyped-def]
    """A module that runs a function of any signature."""
    kind = type("Net", (nn.Module,), {"forward": forward})
    return kind()


GRAPH = tiny_graph(5, seed=3)


@pytest.mark.parametrize("graphs", [1, 2])
def test_a_dictionary_by_type_gives_the_rows_of_one(graphs: int) -> None:
    graph = hetero()
    net = HeteroNet(graph.edge_types).double()
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


@pytest.mark.parametrize("graph", [GRAPH, hetero()], ids=["graph", "hetero"])
def test_what_a_network_writes_on_its_input_stays_its_own(graph: Data | HeteroData) -> None:
    net = Writes(graph.edge_types if isinstance(graph, HeteroData) else None).double()
    before = [{name: id(value) for name, value in store.items()} for store in graph.stores]
    first = call_network(net, graph)
    assert torch.equal(first, call_network(net, graph))
    after = [{name: id(value) for name, value in store.items()} for store in graph.stores]
    assert after == before


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
