"""Citation and co-author graphs, cut by word count or degree (GOODCora on any of them).

One graph of papers or authors; the features are a bag of words, kept **sparse** (CSR). The domain
``word`` is the number of distinct words of a node, ``degree`` its number of neighbours. Covariate
shift trains on many words (high degree) and tests on few.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from gduq import shifts
from gduq.data import Splits
from gduq_reproduction.datasets.concept import concept
from gduq_reproduction.datasets.raw import Root, damaged, raw_file

__all__ = ["SOURCES", "load_citation", "read_citation"]

_URLS = {
    "CitationFull": "https://github.com/abojchevski/graph2gauss/raw/master/data",
    "Coauthor": "https://github.com/shchur/gnn-benchmark/raw/master/data/npz",
}
SOURCES = {  # the file, as PyG lays it out, and the nodes and features it must hold
    "cora": ("CitationFull/cora/raw/cora.npz", 19793, 8710),
    "cora-ml": ("CitationFull/cora_ml/raw/cora_ml.npz", 2995, 2879),
    "citeseer": ("CitationFull/citeseer/raw/citeseer.npz", 4230, 602),
    "dblp": ("CitationFull/dblp/raw/dblp.npz", 17716, 1639),
    "pubmed": ("CitationFull/pubmed/raw/pubmed.npz", 19717, 500),
    "coauthor-cs": ("Coauthor/CS/raw/ms_academic_cs.npz", 18333, 6805),
    "coauthor-physics": ("Coauthor/Physics/raw/ms_academic_phy.npz", 34493, 8415),
}
# half of CiteSeer's nodes have one neighbour: the usual cuts would leave no test split
_CITESEER: dict[str, Any] = {"cuts": (0.25, 0.45), "holdout": 0.05}


def load_citation(name: str, domain: str, shift: Any, root: Root = None, seed: int = 0) -> Splits:
    """One graph, cut by ``"word"`` or ``"degree"`` under covariate, concept or no_shift."""
    graph, _ = read_citation(name, root)
    values, what = graph.x.crow_indices().diff(), "number of distinct words"
    if domain == "degree":
        values = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes)
        what = "number of neighbours"
    options: dict[str, Any] = {"descending": True} if shift == "covariate" else {}
    options |= _CITESEER if options and (name, domain) == ("citeseer", "degree") else {}
    kind = partial(concept, labels=graph.y) if shift == "concept" else shift
    splits = shifts.by(graph, values, kind, seed=seed, name=domain, **options)
    classes = int(graph.y.max()) + 1
    return splits.with_(
        name=f"{name}/{domain}/{shift}",
        class_names=tuple(map(str, range(classes))),
        description=f"{name}: one graph of {graph.num_nodes} nodes, {graph.x.size(1)} sparse words "
        f"and {classes} classes; the domain is the {what} of a node. {splits.description}",
    )


def read_citation(name: str, root: Root = None) -> tuple[Data, Path]:
    """The undirected graph with binary, sparse features, and the raw file it came from."""
    file, *shape = SOURCES[name]
    path = raw_file(file, root, f"{_URLS.get(Path(file).parts[0], '')}/{Path(file).name}")
    try:  # names of words and papers, which some files store as objects, are never unpickled
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            words, links = _matrix(arrays, "attr"), _matrix(arrays, "adj").tocoo()
            y = torch.from_numpy(arrays["labels"]).long()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged(path, f"{shape[0]} nodes of {shape[1]} features", error) from error
    if words.shape != tuple(shape):
        raise damaged(path, f"{shape[0]} nodes of {shape[1]} features", words.shape)
    words.eliminate_zeros()
    words.sort_indices()  # columns ascend within a row, as CSR routines want it
    crow, col = (torch.from_numpy(part).long() for part in (words.indptr, words.indices))
    with torch.sparse.check_sparse_tensor_invariants(False):
        x = torch.sparse_csr_tensor(crow, col, torch.ones(len(col)), tuple(shape))
    edges = torch.from_numpy(np.stack([links.row, links.col])).long()
    edges = to_undirected(remove_self_loops(edges)[0], num_nodes=y.numel())
    return Data(x=x, edge_index=edges, y=y), path


def _matrix(arrays: Mapping[str, np.ndarray], name: str) -> sp.csr_array:
    parts = (arrays[f"{name}_data"] > 0, arrays[f"{name}_indices"], arrays[f"{name}_indptr"])
    return sp.csr_array(parts, shape=tuple(int(n) for n in arrays[f"{name}_shape"]))
