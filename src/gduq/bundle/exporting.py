"""`export`: a complete predictor as a file that needs neither gduq nor PyG to run."""

from __future__ import annotations

import copy
import inspect
import io
import json
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Batch, Data, HeteroData

from gduq import __version__
from gduq._io import atomic_path
from gduq._torch import device_of_model
from gduq.errors import InputError, not_installed
from gduq.graphs import Graph, iterate, join, num_graphs, on_device, row_kind
from gduq.models.network import checked_predictor
from gduq.models.predictor import Predictor
from gduq.prediction.mixture import weights_of
from gduq.tracing.call import evaluating

if TYPE_CHECKING:
    from gduq.calibration import Calibrator

__all__ = ["export"]

_CLOSE = 1e-4  # a program that differs by more from the model it was made of is not written
_GRAPHS = 3  # of those that are given, traced with
_NOT_READ = {"y", "batch", "ptr", "edge_label", "row_mask", "edge_row_mask"}
# what a program says of rows beside samples, weights and novelty, as far as their kind has it
_OF_ROWS = ("mean", "std", "probs", "confidence", "entropy", "aleatoric", "epistemic")
_Program = torch.export.ExportedProgram
_Sizes = Mapping[
    str, Mapping[int, str]
]  # those that vary: what they number, by input and dimension
_COLUMNS = {"edge_index": "edges", "edge_label_index": "labelled_edges"}


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    like: Any,
    calibrator: Calibrator | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model as one file that answers on its own, for any numbers of nodes, edges, graphs:
    hypotheses, their mixture, calibration and novelty.

    * ``.pt2``: ``torch.export.load(path).module()`` gives a function of tensors.
    * ``.onnx``: for onnxruntime and others; needs onnx and onnxscript.

    Both take, by name, the attributes of a graph that the model reads, unchecked, and, where graphs
    are answered for, ``sizes``, the number of nodes of each graph ``[G]``. Both give, by name, what
    `gduq.predict` says: ``samples`` ``[K, m, ...]`` (of values means, then log-variances) and
    ``weights`` ``[K]`` of the hypotheses, ``aleatoric``, ``epistemic`` and ``novelty``; of values
    ``mean`` and ``std``, of classes and labels ``probs``, ``confidence`` and ``entropy``.

    The file tells inputs, outputs, names and units itself, and how SMILES become inputs:
    ``gduq.json`` among the extra files of a ``.pt2``, ``gduq`` in the metadata of an ``.onnx``.

    Args:
        model: A fitted model; not `MCDropout`, which draws.
        path: The file, ending in ``.pt2`` or ``.onnx``; one that is there is replaced.
        like: A graph, or several, such as the model is to answer for.
        calibrator: One fitted on the model's predictions that does not read the graph.
        notes: What is known of the training table, ``gduq.bundle.describe(path).preprocessing``:
            it names the target columns.

    Example:
        >>> import gduq, tempfile
        >>> from torch_geometric.data import Data
        >>> ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> graphs = [Data(x=torch.randn(3, 2), edge_index=ring, y=i % 2) for i in range(40)]
        >>> net = gduq.nn.GNN(2, 4, 2, num_layers=2)
        >>> _ = gduq.fit(net, graphs[:20], graphs[20:], epochs=1, progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export(net, f"{folder}/model.pt2", graphs)
        ...     program = torch.export.load(path).module()
        >>> two = program(x=torch.randn(7, 2), edge_index=ring, sizes=torch.tensor([3, 4]))
        >>> two["probs"].shape
        torch.Size([2, 2])
    """
    file, known = Path(path), checked_predictor(model)
    if file.suffix not in (".pt2", ".onnx") or file.is_dir():
        raise InputError("a file ending in .pt2 or .onnx", file.name)
    if file.suffix == ".onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        what = "onnx and onnxscript, which write .onnx files"
        raise not_installed(what, "onnx onnxscript", ", or export to .pt2.")
    if known.target is None:
        raise InputError("a fitted model", "one that gduq.fit has not trained")
    known.check_ready()
    if calibrator is not None and calibrator.needs_graph:
        got = f"{type(calibrator).__name__}, which reads the graph around a row"
        raise InputError("a calibrator that maps the outputs of single rows", got)
    graphs = _graphs_like(like)
    examples, sizes = _inputs(known, graphs)
    program, inputs, outputs = _traced(partial(_Predictor, known, calibrator), examples, sizes)
    about = json.dumps({
        "gduq": __version__,
        "inputs": [
            {"name": name, "dtype": str(one.dtype)[6:],
             "shape": [sizes[name].get(i, size) for i, size in enumerate(one.shape)]}
            for name, one in inputs.items()
        ],
        "smiles": _categories(inputs, graphs),
        "outputs": list(outputs),
        "target": {**known.target.combined().spec(), "columns": (notes or {}).get("targets")},
        "calibrated": known.calibration,
        "calibrator": None if calibrator is None else type(calibrator).__name__,
        "hypotheses": outputs["samples"].size(0),
    })  # fmt: skip
    with atomic_path(file) as unfinished:
        if file.suffix == ".onnx":
            _write_onnx(program, [*inputs, *outputs], about, unfinished)
        else:
            with unfinished.open("wb") as stream:  # a name would have to end in .pt2
                torch.export.save(program, stream, extra_files={"gduq.json": about})
    return file


# -- what a program is given -----------------------------------------------------------------------


def _graphs_like(like: Any) -> list[Data]:
    """A few graphs whose sizes are not 0 or 1, which torch takes for constants."""
    batches = (b.to_data_list() if isinstance(b, Batch) else [b] for b in iterate(like, 16))
    found = list(islice(filter(_has_sizes, chain.from_iterable(batches)), _GRAPHS))
    if not found:
        raise InputError("a graph with two nodes and two edges at least in like", "none")
    return found


def _has_sizes(graph: Graph) -> bool:
    if isinstance(graph, HeteroData) or graph.get("edge_index") is None:
        got = f"{type(graph).__name__} of {sorted(graph.keys())}"
        raise InputError("homogeneous graphs with edge_index to export", got)
    return int(graph.edge_index.size(1)) > 1 and (graph.num_nodes or 0) > 1


def _inputs(model: Predictor, graphs: Sequence[Data]) -> tuple[dict[str, Tensor], _Sizes]:
    """The tensors of some graphs that a fitted model may read, by name, and their sizes that vary,
    by dimension."""
    graphs = [on_device(graph, device_of_model(model)) for graph in graphs]
    first = graphs[0]
    with torch.no_grad(), evaluating(model):
        rows = model.forward_samples(join([first] * 2)).outputs.size(1)
    per_graph = rows == 2 * num_graphs(first) and row_kind(first) is None
    graph = join([*graphs, first][: max(2, len(graphs))]) if per_graph else first
    examples, sizes = dict[str, Tensor](), dict[str, dict[int, str]]()
    for name in first.to_dict():
        value = graph[name]
        if name in _NOT_READ or not isinstance(value, Tensor) or not value.dim() or "mask" in name:
            continue
        examples[name], sizes[name] = value.to_dense(), {0: "graphs"} if per_graph else {}
        if name in _COLUMNS:
            sizes[name] = {1: _COLUMNS[name]}
        elif first.is_node_attr(name) or first.is_edge_attr(name):
            sizes[name] = {0: "nodes" if first.is_node_attr(name) else "edges"}
    if per_graph:
        examples["sizes"], sizes["sizes"] = graph.ptr.diff(), {0: "graphs"}
    return examples, sizes


def _categories(examples: Mapping[str, Tensor], graphs: Iterable[Data]) -> dict[str, object] | None:
    """Per column of atoms and bonds, the values in the order of their numbers.

    ``None`` for graphs that are not what PyG's ``from_smiles`` makes of SMILES.
    """
    from torch_geometric.utils.smiles import e_map, x_map

    lists = {"x": x_map, "edge_attr": e_map}
    alike = all(isinstance(graph.get("smiles"), str) for graph in graphs) and all(
        examples[name].size(-1) == len(lists[name]) for name in lists if name in examples
    )
    return {"made_by": "torch_geometric.utils.from_smiles", **lists} if alike else None


# -- the predictor as a function of tensors --------------------------------------------------------


class _Predictor(nn.Module):
    """A predictor that takes attributes of a graph and gives tensors, by name.

    ``sizes`` is the number of nodes of each graph ``[G]``; without it all nodes are of one graph.
    """

    def __init__(
        self, model: Predictor, calibrator: Calibrator | None, names: Iterable[str]
    ) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.calibrator = calibrator
        for parameter in self.model.parameters():  # a file holds whole tensors, not views of one
            parameter.data = parameter.data.clone()
        for module in self.model.modules():
            for name, value in list(module.named_buffers(recurse=False)):
                module._buffers[name] = value.clone()
                if value.dim() == 0 and not value.is_floating_point():
                    del module._buffers[name]  # a program cannot look into a tensor to decide
                    module.__dict__[name] = value.item()

        def forward(**tensors: Tensor) -> dict[str, Tensor]:
            return self._forward(tensors)

        kind = inspect.Parameter.KEYWORD_ONLY  # torch names the inputs of a program by these
        given = [inspect.Parameter(name, kind) for name in names]
        forward.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
        self.__dict__["forward"] = forward

    def _forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes = tensors.pop("sizes", None)
        graph = Data(**tensors)
        if sizes is None:
            return self._predict(graph)
        ends = sizes.cumsum(0)
        graph.ptr = torch.cat([torch.zeros_like(ends[:1]), ends])
        # the number of the graph of each node: how many graphs have ended before it
        marks = torch.zeros(graph.num_nodes + 1, dtype=torch.int64, device=ends.device)
        marks = marks.index_add(0, ends, torch.ones_like(ends))
        graph.batch = marks.cumsum(0)[: graph.num_nodes]
        with _known_graphs(graph.batch, sizes.size(0)):
            return self._predict(graph)

    def _predict(self, graph: Data) -> dict[str, Tensor]:
        """What `gduq.predict` says of all rows."""
        found, novelty, far = self.model.calibrated_samples(graph, novelty=True)
        assert self.model.target is not None
        p = self.model.target.prediction(found.outputs, weights=found.weights)
        if far is not None:
            p = replace(p, trust=self.model.trust(p, far))
        p = p if self.calibrator is None else self.calibrator(p)
        weights = weights_of(p.samples, found.weights).to(p.samples)
        given = {name: getattr(p, name) for name in _OF_ROWS if hasattr(type(p), name)}
        given |= {} if p.trust is None else {"trust": p.trust}
        if "mean" in given:  # values are always [m, T]
            given = {n: v.unsqueeze(1) if v.dim() == 1 else v for n, v in given.items()}
        given = {"samples": p.samples, "weights": weights, **given}
        return given if novelty is None else {**given, "novelty": novelty}


# -- the number of graphs, which layers of PyG find by looking into ``batch``, as a symbol ---------

# modules of PyG where int(batch.max()) + 1 is how many graphs there are
_LOOKING = ["utils._scatter", "utils.num_nodes", "nn.aggr.base", "nn.aggr.fused"]
_LOOKING += [f"nn.norm.{name}_norm" for name in ("graph", "instance", "layer")]
_LOCK = threading.RLock()


def _int(value: Any = 0) -> Any:
    """What ``int`` is in those modules meanwhile: symbols count as whole numbers."""
    value = getattr(value, "_gduq_number", value)
    return value if isinstance(value, torch.SymInt) else int(value)


@contextmanager
def _known_graphs(batch: Tensor, graphs: int) -> Iterator[None]:
    """Within this context PyG's layers take the number of graphs from here: they ask for the
    largest number in ``batch`` as a Python number, which a program for any number has not."""

    class KnownMaximum(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: object, args: Any = (), kwargs: Any = None
        ) -> object:
            found = func(*args, **(kwargs or {}))
            if func in (torch.max, Tensor.max) and len(args) == 1 and args[0] is batch:
                found._gduq_number = graphs - 1
            return found

    names = (f"torch_geometric.{name}" for name in _LOOKING)
    spaces = [vars(sys.modules[name]) for name in names if name in sys.modules]
    with _LOCK, KnownMaximum():
        for space in spaces:
            space["int"] = _int
        try:
            yield
        finally:
            for space in spaces:
                del space["int"]


# -- tracing ---------------------------------------------------------------------------------------


@torch.no_grad()
def _traced(
    make: Callable[[Iterable[str]], _Predictor], examples: dict[str, Tensor], sizes: _Sizes
) -> tuple[_Program, dict[str, Tensor], dict[str, Tensor]]:
    """The program, what it is given and what it then says.

    Inputs that nothing reads are left out, unless the network asks for them.
    """
    wanted = make(examples)(**examples)
    program = _trace(make(examples), examples, sizes)
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    idle = {node.target for node in placeholders if not node.users}
    fewer = {name: value for name, value in examples.items() if name not in idle}
    if len(fewer) < len(examples):
        with suppress(InputError):
            program, examples = _trace(make(fewer), fewer, sizes), fewer
    outputs = program.module()(**examples)
    for name, value in wanted.items():
        off = float(((outputs[name] - value).abs() / (1 + value.abs())).max())
        if not off < _CLOSE:
            raise _refused(f"a program whose {name} is off by {off:.1g}, as where it draws")
    return program, examples, outputs


def _trace(program: _Predictor, examples: dict[str, Tensor], sizes: _Sizes) -> _Program:
    known = {name: torch.export.Dim(name) for given in sizes.values() for name in given.values()}
    dims = {name: {i: known[size] for i, size in sizes[name].items()} for name in examples}
    try:
        with _quiet():
            return torch.export.export(program, (), examples, dynamic_shapes=dims, strict=False)
    except InputError:
        raise
    except Exception as error:  # torch raises of all kinds
        # the line outside torch that led to it, and torch's first words about it
        inside = (os.path.dirname(torch.__file__) + os.sep, __file__, "<")
        frames = traceback.extract_tb(error.__traceback__)
        what = (str(error).strip().splitlines() or [type(error).__name__])[0]
        for frame in [frame for frame in frames if not frame.filename.startswith(inside)][-1:]:
            file = frame.filename.rpartition(f"site-packages{os.sep}")[2]
            what = f"`{frame.line}` in {file}, line {frame.lineno} ({what})"
        raise _refused(what) from error


def _refused(what: str) -> InputError:
    wanted = "operations that hold for any graph and draw nothing, to export"
    return InputError(wanted, what, "Replace that layer, or serve the model with gduq.predict.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch tells at length what it tries; an error says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# -- ONNX ------------------------------------------------------------------------------------------


def _write_onnx(program: _Program, names: Sequence[str], about: str, path: Path) -> None:
    """``names`` are those of the inputs, then of the outputs."""
    try:
        with _quiet():
            made: Any = torch.onnx.export(program, (), dynamo=True, verbose=False)
    except Exception as error:
        last: BaseException = error
        while last.__cause__ is not None:
            last = last.__cause__
        lines = str(last).strip().splitlines() or [type(last).__name__]  # the last says which
        raise _refused(f"what ONNX does not know: {lines[-1].strip()}") from error
    graph = made.model.graph
    for value in (value for node in graph for value in node.outputs):
        if value.name in names:  # what is inside gives way
            value.name = f"{value.name}_inside"
    for value, name in zip((*graph.inputs, *graph.outputs), names, strict=True):
        value.name = name
    made.model.metadata_props["gduq"] = about
    made.save(path)
