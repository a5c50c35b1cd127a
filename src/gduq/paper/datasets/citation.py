"""Citation and co-author graphs, cut by word count or degree (GOODCora on any of them).

One graph of papers or authors; the features are a bag of words, kept **sparse** (CSR). The domain
``word`` is the number of distinct words of a node, ``degree`` its number of neighbours. Covariate
shift trains on many words (high degree) and tests on few.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from gduq import shifts
from gduq.data.cache import cached_tensors, digest
from gduq.data.splits import Splits
from gduq.errors import InputError
from gduq.graph.sparse import csr_of_pointers
from gduq.paper.datasets.raw import damaged, raw_file

__all__ = ["SOURCES", "load_citation", "read_citation"]

VERSION = 1
_G2G = "https://github.com/abojchevski/graph2gauss/raw/master/data"
_SHCHUR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"


@dataclass(frozen=True)
class Source:
    """Where a graph comes from and what it must hold."""

    path: str  # as PyG lays it out
    url: str
    nodes: int
    features: int


SOURCES = {
    "cora": Source("CitationFull/cora/raw/cora.npz", f"{_G2G}/cora.npz", 19793, 8710),
    "cora-ml": Source("CitationFull/cora_ml/raw/cora_ml.npz", f"{_G2G}/cora_ml.npz", 2995, 2879),
    "citeseer": Source("CitationFull/citeseer/raw/citeseer.npz", f"{_G2G}/citeseer.npz", 4230, 602),
    "dblp": Source("CitationFull/dblp/raw/dblp.npz", f"{_G2G}/dblp.npz", 17716, 1639),
    "pubmed": Source("CitationFull/pubmed/raw/pubmed.npz", f"{_G2G}/pubmed.npz", 19717, 500),
    "coauthor-cs": Source(
        "Coauthor/CS/raw/ms_academic_cs.npz", f"{_SHCHUR}/ms_academic_cs.npz", 18333, 6805
    ),
    "coauthor-physics": Source(
        "Coauthor/Physics/raw/ms_academic_phy.npz", f"{_SHCHUR}/ms_academic_phy.npz", 34493, 8415
    ),
}


# half of CiteSeer's nodes have one neighbour: the usual cuts would leave no test split
_COVARIATE: dict[tuple[str, str], dict[str, Any]] = {
    ("citeseer", "degree"): {"cuts": (0.25, 0.45), "holdout": 0.05}
}


def load_citation(
    name: str, domain: str, shift: str, root: str | Path | None = None, seed: int = 0
) -> Splits:
    """One graph, cut by ``"word"`` or ``"degree"`` under covariate, concept or no_shift."""
    graph, path = read_citation(name, root)
    if domain == "word":
        values = graph.x.crow_indices().diff()
    elif domain == "degree":
        values = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes)
    else:
        raise InputError("a domain from word, degree", repr(domain))
    options: dict[str, Any] = {}
    if shift == "covariate":
        options = {"descending": True, **_COVARIATE.get((name, domain), {})}
    kind: Any = shift  # by refuses others
    splits = shifts.by(graph, values, kind, seed=seed, name=domain, **options)
    what = "number of distinct words" if domain == "word" else "number of neighbours"
    classes = int(graph.y.max()) + 1
    return splits.with_(
        name=f"{name}/{domain}/{shift}",
        class_names=tuple(str(c) for c in range(classes)),
        sources=(str(path),),
        description=f"{name}: one graph of {graph.num_nodes} nodes, {graph.x.size(1)} sparse words "
        f"and {classes} classes; the domain is the {what} of a node. {splits.description}",
    )


def read_citation(name: str, root: str | Path | None = None) -> tuple[Data, Path]:
    """The undirected graph with binary, sparse features, and the raw file it came from."""
    source = SOURCES[name]
    path = raw_file(source.path, root, source.url)
    key = {"name": f"citation/{name}", "version": VERSION, "raw": digest([path])}
    tensors = cached_tensors(root, key, lambda: _read(path, source))
    shape = (source.nodes, source.features)
    x = csr_of_pointers(tensors["crow"], tensors["col"], tensors["values"], shape)
    return Data(x=x, edge_index=tensors["edge_index"], y=tensors["y"]), path


def _read(path: Path, source: Source) -> dict[str, Tensor]:
    expected = f"{source.nodes} nodes of {source.features} features"
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if not _is_text(file, name)}
        found = tuple(int(v) for v in arrays["attr_shape"])
        parts = {name: torch.from_numpy(arrays[name]) for name in _NEEDED}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        got = f"{path.stat().st_size} bytes that cannot be read ({error})"
        raise damaged(path, expected, got) from error
    if found != (source.nodes, source.features):
        raise damaged(path, expected, f"{found[0]} nodes of {found[1]} features")
    return _tensors(parts)


_NEEDED = (
    "attr_data",
    "attr_indices",
    "attr_indptr",
    "adj_indices",
    "adj_indptr",
    "labels",
)


def _is_text(file: np.lib.npyio.NpzFile, name: str) -> bool:
    """Names of words and papers, which some files store as objects: not needed, never unpickled."""
    return name not in (*_NEEDED, "attr_shape")


def _tensors(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    source = torch.repeat_interleave(
        torch.arange(parts["adj_indptr"].numel() - 1), parts["adj_indptr"].diff().long()
    )
    edges = torch.stack([source, parts["adj_indices"].long()])
    edges = to_undirected(remove_self_loops(edges)[0], num_nodes=parts["labels"].numel())
    kept = parts["attr_data"] > 0
    counts = torch.cat([kept.new_zeros(1).long(), kept.long().cumsum(0)])
    crow = counts[parts["attr_indptr"].long()]
    col, row = parts["attr_indices"][kept].long(), torch.arange(crow.numel() - 1)
    order = torch.argsort(row.repeat_interleave(crow.diff()) * (int(col.max()) + 1) + col)
    return {
        "crow": crow,
        "col": col[order],  # ascending within a row, as CSR routines want it
        "values": torch.ones(col.numel()),
        "edge_index": edges,
        "y": parts["labels"].long(),
    }
