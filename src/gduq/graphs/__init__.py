"""Graphs, their labelled rows, and many of them: `View`, `Splits`, `Packed`, checks, batches.

A *graph* is PyG's ``Data``, ``HeteroData`` or a ``Batch`` of either. Its rows are nodes, graphs or
edges. Those that count have a mask that a `View` writes, ``row_mask`` on the nodes (of a type) or
``edge_row_mask`` on the columns of ``edge_label_index``, or are the seed nodes of PyG's
``NeighborLoader``, the first ``batch_size``.
"""

from gduq.graphs.batches import Batches, Graphs, Loader, as_batches, iterate
from gduq.graphs.packed import Packed, join
from gduq.graphs.rows import (
    Graph,
    Rows,
    as_graph,
    check_graph,
    device_of,
    label_rows,
    mark_rows,
    num_graphs,
    num_rows,
    on_device,
    row_batch,
    row_kind,
    row_type,
    structure_of,
    targets,
)  # fmt: skip
from gduq.graphs.view import Splits, View

__all__ = ["Batches", "Graph", "Graphs", "Loader", "Packed", "Rows", "Splits", "View", "as_batches",
           "as_graph", "check_graph", "device_of", "iterate", "join", "label_rows",
           "mark_rows", "num_graphs", "num_rows", "on_device", "row_batch", "row_kind", "row_type",
           "structure_of", "targets"]  # fmt: skip
