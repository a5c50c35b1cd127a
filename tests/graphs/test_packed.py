"""Packed graphs against PyG's own batching."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from gduq.errors import InputError
from gduq.graphs.packed import Packed, try_pack


def graphs(count=7, seed=0, **without):
    """Graphs with node, edge and graph attributes, numbers, strings; the third has no edges."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for i in range(count):
        nodes = 1 + int(torch.randint(0, 5, (), generator=generator))
        edges = 0 if i == 2 else int(torch.randint(1, 9, (), generator=generator))
        out.append(
            Data(
                x=torch.randn(nodes, 3, generator=generator),
                edge_index=torch.randint(0, nodes, (2, edges), generator=generator),
                edge_attr=torch.randn(edges, 2, generator=generator),
                pos=torch.randn(nodes, 2, generator=generator),
                y=torch.tensor(i % 3),
                weight=0.5 * i,
                smiles="C" * i,
                pair_index=torch.randint(0, nodes, (2, 1), generator=generator),
            )
        )
    return out


def assert_same(one, two):
    assert set(one.keys()) == set(two.keys())
    assert one.num_nodes == two.num_nodes
    for key in one.keys():  # noqa: SIM118
        if isinstance(two[key], torch.Tensor):
            assert one[key].dtype == two[key].dtype, key
            assert torch.equal(one[key], two[key]), key
        else:
            assert one[key] == two[key], key


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(0, 3))
@example([2, 3, 4, 5], 0)  # neighbours are taken as one slice
def test_collate_is_what_pyg_makes(index, seed):
    plain = graphs(seed=seed)
    packed = Packed.pack(plain)
    mine = packed.collate(torch.tensor(index))
    theirs = Batch.from_data_list([plain[i] for i in index])
    assert_same(mine, theirs)
    assert_same(packed[index].materialise().collate(), theirs)
    assert mine.num_graphs == theirs.num_graphs
    for one, two in zip(mine.to_data_list(), theirs.to_data_list(), strict=True):
        assert_same(one, two)


def test_selections_compose_and_share_memory():
    packed = Packed.pack(graphs())
    chosen = packed[torch.tensor([5, 1, 3])][1:]
    assert [g.y.item() for g in chosen] == [1, 0]
    assert chosen.tensors["x"].data_ptr() == packed.tensors["x"].data_ptr()
    assert torch.equal(chosen.num_nodes, packed.num_nodes[[1, 3]])
    assert torch.equal(chosen.column("x"), torch.cat([packed[1].x, packed[3].x]))
    assert torch.equal(
        chosen.column("edge_index"), packed[[1, 3]].materialise().column("edge_index")
    )
    for wrong in (7, -8):
        with pytest.raises(IndexError):
            packed[wrong]
    mask = torch.tensor([True, False, False, True, False, False, False])
    assert len(packed[mask]) == 2


class _Pair(Data):
    pass


@pytest.mark.parametrize(
    "wrong",
    [
        [_Pair(x=torch.ones(1, 1))],
        [Data(x=torch.ones(1, 1)), Data(x=torch.ones(1, 2))],
        [Data(x=torch.ones(1, 1)), Data(x=torch.ones(1, 1).double())],
        [Data(x=torch.ones(2, 1).to_sparse())],
        [Data(x=torch.ones(2, 1, requires_grad=True))],
        [Data(x=torch.ones(2, 1), names={"a": 1})],
        [Data(x=torch.ones(2, 1), batch=torch.zeros(2).long())],
    ],
)
def test_what_cannot_be_packed(wrong):
    with pytest.raises(InputError):
        Packed.pack(wrong)
    assert try_pack(wrong) is None


@pytest.mark.parametrize("wrong", [[], [Data(x=torch.ones(1, 1)), Data(x=torch.ones(1, 1), y=0)]])
def test_what_is_no_set_of_graphs(wrong):
    with pytest.raises(InputError):
        Packed.pack(wrong)
