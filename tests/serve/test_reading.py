"""Whatever a request holds, it becomes sound graphs or a reason, and nothing else happens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from gduq.data.smiles import RDKitProcess
from gduq.graphs import check_graph
from gduq.serve.batching import Refused, read_graphs, read_query
from gduq.serve.server import Limits

pytest.importorskip("rdkit")

NUMBERS = st.one_of(
    st.integers(-3, 5), st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3)
)
ARRAYS = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
NAMES = st.sampled_from(
    ["x", "edge_index", "edge_attr", "edge_weight", "pos", "batch", "y", "own_index", "face", "_x"]
)
GRAPHS = st.dictionaries(st.one_of(NAMES, st.text(max_size=5)), ARRAYS, max_size=5)
# close to sound ones, so that the later checks are reached too
CLOSE = st.fixed_dictionaries(
    {
        "x": st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), max_size=4),
        "edge_index": st.lists(st.lists(st.integers(-1, 4), max_size=3), max_size=3),
    },
    optional={"edge_attr": ARRAYS, "pos": ARRAYS, "own": ARRAYS},
)


@pytest.fixture(scope="module")
def rdkit():
    found = RDKitProcess(20)
    yield found
    found.close()


def tried(function, *arguments, but):
    """What a function gives, or the error it may raise."""
    try:
        return function(*arguments)
    except but as error:
        return error


@given(st.one_of(GRAPHS, CLOSE, ARRAYS))
def test_anything_becomes_a_sound_graph_or_a_reason(rdkit, item):
    limits = Limits(nodes=3, edges=4)
    body = json.dumps({"graphs": [item]}).encode()
    read = tried(read_query, body, limits, but=Refused)
    if isinstance(read, Refused):
        assert read.status == 422
        return
    (found,) = read_graphs(read, limits, rdkit)
    if isinstance(found, str):
        assert found
        return
    assert isinstance(found, Data)
    check_graph(found)
    assert found.num_nodes <= 3
    assert found.num_edges <= 4


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body):
    found = tried(read_query, body, Limits(), but=Refused)
    assert isinstance(found, list) or found.status in (413, 422)
