"""`BondGNN`: categories, bonds, the head that `gduq.anchor` finds, bundles, and learning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Batch, Data

import gduq
from gduq.errors import InputError
from gduq.nn import BondGNN
from gduq.nn.bond_gnn import ATOMS, BONDS
from gduq.nn.gnn import network_from, network_spec


def molecule(seed: int, atoms: int = 6) -> Data:
    """A ring of random atoms and bonds."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda n, sizes: torch.stack(  # noqa: E731
        [torch.randint(size, (n,), generator=g) for size in sizes], dim=1
    )
    x, bond, ring = draw(atoms, ATOMS).float(), draw(atoms, BONDS).float(), torch.arange(atoms)
    one = torch.stack([ring, ring.roll(-1)])
    return Data(x=x, edge_index=torch.cat([one, one.flip(0)], dim=1), edge_attr=bond.repeat(2, 1))


def network(**settings: float) -> BondGNN:
    torch.manual_seed(0)
    return BondGNN(**{"hidden_channels": 16, **settings}).eval()  # type: ignore[arg-type]


def test_unknown_categories_count_as_the_last() -> None:
    net, graph, last = network(), molecule(1), molecule(1)
    graph.x[:, 0], last.x[:, 0] = 500.0, ATOMS[0] - 1.0
    graph.edge_attr[:, 1], last.edge_attr[:, 1] = 77.0, BONDS[1] - 1.0
    assert torch.equal(net(graph), net(last))
    graph.x[:, 0], last.x[:, 0] = -3.0, 0.0
    assert torch.equal(net(graph), net(last))


def test_batch_mates_and_the_order_of_atoms_and_bonds_do_not_matter() -> None:
    net, graphs = network(), [molecule(i, atoms=3 + i) for i in range(4)]
    alone = torch.cat([net(graph) for graph in graphs])
    torch.testing.assert_close(net(Batch.from_data_list(graphs)), alone)
    graph, order = graphs[3], torch.randperm(6, generator=torch.Generator().manual_seed(1))
    moved = Data(
        x=graph.x[order],
        edge_index=order.argsort()[graph.edge_index].flip(1),
        edge_attr=graph.edge_attr.flip(0),
    )
    torch.testing.assert_close(net(moved), net(graph))


def test_single_atoms() -> None:
    graph = Data(
        x=torch.zeros(1, 9), edge_index=torch.zeros(2, 0).long(), edge_attr=torch.zeros(0, 3)
    )
    net = network(dropout=0.0)
    out = net(graph)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(net.train()(graph), out)  # one atom has no variance


@pytest.mark.parametrize("at", [1, "head.0"])
def test_it_comes_back_from_a_bundle(tmp_path: Path, at: int | str) -> None:
    graphs = [molecule(i) for i in range(40)]
    for i, graph in enumerate(graphs):
        graph.y = torch.tensor([i % 2])
    net = network(out_channels=2, num_layers=2)
    assert network_from(network_spec(net)).config == net.config  # type: ignore[comparison-overlap]
    model = gduq.anchor(net, at=at, like=graphs[0])
    gduq.fit(model, graphs[:15], graphs[15:], epochs=1)
    before = gduq.predict(model, graphs).samples
    gduq.save(model, tmp_path / "model")
    assert torch.equal(gduq.predict(gduq.load(tmp_path / "model")[0], graphs).samples, before)


@pytest.mark.parametrize(
    "settings", [{"out_channels": 0}, {"hidden_channels": 0}, {"num_layers": 0}, {"dropout": 1.0}]
)
def test_wrong_settings_and_graphs_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError):
        network(**settings)
    for columns in (4, 9):  # also without edge_attr
        with pytest.raises(InputError):
            network()(Data(x=torch.ones(3, columns), edge_index=torch.zeros(2, 0).long()))
