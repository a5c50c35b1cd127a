"""TU datasets (NCI1, PROTEINS, ...) cut by graph size: train on the small, test on the large."""

from __future__ import annotations

from torch_geometric.datasets import TUDataset
from torch_geometric.transforms import Constant

from gduq import shifts
from gduq.data import Splits
from gduq.data.catalog import cache_root
from gduq.errors import InputError
from gduq_reproduction.datasets.raw import Root, digest, find_raw

__all__ = ["TU", "load_tu"]


class TU(TUDataset):  # type: ignore[misc]
    """PyG's reader of a TU dataset; raw files may lie under ``GDUQ_DATA``, which stays as it is."""

    def __init__(self, name: str, root: Root = None) -> None:
        cache = cache_root(root)
        self._raw = find_raw(f"{name}/raw", root) or cache / "raw" / name / "raw"
        files = sorted(self._raw.glob(f"{name}_*.txt"))
        self._processed = cache / "reproduction" / f"tu-{name}-{digest(files)}"
        super().__init__(str(cache), name)

    raw_dir = property(lambda self: str(self._raw))
    processed_dir = property(lambda self: str(self._processed))


def load_tu(name: str, root: Root = None, seed: int = 0) -> Splits:
    """A TU dataset under size shift, cut as in the paper (`gduq.shifts.size`).

    Features are PyG's: one-hot node labels (attributes are left out); a graph without any gets the
    constant 1.
    """
    try:
        found = TU(name, root)
        graphs = [graph if graph.num_node_features else Constant()(graph) for graph in found]
    except (OSError, ValueError, IndexError, RuntimeError) as error:
        do = "Check the name, the files and the network, or put the folder under GDUQ_DATA."
        raise InputError(f"{name} in TU format", error, do) from error
    splits = shifts.size(graphs, "tails", seed=seed)
    return splits.with_(
        name=f"tu/{name}/size",
        class_names=tuple(map(str, range(found.num_classes))),
        description=f"{name} of the TU collection: {len(graphs)} graphs in {found.num_classes} "
        "classes. Training up to the median of nodes, testing from the 0.9 quantile on.",
    )
