"""WebKB: web pages of three universities in one graph of 617 nodes (after GOODWebKB).

Links stay directed and self-loops are kept. **Two Cornells are about**: the one of 2021 holds
Texas's pages under Cornell's links, later downloads hold Cornell's own. The description of what was
loaded says which, and the old one raises a warning.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import coalesce

from gduq import shifts
from gduq._checks import one_of
from gduq.data import Splits, View
from gduq.shifts.cuts import leave_out
from gduq_reproduction.datasets.raw import cached, damaged, digest, raw_file

__all__ = ["UNIVERSITIES", "load_webkb"]

UNIVERSITIES = {"wisconsin": (251, 515), "cornell": (183, 298), "texas": (183, 325)}  # pages, links
_FILES = ("out1_node_feature_label.txt", "out1_graph_edges.txt")
_URL = "https://raw.githubusercontent.com/graphdml-uiuc-jlu/geom-gcn/master/new_data"
_FEATURES = 1703
_BIAS, _PICK = (0.85, 0.75, 0.85, 0.8), (0.4, 0.6, 0.5, 1.0)
_DESCRIPTIONS = {
    "covariate": "Training on Cornell and Texas, testing on Wisconsin.",
    "concept": "University and class go together in training and against each other in the tests.",
    "no_shift": "No shift: a uniform cut.",
}


def load_webkb(shift: str, root: str | Path | None = None, seed: int = 0) -> Splits:
    """WebKB with the domain university; ``shift`` is covariate, concept or no_shift."""
    one_of("a shift", shift, _DESCRIPTIONS)
    paths = [
        raw_file(f"{name}/raw/{file}", root, f"{_URL}/{name}/{file}")
        for name in UNIVERSITIES
        for file in _FILES
    ]
    graph = Data(**cached(root, ("webkb", 1, digest(paths)), lambda: _read(paths)))
    cornell = _which_cornell(graph.x)
    university = torch.tensor([2] * 251 + [0] * 183 + [1] * 183)  # alphabetically
    cut = {name: rows.sort().values for name, rows in _cut(shift, university, graph, seed).items()}
    views: dict[str, Any] = {name: View(graph, rows) for name, rows in cut.items()}
    return Splits(
        **views,
        name=f"webkb/university/{shift}",
        description=f"WebKB: 617 web pages of three universities in 5 classes. "
        f"{_DESCRIPTIONS[shift]} {cornell}",
        domains={name: university[rows] for name, rows in cut.items()},
        class_names=tuple(str(c) for c in range(5)),
        sources=tuple(str(path) for path in paths),
    )


def _cut(shift: str, university: Tensor, graph: Data, seed: int) -> dict[str, Tensor]:
    if shift == "no_shift":
        return shifts.no_shift(len(university), seed=seed)
    if shift == "concept":
        return shifts.concept(university, graph.y, bias=_BIAS, pick=_PICK, seed=seed)
    wisconsin, pool = torch.arange(251), torch.arange(251, len(university))
    held = int(0.1 * len(university))
    return leave_out(pool, wisconsin[:125], wisconsin[125:], held, seed)


def _which_cornell(x: Tensor) -> str:
    if not torch.equal(x[251 : 251 + 183], x[251 + 183 :]):
        return "Cornell is the later version, with pages of its own."
    warnings.warn(
        "the Cornell of this WebKB is the old version: its pages are those of Texas, under other "
        "links. Download it again (Geom-GCN, 2024 or later) for pages of its own.",
        stacklevel=4,
    )
    return "Cornell is the old version, whose pages are those of Texas."


def _read(paths: list[Path]) -> dict[str, Tensor]:
    graphs = []
    for i, (pages, links) in enumerate(UNIVERSITIES.values()):
        lines = _table(paths[2 * i], pages, _FEATURES + 2, f"{pages} pages of {_FEATURES} features")
        node, x, y = lines[:, 0].long(), lines[:, 1:-1], lines[:, -1].long()
        edges = _table(paths[2 * i + 1], links, 2, f"{links} links").long().T
        if int(edges.max()) >= pages or not torch.equal(node.sort().values, torch.arange(pages)):
            raise damaged(paths[2 * i + 1], f"links among {pages} pages", "other numbers")
        order = node.argsort()
        edges = coalesce(edges.contiguous(), num_nodes=pages)
        graphs.append(Data(x=x[order], edge_index=edges, y=y[order]))
    joined = Batch.from_data_list(graphs)
    return {"x": joined.x, "y": joined.y, "edge_index": joined.edge_index}


def _table(path: Path, rows: int, columns: int, expected: str) -> Tensor:
    """The numbers after the header, as many as expected."""
    try:
        text = [line.replace("\t", ",") for line in path.read_text().splitlines()[1:]]
        found = np.loadtxt(text, dtype=np.float32, delimiter=",", ndmin=2)
    except ValueError as error:
        raise damaged(path, expected, str(error)) from error
    if found.shape != (rows, columns):
        raise damaged(path, expected, f"{found.shape[0]} lines of {found.shape[1]} numbers")
    return torch.from_numpy(found)
