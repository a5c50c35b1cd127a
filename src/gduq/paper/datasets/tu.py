"""TU datasets (NCI1, PROTEINS, ...) cut by graph size: train on the small, test on the large."""

from __future__ import annotations

import io
import shutil
import tempfile
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import coalesce, remove_self_loops

from gduq import shifts
from gduq.data.cache import cache_root, cached, digest
from gduq.data.packed import Packed, to_ptr
from gduq.data.view import Splits
from gduq.errors import InputError
from gduq.paper.datasets.raw import damaged, find_raw

__all__ = ["load_tu", "read_tu"]

VERSION = 1
_URL = "https://www.chrsmrrs.com/graphkerneldatasets"
_USED = ("A", "graph_indicator", "graph_labels", "node_labels", "node_attributes", "edge_labels")
_KNOWN = {  # graphs, nodes, lines of edges
    "NCI1": (4110, 122747, 265506),
    "NCI109": (4127, 122494, 265208),
    "PROTEINS": (1113, 43471, 162088),
    "MUTAG": (188, 3371, 7442),
    "DD": (1178, 334925, 1686092),
}


def load_tu(name: str, root: str | Path | None = None, seed: int = 0) -> Splits:
    """A TU dataset under size shift (the paper's protocol).

    Training holds graphs of at most the median size, ``ood_test`` those from the 0.9 quantile on
    (both inclusive), ``ood_val`` those between; ``id_val`` and ``id_test`` are 15 % each of the
    small graphs. Features are PyG's: one-hot node labels (attributes are left out); a graph without
    any gets the constant 1.
    """
    folder = _folder(name, root)
    packed = read_tu(folder, name, root)
    splits = shifts.size(packed, "tails", seed=seed)
    labels = packed.column("y")
    bound = int(splits.domains["train"].max()), int(splits.domains["ood_test"].min())
    return splits.with_(
        name=f"tu/{name}/size",
        class_names=tuple(str(c) for c in range(int(labels.max()) + 1)),
        sources=tuple(str(path) for path in _files(folder, name)),
        description=f"{name} of the TU collection: {len(packed)} graphs in {int(labels.max()) + 1} "
        f"classes. Training on at most {bound[0]} nodes (the median), testing on {bound[1]} or "
        "more (the 0.9 quantile); ood_val holds the sizes between.",
    )


def read_tu(folder: Path, name: str, root: str | Path | None = None) -> Packed:
    """The graphs of a folder ``<name>_A.txt, ...`` in TU format, as PyG's ``TUDataset``."""
    files = _files(folder, name)
    key = {"name": f"tu/{name}", "version": VERSION, "raw": digest(files)}
    return cached(root, key, lambda: _read(folder, name))


def _folder(name: str, root: str | Path | None) -> Path:
    folder = find_raw(f"{name}/raw", root)
    if folder is not None:
        return folder
    target = cache_root(root) / "raw" / name / "raw"
    do = "Check the name and the network, or put the folder under GDUQ_DATA."
    try:
        with urllib.request.urlopen(f"{_URL}/{name}.zip") as response:
            archive = zipfile.ZipFile(io.BytesIO(response.read()))
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"to download {name} from {_URL}", error, do) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    unpacked = Path(tempfile.mkdtemp(dir=target.parent, prefix=".raw-"))
    for member in archive.namelist():
        if member.endswith(".txt"):
            (unpacked / Path(member).name).write_bytes(archive.read(member))
    try:
        unpacked.rename(target)  # a kill before leaves no half folder
    except OSError:  # another process was faster
        shutil.rmtree(unpacked)
    return target


def _files(folder: Path, name: str) -> list[Path]:
    needed = [folder / f"{name}_{part}.txt" for part in ("A", "graph_indicator", "graph_labels")]
    for path in needed:
        if not path.is_file():
            raise damaged(path, f"the files of {name} in TU format", "no such file")
    return sorted(folder.glob(f"{name}_*.txt"))


def _check(folder: Path, name: str) -> None:
    """Files of a set must have lines to match; known sets have known numbers of them."""
    lines = {
        path.stem.removeprefix(f"{name}_"): _count_lines(path) for path in _files(folder, name)
    }
    graphs, nodes, edges = _KNOWN.get(
        name, (lines["graph_labels"], lines["graph_indicator"], lines["A"])
    )
    expected = {
        "A": edges,
        "edge_labels": edges,
        "edge_attributes": edges,
        "graph_indicator": nodes,
        "node_labels": nodes,
        "node_attributes": nodes,
        "graph_labels": graphs,
    }
    for part, count in lines.items():
        if count != expected.get(part, count):
            path = folder / f"{name}_{part}.txt"
            raise damaged(path, f"{expected[part]} lines", f"{count} lines")


