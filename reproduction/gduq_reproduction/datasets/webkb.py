"""WebKB: web pages of three universities in one graph of 617 nodes (after GOODWebKB).

Links stay directed and self-loops are kept. **Two Cornells are about**: the one of 2021 holds
Texas's pages under Cornell's links, later downloads hold Cornell's own. The description of what was
loaded says which, and the old one raises a warning.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import coalesce

from gduq.data.cache import cached_tensors, digest
from gduq.data.splits import Splits
from gduq.shifts import cuts
from gduq.shifts.domains import DatasetRows
from gduq.whole import one_of
from gduq_reproduction.datasets.raw import damaged, raw_file

__all__ = ["UNIVERSITIES", "load_webkb"]

VERSION = 1
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
    key = {"name": "webkb", "version": VERSION, "raw": digest(paths)}
    tensors = cached_tensors(root, key, lambda: _read(paths))
    graph = Data(x=tensors["x"], edge_index=tensors["edge_index"], y=tensors["y"])
    cornell = _which_cornell(graph.x)
    university = torch.tensor([2] * 251 + [0] * 183 + [1] * 183)  # alphabetically
    splits = DatasetRows(graph).splits(
        _cut(shift, university, graph.y, seed),
        university,
        name=f"webkb/university/{shift}",
        description=f"WebKB: 617 web pages of three universities in 5 classes. "
        f"{_DESCRIPTIONS[shift]} {cornell}",
    )
    return splits.with_(
        class_names=tuple(str(c) for c in range(5)), sources=tuple(str(path) for path in paths)
    )


def _cut(shift: str, university: Tensor, y: Tensor, seed: int) -> cuts.Cut:
    n = y.numel()
    if shift == "no_shift":
        return cuts.no_shift(n, seed=seed)
    if shift == "concept":
        return cuts.concept(university, y, bias=_BIAS, pick=_PICK, seed=seed)
    wisconsin, pool = torch.arange(251), torch.arange(251, n)
    return cuts.leave_out(pool, wisconsin[:125], wisconsin[125:], int(0.1 * n), seed)


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
        x, y = _read_pages(paths[2 * i], pages)
        edges = coalesce(_read_links(paths[2 * i + 1], pages, links), num_nodes=pages)
        graphs.append(Data(x=x, edge_index=edges, y=y))
    whole = Batch.from_data_list(graphs)
    return {"x": whole.x, "y": whole.y, "edge_index": whole.edge_index}


def _read_pages(path: Path, pages: int) -> tuple[Tensor, Tensor]:
    lines = _lines(path, pages)
    x, y = np.zeros((pages, _FEATURES), dtype=np.float32), np.zeros(pages, dtype=np.int64)
    for number, line in enumerate(lines, start=2):
        try:
            node, features, label = line.split("\t")
            x[int(node)] = [float(value) for value in features.split(",")]
            y[int(node)] = int(label)
        except (ValueError, IndexError) as error:
            got = f"line {number}: {error}"
            raise damaged(path, f"a page of {_FEATURES} features a line", got) from error
    return torch.from_numpy(x), torch.from_numpy(y)


def _read_links(path: Path, pages: int, links: int) -> Tensor:
    try:
        pairs = [[int(v) for v in line.split("\t")] for line in _lines(path, links)]
        edges = torch.tensor(pairs).t().contiguous()
    except ValueError as error:
        raise damaged(path, f"{links} links", str(error)) from error
    if edges.shape != (2, links) or int(edges.max()) >= pages:
        raise damaged(path, f"{links} links among {pages} pages", f"{list(edges.shape)} numbers")
    return edges


def _lines(path: Path, expected: int) -> list[str]:
    """The lines after the header, as many as expected."""
    lines = path.read_text().splitlines()[1:]
    if len(lines) != expected:
        raise damaged(path, f"{expected} lines after the header", f"{len(lines)}")
    return lines
