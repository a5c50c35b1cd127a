"""What the library asks of a graph: sound tensors, which rows carry a label, how to walk many.

A *graph* is PyG's ``Data``, ``HeteroData`` or a ``Batch`` of either. The rows a model answers for
are nodes, graphs or edges; what `gduq.data.View` writes on a graph says which of them count:

* nodes: ``row_mask`` (boolean, one entry per node), or the ``batch_size`` that PyG's
  ``NeighborLoader`` stores (seed nodes first);
* nodes of one type of a ``HeteroData``: ``graph[node_type].row_mask``, and ``row_type`` on the
  graph, which names the type;
* edges: ``edge_row_mask`` over the columns of ``edge_label_index``, and ``row_kind = "edge"``.
"""

from gduq.graph.checks import check_graph
from gduq.graph.rows import (
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
)
from gduq.graph.structure import structure_of
from gduq.graph.walking import HasRows, check_loader, iterate, join

__all__ = [
    "Graph",
    "HasRows",
    "Rows",
    "as_labels",
    "check_graph",
    "check_loader",
    "device_of",
    "iterate",
    "join",
    "label_rows",
    "mark_rows",
    "num_graphs",
    "num_rows",
    "on_device",
    "row_batch",
    "row_kind",
    "row_marks",
    "row_type",
    "structure_of",
    "targets",
]
