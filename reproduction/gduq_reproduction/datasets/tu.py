"""TU datasets (NCI1, PROTEINS, ...) cut by graph size: train on the small, test on the large."""

from __future__ import annotations

import io
import shutil
import tempfile
import urllib.request
import zipfile
from pathlib import Path

import torch

from gduq import shifts
from gduq.data.cache import cache_root, cached, digest
from gduq.data.packed import Packed
from gduq.data.rejected_rows import Reject
from gduq.data.splits import Splits
from gduq.data.tufolder import TUFolder
from gduq.errors import InputError
from gduq_reproduction.datasets.raw import damaged, find_raw

__all__ = ["load_tu", "read_tu"]

VERSION = 1
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
    packed = read_tu(folder, name, root)
    splits = shifts.size(packed, "tails", seed=seed)
    classes = int(packed.column("y").max()) + 1
    bound = int(splits.domains["train"].max()), int(splits.domains["ood_test"].min())
    return splits.with_(
        name=f"tu/{name}/size",
        class_names=tuple(str(c) for c in range(classes)),
        sources=tuple(str(path) for path in _files(folder, name)),
        description=f"{name} of the TU collection: {len(packed)} graphs in {classes} "
        f"classes. Training on at most {bound[0]} nodes (the median), testing on {bound[1]} or "
        "more (the 0.9 quantile); ood_val holds the sizes between.",
    )


def read_tu(folder: Path, name: str, root: str | Path | None = None) -> Packed:
    """The graphs of a folder ``<name>_A.txt, ...`` in TU format, as PyG's ``TUDataset``."""
    files = _files(folder, name)
    key = {"name": f"tu/{name}", "version": VERSION, "raw": digest(files)}
    return cached(root, key, lambda: _read(folder, name))


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
    for part in _PARTS:
        path = folder / f"{name}_{part}.txt"
        if not path.is_file():
            raise damaged(path, f"the files of {name} in TU format", "no such file")
    return sorted(folder.glob(f"{name}_*.txt"))


def _read(folder: Path, name: str) -> Packed:
    """As PyG's ``read_tu_data`` (which loses a last line that has no line break)."""
    for part, count in zip(_PARTS, _KNOWN.get(name, ()), strict=False):
        path = folder / f"{name}_{part}.txt"
        lines = len(path.read_bytes().splitlines())
        if lines != count:  # a file that is cut off may look sound
            raise damaged(path, f"{count} lines", f"{lines} lines")
    graphs = []
    for _, graph in TUFolder(folder, attributes=False):
        if isinstance(graph, Reject):
            path = folder / graph.file
            raise damaged(path, "sound graphs", f"{graph.reason} (line {graph.line})")
        if "x" not in graph:
            graph.x = torch.ones(int(graph.num_nodes or 0), 1)
        graphs.append(graph)
    return Packed.pack(graphs)