def _count_lines(path: Path) -> int:
    raw = path.read_bytes()
    return raw.count(b"\n") + (not raw.endswith(b"\n") and len(raw) > 0)


def _read(folder: Path, name: str) -> Packed:
    """As PyG's ``read_tu_data`` (which loses a last line that has no line break)."""
    _check(folder, name)
    parts = {part: _numbers(folder / f"{name}_{part}.txt") for part in _parts(folder, name)}
    owner = parts["graph_indicator"].long().flatten() - 1
    graphs = len(parts["graph_labels"])
    if int(owner.min()) < 0 or int(owner.max()) >= graphs or bool((owner.diff() < 0).any()):
        path = folder / f"{name}_graph_indicator.txt"
        got = f"{int(owner.min()) + 1} to {int(owner.max()) + 1}"
        raise damaged(path, f"graph numbers from 1 to {graphs} in ascending order", got)
    _check_none_empty(folder / f"{name}_graph_indicator.txt", owner, graphs)
    nodes, node_ptr = owner.numel(), to_ptr(torch.bincount(owner, minlength=graphs))
    edges = parts["A"].long().t() - 1
    if edges.size(0) != 2 or int(edges.min()) < 0 or int(edges.max()) >= nodes:
        raise damaged(folder / f"{name}_A.txt", f"pairs of nodes from 1 to {nodes}", "others")
    _check_within(folder / f"{name}_A.txt", owner, edges)
    labels = _one_hot(parts["edge_labels"]) if "edge_labels" in parts else None
    edges, labels = coalesce(*remove_self_loops(edges, labels), num_nodes=nodes)
    y = parts["graph_labels"].flatten().unique(return_inverse=True)[1]
    return Packed.build(
        node_ptr,
        to_ptr(torch.bincount(owner[edges[0]], minlength=graphs)),
        edges - node_ptr[owner[edges[0]]],
        nodes={"x": _node_features(parts, nodes)},
        edges={} if labels is None else {"edge_attr": labels},
        graphs={"y": y},
    )


def _check_none_empty(path: Path, owner: Tensor, graphs: int) -> None:
    empty = torch.nonzero(torch.bincount(owner, minlength=graphs) == 0).flatten()
    if empty.numel():
        got = f"{empty.numel()} graph(s) without any, first graph {int(empty[0]) + 1}"
        raise damaged(path, "at least one node a graph", got)


def _check_within(path: Path, owner: Tensor, edges: Tensor) -> None:
    ends = owner[edges]
    across = torch.nonzero(ends[0] != ends[1]).flatten()
    if across.numel():
        line = int(across[0])
        one, two = (ends[:, line] + 1).tolist()
        got = f"an edge between graphs {one} and {two} in line {line + 1}"
        raise damaged(path, "edges within one graph", got)


def _parts(folder: Path, name: str) -> list[str]:
    found = {path.stem.removeprefix(f"{name}_") for path in _files(folder, name)} & set(_USED)
    return sorted(found - {"node_attributes"} if "node_labels" in found else found)


def _numbers(path: Path) -> Tensor:
    """A text file of comma-separated numbers as ``[lines, columns]``."""
    import pandas as pd

    try:
        table = pd.read_csv(path, header=None, skipinitialspace=True).to_numpy(dtype=np.float64)
    except (ValueError, TypeError) as error:  # parser errors are ValueErrors
        raise damaged(path, "numbers", str(error)) from error
    if not np.isfinite(table).all():
        raise damaged(path, "finite numbers", f"{int((~np.isfinite(table)).sum())} others")
    return torch.tensor(table)


def _node_features(parts: dict[str, Tensor], nodes: int) -> Tensor:
    if "node_labels" in parts:
        return _one_hot(parts["node_labels"])
    if "node_attributes" in parts:
        return parts["node_attributes"].float()
    return torch.ones(nodes, 1)


def _one_hot(labels: Tensor) -> Tensor:
    """Columns of class numbers, each counted from its smallest, as one-hot blocks."""
    columns = (labels.long() - labels.long().amin(dim=0)).unbind(dim=1)
    return torch.cat([torch.nn.functional.one_hot(c) for c in columns], dim=1).float()
