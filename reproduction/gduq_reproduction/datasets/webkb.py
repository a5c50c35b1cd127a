"""WebKB: web pages of three universities in one graph of 617 nodes (after GOODWebKB).

Links stay directed and self-loops are kept. **Two Cornells are about**: the one of 2021, which
raises a warning, holds Texas's pages under Cornell's links; later downloads hold Cornell's own.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import coalesce

from gduq import shifts
from gduq.data import Splits
from gduq_reproduction.datasets.concept import concept
from gduq_reproduction.datasets.raw import Root, damaged, raw_file

__all__ = ["UNIVERSITIES", "load_webkb"]

UNIVERSITIES = {"wisconsin": (251, 515), "cornell": (183, 298), "texas": (183, 325)}  # pages, links
_URL = "https://raw.githubusercontent.com/graphdml-uiuc-jlu/geom-gcn/master/new_data"
_BIAS, _PICK = (0.85, 0.75, 0.85, 0.8), (0.4, 0.6, 0.5, 1.0)
_OLD = "Cornell is the old version, whose pages are those of Texas under other links."
_DESCRIPTIONS = {
    "covariate": "Training on Cornell and Texas, testing on Wisconsin.",
    "concept": "University and class go together in training and against each other in the tests.",
    "no_shift": "No shift: a uniform cut.",
}


def load_webkb(shift: Any, root: Root = None, seed: int = 0) -> Splits:
    """WebKB with the domain university; ``shift`` is covariate, concept or no_shift."""
    graphs = list[Data]()
    for name in UNIVERSITIES:
        files = ("out1_node_feature_label.txt", "out1_graph_edges.txt")
        found = [raw_file(f"{name}/raw/{file}", root, f"{_URL}/{name}/{file}") for file in files]
        graphs.append(_read(name, *found))
    joined = Batch.from_data_list(graphs)
    graph = Data(x=joined.x, y=joined.y, edge_index=joined.edge_index)
    cornell = "Cornell is the later version, with pages of its own."
    if torch.equal(graphs[1].x, graphs[2].x):
        warnings.warn(f"{_OLD} Download it again (Geom-GCN, 2024 or later).", stacklevel=3)
        cornell = _OLD
    university = torch.tensor([2] * 251 + [0] * 183 + [1] * 183)  # alphabetically
    if shift == "covariate":
        splits = shifts.group(graph, university, test=2, seed=seed)
    else:
        turned = partial(concept, labels=graph.y, bias=_BIAS, pick=_PICK)
        splits = shifts.by(graph, university, turned if shift == "concept" else shift, seed=seed)
    return splits.with_(
        name=f"webkb/university/{shift}",
        description="WebKB: 617 web pages of three universities in 5 classes. "
        f"{_DESCRIPTIONS[shift]} {cornell}",
        class_names=tuple("01234"),
    )


def _read(name: str, pages: Path, links: Path) -> Data:
    """One university, its pages in the order of their numbers."""
    nodes, edges = UNIVERSITIES[name]
    found = []
    for path, shape in ((pages, (nodes, 1705)), (links, (edges, 2))):
        try:
            lines = [line.replace("\t", ",") for line in path.read_text().splitlines()[1:]]
            table = np.loadtxt(lines, dtype=np.float32, delimiter=",", ndmin=2)
        except ValueError as error:
            raise damaged(path, f"{shape[0]} lines of {shape[1]} numbers", error) from error
        if table.shape != shape or table[:, :1].max() >= nodes or (table < 0).any():
            raise damaged(path, f"{shape[0]} lines of {shape[1]} numbers", table.shape)
        found.append(torch.from_numpy(table))
    rows = found[0][found[0][:, 0].argsort()]
    joined = coalesce(found[1].long().T.contiguous(), num_nodes=nodes)
    return Data(x=rows[:, 1:-1], edge_index=joined, y=rows[:, -1].long())
