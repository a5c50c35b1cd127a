"""A whole predictor as one function of tensors, and the tensors of a graph that it is given."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from gduq.bundle.export_symbols import knowing_graphs
from gduq.errors import InputError
from gduq.graph import iterate, join, num_graphs, on_device, row_kind
from gduq.nn.call import evaluating
from gduq.prediction.predicting import device_of_model
from gduq.prediction.predictor import Predictor

if TYPE_CHECKING:
    from gduq.calibration import Calibrator

__all__ = ["Inputs", "Program", "graphs_like"]

_NOT_READ = {"y", "batch", "ptr", "edge_label", "row_mask", "edge_row_mask"}
_FIRST = ("x", "edge_index", "edge_attr", "edge_weight")  # then the others by name
_GRAPHS = 3  # of those that are given, traced with


def graphs_like(like: Any) -> list[Data]:
    """A few graphs whose sizes are not 0 or 1, which torch takes for constants."""
    found: list[Data] = []
    for batch in iterate(like, 16):
        for graph in batch.to_data_list() if isinstance(batch, Batch) else [batch]:
            if isinstance(graph, HeteroData):
                raise InputError("homogeneous graphs to export", "HeteroData")
            edges = graph.get("edge_index")
            if edges is None:
                raise InputError("graphs with edge_index to export", f"only {sorted(graph.keys())}")
            if edges.size(1) > 1 and (graph.num_nodes or 0) > 1:
                found.append(graph)
            if len(found) == _GRAPHS:
                return found
    if not found:
        raise InputError("a graph with two nodes and two edges at least in like", "none")
    return found


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

    @classmethod
    def of(cls, model: Predictor, graphs: Sequence[Data]) -> Inputs:
        """The tensors of some graphs that a fitted model may read."""
        graphs = [on_device(graph, device_of_model(model)) for graph in graphs]
        with torch.no_grad(), evaluating(model):
            rows = model.answer(join([graphs[0]] * 2)).outputs.size(1)
        per_graph = rows == 2 * num_graphs(graphs[0]) and row_kind(graphs[0]) is None
        several = [*graphs, graphs[0]][: max(2, len(graphs))]
        graph = join(several) if per_graph else graphs[0]
        names = sorted(set(graph.keys()) - _NOT_READ)
        names.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
        found = {
            name: value if value.layout == torch.strided else value.to_dense()
            for name in names
            if isinstance(value := graph[name], Tensor) and value.dim() and "mask" not in name
        }
        sizes = ("nodes", "edges", "graphs", "judged_edges")
        dims = {name: torch.export.Dim(name) for name in sizes}
        varying = {name: _varying(graphs[0], name, dims, per_graph) for name in found}
        if per_graph:
            found["sizes"], varying["sizes"] = graph.ptr.diff(), {0: dims["graphs"]}
        return cls(found, varying, {"row_kind": "edge"} if row_kind(graph) == "edge" else {})

    def without(self, names: Collection[str]) -> Inputs:
        """The same without some of the tensors."""
        kept = {name: value for name, value in self.tensors.items() if name not in names}
        return replace(self, tensors=kept, dims={name: self.dims[name] for name in kept})

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


def _varying(graph: Data, name: str, dims: dict[str, Any], per_graph: bool) -> dict[int, Any]:
    """Which sizes of an attribute vary, told from one graph."""
    if name in ("edge_index", "edge_label_index"):
        return {1: dims["edges" if name == "edge_index" else "judged_edges"]}
    if graph.is_node_attr(name):
        return {0: dims["nodes"]}
    if graph.is_edge_attr(name):
        return {0: dims["edges"]}
    return {0: dims["graphs"]} if per_graph else {}


class Program(nn.Module):
    """A predictor that takes tensors and gives tensors, by name.

    It is called with attributes of a graph. ``sizes`` is the number of nodes of each graph ``[G]``;
    without it all nodes are of one graph.

    Args:
        model: A fitted model, which is copied.
        inputs: What it is to be called with.
        calibrator: A fitted calibrator of its predictions, or ``None``.
    """

    def __init__(
        self, model: Predictor, inputs: Inputs, calibrator: Calibrator | None = None
    ) -> None:
        super().__init__()
        self.model, self.words = _ready_to_trace(model), inputs.words
        self.calibrator = calibrator

        def forward(**tensors: Tensor) -> dict[str, Tensor]:
            return self._answer(tensors)

        kind = inspect.Parameter.KEYWORD_ONLY  # torch names the inputs of a program by these
        given = [inspect.Parameter(name, kind) for name in inputs.tensors]
        forward.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
        self.__dict__["forward"] = forward

    def _answer(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        given = dict(tensors)
        sizes = given.pop("sizes", None)
        graph = Data(**given, **self.words)
        if sizes is None:
            return self._said(graph)
        ends = sizes.cumsum(0)
        graph.ptr = torch.cat([torch.zeros_like(ends[:1]), ends])
        # the number of the graph of each node: how many graphs have ended before it
        marks = torch.zeros(graph.num_nodes + 1, dtype=torch.int64, device=ends.device)
        marks = marks.index_add(0, ends, torch.ones_like(ends))
        graph.batch = marks.cumsum(0)[: graph.num_nodes]
        with knowing_graphs(graph.batch, sizes.size(0)):
            return self._said(graph)

    def _said(self, graph: Data) -> dict[str, Tensor]:
        """What `gduq.predict` says of all rows; values always ``[m, T]``."""
        model, calibrator = self.model, self.calibrator
        reads = calibrator is not None and calibrator.needs_features
        found, novelty = model.calibrated_answer(graph, features=reads, novelty=True)
        assert model.target is not None
        features = found.features if reads else None
        p: Any = model.target.prediction(found.outputs, weights=found.weights, features=features)
        p = p if calibrator is None else calibrator(p)
        count = p.num_samples
        even = p.samples.new_full((count,), 1 / count)
        said = {
            "samples": p.samples,
            "weights": even if found.weights is None else found.weights.to(even),
        }
        own = ("mean", "std") if p.kind == "values" else ("probs", "confidence", "entropy")
        for name in (*own, "aleatoric", "epistemic"):
            value = getattr(p, name)
            said[name] = value.unsqueeze(1) if p.kind == "values" and value.dim() == 1 else value
        if novelty is not None:
            said["novelty"] = novelty
        return said


def _ready_to_trace(model: Predictor) -> Predictor:
    """A copy without gradients, in evaluation mode, whose flags are plain numbers.

    A program cannot look into a tensor to decide where to go on.
    """
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    for module in copied.modules():
        for name, value in list(module._buffers.items()):
            if value is not None and value.dim() == 0 and not value.is_floating_point():
                del module._buffers[name]
                module.__dict__[name] = value.item()
    return copied
