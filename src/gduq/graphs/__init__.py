"""Graphs, their labelled rows, and many of them: `View`, `Splits`, `Packed`, checks, batches.

A *graph* is PyG's ``Data``, ``HeteroData`` or a ``Batch`` of either. The rows a model answers for
are nodes, graphs or edges; what a `View` writes on a graph says which of them count:

* nodes: ``row_mask`` (boolean, one entry per node), or the ``batch_size`` that PyG's
  ``NeighborLoader`` stores (seed nodes first);
* nodes of one type of a ``HeteroData``: ``graph[node_type].row_mask``, and ``row_type`` on the
  graph, which names the type;
* edges: ``edge_row_mask`` over the columns of ``edge_label_index``, and ``row_kind = "edge"``.
"""

from gduq.graphs.checks import check_graph
from gduq.graphs.packed import Packed, join
from gduq.graphs.rows import (
    Graph,
    Rows,
    as_labels,
    device_of,
    label_rows,
    mark_rows,
    num_graphs,
    num_rows,
    on_device,
    row_batch,
    row_kind,
    row_marks,
    row_type,
    targets,
)  # fmt: skip
from gduq.graphs.splits import Splits
from gduq.graphs.structure import structure_of
from gduq.graphs.view import View, check_loader, iterate

__all__ = ["Graph", "Packed", "Rows", "Splits", "View", "as_labels", "check_graph",
           "check_loader", "device_of", "iterate", "join", "label_rows", "mark_rows",
           "num_graphs", "num_rows", "on_device", "row_batch", "row_kind", "row_marks",
           "row_type", "structure_of", "targets"]  # fmt: skip
