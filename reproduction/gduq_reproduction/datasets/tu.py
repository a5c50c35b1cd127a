"""TU datasets (NCI1, PROTEINS, ...) cut by graph size: train on the small, test on the large."""

from __future__ import annotations

import io
import urllib.request
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import InMemoryDataset
from torch_geometric.io import read_tu_data

from gduq import shifts
from gduq.data import Splits
from gduq.data.cache import cache_root
from gduq.errors import InputError
from gduq_reproduction.datasets.raw import cached, damaged, digest, find_raw, graph_set

__all__ = ["load_tu", "read_tu"]

_URL = "https://www.chrsmrrs.com/graphkerneldatasets"
_PARTS = ("graph_labels", "graph_indicator", "A")
_KNOWN = {  # lines of these: graphs, nodes, edges
    "NCI1": (4110, 122747, 265506),
    "NCI109": (4127, 122494, 265208),
    "PROTEINS": (1113, 43471, 162088),
    "MUTAG": (188, 3371, 7442),
    "DD": (1178, 334925, 1686092),
}


def load_tu(name: str, root: str | Path | None = None, seed: int = 0) -> Splits:
    """A TU dataset under size shift, cut as in the paper (`gduq.shifts.size`).

    Features are PyG's: one-hot node labels (attributes are left out); a graph without any gets the
    constant 1.
    """
    folder = _folder(name, root)
    graphs = read_tu(folder, name, root)
    splits = shifts.size(graphs, "tails", seed=seed)
    classes = int(graphs.y.max()) + 1
    bound = int(splits.domains["train"].max()), int(splits.domains["ood_test"].min())
    return splits.with_(
        name=f"tu/{name}/size",
        class_names=tuple(str(c) for c in range(classes)),
        sources=tuple(str(path) for path in sorted(folder.glob(f"{name}_*.txt"))),
        description=f"{name} of the TU collection: {len(graphs)} graphs in {classes} "
        f"classes. Training on at most {bound[0]} nodes (the median), testing on {bound[1]} or "
        "more (the 0.9 quantile); ood_val holds the sizes between.",
    )


def read_tu(folder: Path, name: str, root: str | Path | None = None) -> InMemoryDataset:
    """The graphs of a folder ``<name>_A.txt, ...`` in TU format, as PyG's ``TUDataset``."""
    for part, count in zip(_PARTS, _KNOWN.get(name, (None,) * 3), strict=True):
        path = folder / f"{name}_{part}.txt"
        if not path.is_file():
            raise damaged(path, f"the files of {name} in TU format", "no such file")
        text = path.read_bytes()
        lines = len(text.splitlines())
        if count not in (None, lines):  # a file that is cut off may look sound
            raise damaged(path, f"{count} lines", f"{lines} lines")
        if not text.endswith(b"\n"):  # PyG's reader would lose it
            raise damaged(path, "a line break at the end", repr(text[-20:]))
    files = sorted(folder.glob(f"{name}_*.txt"))
    return graph_set(cached(root, (f"tu/{name}", 1, digest(files)), lambda: _read(folder, name)))


def _read(folder: Path, name: str) -> dict[str, object]:
    try:
        data, slices, sizes = read_tu_data(str(folder), name)
    except (ValueError, IndexError, RuntimeError) as error:
        raise damaged(folder, f"the graphs of {name}", str(error)) from error
    if not sizes["num_node_labels"]:
        counts = _node_counts(folder, name)
        slices["x"] = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        data.x = torch.ones(int(counts.sum()), 1)
    data.x = data.x[:, -max(1, sizes["num_node_labels"]) :]  # attributes come first
    tensors = {key: value for key, value in data.to_dict().items() if torch.is_tensor(value)}
    graphs, ends = len(slices["x"]), dict[str, Tensor]()
    for key, value in tensors.items():  # PyG leaves out last graphs without edges
        ends[key] = F.pad(slices[key], (0, graphs - len(slices[key])), value=int(slices[key][-1]))
        length = value.size(data.__cat_dim__(key, value))
        if int(ends[key][-1]) != length:
            raise damaged(folder, f"{int(ends[key][-1])} rows of {key} of {name}", str(length))
    return {"data": tensors, "slices": ends}


def _node_counts(folder: Path, name: str) -> Tensor:
    """Nodes of every graph."""
    owners = (folder / f"{name}_graph_indicator.txt").read_text().split()
    return torch.bincount(torch.tensor([int(owner) - 1 for owner in owners]))


def _folder(name: str, root: str | Path | None) -> Path:
    if (folder := find_raw(f"{name}/raw", root)) is not None:
        return folder
    target = cache_root(root) / "raw" / name / "raw"
    do = "Check the name and the network, or put the folder under GDUQ_DATA."
    try:
        with urllib.request.urlopen(f"{_URL}/{name}.zip") as response:
            archive = zipfile.ZipFile(io.BytesIO(response.read()))
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"to download {name} from {_URL}", error, do) from error
    texts = {Path(m).name: archive.read(m) for m in archive.namelist() if m.endswith(".txt")}
    target.mkdir(parents=True, exist_ok=True)
    for file, content in texts.items():
        (target / file).write_bytes(content)
    return target
