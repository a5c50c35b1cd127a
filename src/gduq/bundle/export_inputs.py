"""What an exported program is given, and what its file says about itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from gduq import __version__
from gduq.errors import InputError
from gduq.graph import iterate, join, num_graphs, on_device, row_kind
from gduq.nn.call import evaluating
from gduq.prediction.predicting import device_of_model
from gduq.prediction.predictor import Predictor

__all__ = ["Inputs", "about", "graphs_like", "inputs_of"]

_NOT_READ = {"y", "batch", "ptr", "edge_label", "row_mask", "edge_row_mask"}
_FIRST = ("x", "edge_index", "edge_attr", "edge_weight")  # then the others by name
_GRAPHS = 3  # of those that are given, traced with


@dataclass(frozen=True)
class Inputs:
    """Tensors by name, with what their sizes are.

    Attributes:
        tensors: An example.
        dims: Which of the sizes of each tensor vary, and with what.
        words: Attributes of the graph that are no tensors.
    """

    tensors: dict[str, Tensor]
    dims: dict[str, dict[int, Any]]
    words: dict[str, Any]

    def without(self, names: Collection[str]) -> Inputs:
        """The same without some of the tensors."""
        kept = [name for name in self.tensors if name not in names]
        return replace(
            self,
            tensors={name: self.tensors[name] for name in kept},
            dims={name: self.dims[name] for name in kept},
        )

    def described(self) -> list[dict[str, Any]]:
        """Name, dtype and shape of each, as JSON holds them."""
        return [
            {
                "name": name,
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": [
                    self.dims[name][i].__name__ if i in self.dims[name] else size
                    for i, size in enumerate(value.shape)
                ],
            }
            for name, value in self.tensors.items()
        ]


def inputs_of(model: Predictor, graphs: Sequence[Data]) -> Inputs:
    """The tensors of some graphs that a model may read.

    Args:
        model: A fitted model.
        graphs: From `graphs_like`.
    """
    graphs = [on_device(graph, device_of_model(model)) for graph in graphs]
    with torch.no_grad(), evaluating(model):
        rows = model.answer(join([graphs[0]] * 2)).outputs.size(1)
    per_graph = rows == 2 * num_graphs(graphs[0]) and row_kind(graphs[0]) is None
    several = [*graphs, graphs[0]][: max(2, len(graphs))]
    graph = join(several) if per_graph else graphs[0]
    dims = {name: torch.export.Dim(name) for name in ("nodes", "edges", "graphs", "judged_edges")}
    tensors: dict[str, Tensor] = {}
    varying: dict[str, dict[int, Any]] = {}
    for name in sorted(set(graph.keys()) - _NOT_READ, key=_place):
        value = graph[name]
        if isinstance(value, Tensor) and value.dim() and "mask" not in name:
            tensors[name] = value if value.layout == torch.strided else value.to_dense()
            varying[name] = _varying(graphs[0], name, value, dims, per_graph)
    if per_graph:
        tensors["sizes"], varying["sizes"] = graph.ptr.diff(), {0: dims["graphs"]}
    words = {"row_kind": "edge"} if row_kind(graph) == "edge" else {}
    return Inputs(tensors, varying, words)


def graphs_like(like: Any) -> list[Data]:
    """A few graphs whose sizes are not 0 or 1, which torch takes for constants."""
    found: list[Data] = []
    for graph in _one_by_one(like):
        if isinstance(graph, HeteroData):
            raise InputError("homogeneous graphs to export", "HeteroData")
        edges = graph.get("edge_index")
        if edges is None:
            raise InputError("graphs with edge_index to export", f"only {sorted(graph.keys())}")
        if edges.size(1) > 1 and (graph.num_nodes or 0) > 1:
            found.append(graph)
        if len(found) == _GRAPHS:
            break
    if not found:
        raise InputError("a graph with two nodes and two edges at least in like", "none")
    return found


def _place(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _one_by_one(like: Any) -> Iterator[Any]:
    for graph in iterate(like, 16):
        yield from graph.to_data_list() if isinstance(graph, Batch) else [graph]


def _varying(
    graph: Data, name: str, value: Tensor, dims: dict[str, Any], per_graph: bool
) -> dict[int, Any]:
    """Which sizes of an attribute vary, told from one graph."""
    if name == "edge_label_index":
        return {1: dims["judged_edges"]}
    if name == "edge_index":
        return {1: dims["edges"]}
    if graph.is_node_attr(name):
        return {0: dims["nodes"]}
    if graph.is_edge_attr(name):
        return {0: dims["edges"]}
    return {0: dims["graphs"]} if per_graph else {}


# -- what the file says ----------------------------------------------------------------------------


def about(
    model: Predictor,
    inputs: Inputs,
    said: Mapping[str, Tensor],
    graphs: Iterable[Any],
    notes: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a user of the file has to know, as JSON holds it.

    Args:
        model: The model.
        inputs: What the program is given.
        said: What it then says.
        graphs: Some of the graphs it was exported with.
        notes: What was noted about the training table, or ``None``.
    """
    assert model.target is not None
    noted = dict(notes or {})
    target = model.target.combined().spec()
    columns = noted.get("targets") or (None if target["kind"] == "classes" else target.get("names"))
    return {
        "gduq": __version__,
        "inputs": inputs.described(),
        "smiles": _categories(inputs, graphs),
        "outputs": list(said),
        "target": {**target, "columns": columns},
        "calibrated": model.calibration,
        "hypotheses": said["samples"].size(0),
    }


def _categories(inputs: Inputs, graphs: Iterable[Any]) -> dict[str, Any] | None:
    """Per column of atoms and bonds, the values in the order of their numbers.

    ``None`` for graphs that are not what PyG's ``from_smiles`` makes of SMILES.
    """
    from torch_geometric.utils.smiles import e_map, x_map

    lists = {"x": x_map, "edge_attr": e_map}
    widths = {name: value.size(-1) for name, value in inputs.tensors.items() if name in lists}
    like = all(width == len(lists[name]) for name, width in widths.items())
    if not like or not all(isinstance(graph.get("smiles"), str) for graph in graphs):
        return None
    return {"made_by": "torch_geometric.utils.from_smiles", **lists}
