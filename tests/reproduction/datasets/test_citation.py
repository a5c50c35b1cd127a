"""Citation graphs on a made-up file and on the real ones."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.io import read_npz

from gduq.errors import InputError
from gduq_reproduction.datasets.citation import SOURCES, load_citation, read_citation

NODES, WORDS = 300, 40


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A graph with self-loops, one-way links, counts instead of ones and stored zeros."""
    rng = np.random.default_rng(0)
    attributes = sp.csr_matrix(rng.poisson(0.3, (NODES, WORDS)).astype(np.float32))
    attributes.data[::7] = 0.0
    links = sp.csr_matrix((rng.random((NODES, NODES)) < 0.015).astype(np.float32))
    links.setdiag(1)
    arrays = {}
    for name, matrix in (("attr", attributes), ("adj", links)):
        parts = ("data", "indices", "indptr", "shape")
        arrays |= {f"{name}_{part}": np.array(getattr(matrix, part)) for part in parts}
    path = tmp_path / "tiny.npz"
    np.savez(path, labels=rng.integers(0, 4, NODES), **arrays)
    monkeypatch.setenv("GDUQ_DATA", str(tmp_path))
    monkeypatch.setitem(SOURCES, "tiny", ("tiny.npz", NODES, WORDS))
    return path


def test_read_as_pyg_reads_but_sparse(tiny, tmp_path):
    graph, path = read_citation("tiny", tmp_path)
    theirs = read_npz(str(tiny))
    assert graph.x.layout == torch.sparse_csr
    assert torch.equal(graph.x.to_dense(), theirs.x)
    assert torch.equal(graph.edge_index, theirs.edge_index)
    assert torch.equal(graph.y, theirs.y)
    assert path == tiny


@pytest.mark.parametrize("domain", ["word", "degree"])
@pytest.mark.parametrize("shift", ["covariate", "concept", "no_shift"])
def test_splits(tiny, tmp_path, domain, shift):
    splits = load_citation("tiny", domain, shift, tmp_path)
    assert (torch.stack([view.rows for _, view in splits]).sum(0) == 1).all()
    graph, _ = read_citation("tiny", tmp_path)
    values = (graph.x.to_dense() > 0).sum(1)
    if domain == "degree":
        values = torch.bincount(graph.edge_index[0], minlength=NODES)
    for name, view in splits:
        assert torch.equal(splits.domains[name], values[view.rows])
        assert torch.equal(view.target, graph.y[view.rows])
    if shift == "covariate":
        low, middle, high = (splits.domains[n] for n in ("ood_test", "ood_val", "train"))
        assert low.max() < middle.min() <= middle.max() < high.min()
        assert len(splits.id_val) == len(splits.id_test) == int(0.1 * NODES)
    assert splits.name == f"tiny/{domain}/{shift}"
    assert splits.class_names == ("0", "1", "2", "3")


def test_damaged_files_are_named_and_nothing_is_unpickled(tiny, tmp_path, monkeypatch):
    with np.load(tiny) as file:
        arrays = dict(file)
    names = np.array([{"a": 1}], dtype=object)
    np.savez(tiny, **arrays, node_names=names)
    assert read_citation("tiny", tmp_path)[0].num_nodes == NODES  # names are left alone
    for content in ({**arrays, "labels": names}, {"labels": np.zeros(3)}):
        np.savez(tiny, **content)
        with pytest.raises(InputError) as error:
            read_citation("tiny", tmp_path)
        assert str(tiny) in str(error.value)
    np.savez(tiny, **arrays)
    monkeypatch.setitem(SOURCES, "tiny", ("tiny.npz", 301, WORDS))
    with pytest.raises(InputError):
        read_citation("tiny", tmp_path)
    tiny.write_bytes(tiny.read_bytes()[: tiny.stat().st_size // 2])
    with pytest.raises(InputError):
        read_citation("tiny", tmp_path)
