"""`export`: a whole predictor as a file that needs neither gduq nor PyG to run."""

from __future__ import annotations

import io
import json
import logging
import os
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gduq import __version__
from gduq.baselines.network import as_predictor
from gduq.bundle import export_symbols
from gduq.bundle.export_program import Inputs, Program, graphs_like
from gduq.disk import atomic_path
from gduq.errors import InputError, not_installed
from gduq.prediction.predictor import Predictor

if TYPE_CHECKING:
    from gduq.calibration import Calibrator

__all__ = ["export"]

_CLOSE = 1e-4  # a program that differs by more from the model it was made of is not written
_Program = torch.export.ExportedProgram


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    like: Any,
    calibrator: Calibrator | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model as one file that answers on its own, for any numbers of nodes, edges, graphs.

    All of the model is in it: hypotheses, their mixture, calibration and novelty.

    * ``.pt2``: ``torch.export.load(path).module()`` gives a function of tensors.
    * ``.onnx``: for onnxruntime and others; needs onnx and onnxscript.

    Both take, by name, the attributes of a graph that the network or novelty reads and, where
    graphs are answered for, ``sizes``, the number of nodes of each graph ``[G]``. Both give, by
    name, what `gduq.predict` says: ``samples`` ``[K, m, ...]`` and ``weights`` ``[K]`` of the
    hypotheses, ``aleatoric``, ``epistemic`` and ``novelty``; of values ``mean`` and ``std``, of
    classes and labels ``probs``, ``confidence`` and ``entropy``. ``samples`` of values are means,
    then log-variances. Inputs are not checked.

    The file tells inputs, outputs, names and units itself, and how SMILES become inputs:
    ``gduq.json`` among the extra files of a ``.pt2``, ``gduq`` in the metadata of an ``.onnx``.

    Args:
        model: A fitted model; not `MCDropout`, which draws.
        path: The file, ending in ``.pt2`` or ``.onnx``; one that is there is replaced.
        like: A graph, or several, such as the model is to answer for.
        calibrator: One that was fitted on the model's predictions, as `gduq.load` gives it. Not one
            that reads the graph, or changes levels of the distribution (`IsotonicRecalibration`).
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
    target = Path(path)
    if target.suffix not in (".pt2", ".onnx"):
        raise InputError("a file ending in .pt2 or .onnx", target.name)
    if target.is_dir():
        raise InputError("a file to write", f"{target}, which is a folder")
    if target.suffix == ".onnx":
        _check_onnx()
    known = as_predictor(model)
    if known.target is None:
        do = "Call gduq.fit(model, train, val)."
        raise InputError("a fitted model", "one that gduq.fit has not seen", do)
    known.check_ready()
    _check_calibrator(calibrator)
    graphs = graphs_like(like)
    program, inputs, said = _traced(known, Inputs.of(known, graphs), calibrator)
    about = _about(known, inputs, said, graphs, notes)
    about["calibrator"] = None if calibrator is None else type(calibrator).__name__
    told = json.dumps(about)
    with atomic_path(target) as unfinished:
        if target.suffix == ".pt2":
            content = io.BytesIO()  # a file would have to be called .pt2
            torch.export.save(program, content, extra_files={"gduq.json": told})
            unfinished.write_bytes(content.getbuffer())
        else:
            _write_onnx(program, list(inputs.tensors), list(said), told, unfinished)
    return target


def _check_calibrator(calibrator: Calibrator | None) -> None:
    """Raise for one whose answers are no function of the outputs of single rows."""
    if calibrator is None:
        return
    why = "reads the graph around a row" if calibrator.needs_graph else ""
    if calibrator.acts_on == "levels":
        why = "changes levels of the distribution, which samples cannot say"
    if why:
        raise InputError(
            "a calibrator that maps the outputs of single rows",
            f"{type(calibrator).__name__}, which {why}",
            "Choose another one, or export the model without it.",
        )


def _about(
    model: Predictor,
    inputs: Inputs,
    said: Mapping[str, Tensor],
    graphs: Iterable[Any],
    notes: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a user of the file has to know, as JSON holds it."""
    assert model.target is not None
    target = model.target.combined().spec()
    names = None if target["kind"] == "classes" else target.get("names")
    return {
        "gduq": __version__,
        "inputs": inputs.described(),
        "smiles": _categories(inputs, graphs),
        "outputs": list(said),
        "target": {**target, "columns": (notes or {}).get("targets") or names},
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


# -- tracing -------------------------------------------------------------------------------------


@torch.no_grad()
def _traced(
    model: Predictor, inputs: Inputs, calibrator: Calibrator | None
) -> tuple[_Program, Inputs, dict[str, Tensor]]:
    """The program, what it is given and what it then says.

    Inputs that nothing reads are left out, unless the network asks for them.
    """
    wanted = Program(model, inputs, calibrator)(**inputs.tensors)
    program = _trace(model, inputs, calibrator)
    nodes = program.graph.nodes
    idle = {node.target for node in nodes if node.op == "placeholder" and not node.users}
    fewer = inputs.without(idle)
    if len(fewer.tensors) < len(inputs.tensors):
        with suppress(InputError):
            program, inputs = _trace(model, fewer, calibrator), fewer
    for node in program.graph.nodes:
        if node.op == "call_function" and _draws(node):
            raise _in_the_way(f"{node.target}, which draws at random")
    said = program.module()(**inputs.tensors)
    for name, value in wanted.items():
        off = float(((said[name] - value).abs() / (1 + value.abs())).max())
        if not off < _CLOSE:
            raise _in_the_way(f"a program whose {name} is off by {off:.1g}")
    return program, inputs, said


def _trace(model: Predictor, inputs: Inputs, calibrator: Calibrator | None) -> _Program:
    program = Program(model, inputs, calibrator)
    try:
        with _quiet():
            return torch.export.export(
                program, (), inputs.tensors, dynamic_shapes=inputs.dims, strict=False
            )
    except InputError:
        raise
    except Exception as error:  # torch raises of all kinds
        raise _in_the_way(_where(error)) from error


def _where(error: BaseException) -> str:
    """The line outside torch that led to an error, and torch's first words about it."""
    inside = (os.path.dirname(torch.__file__) + os.sep, export_symbols.__file__, "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(inside)]
    words = str(error).strip().splitlines() or [type(error).__name__]
    if not own:
        return words[0]
    file = own[-1].filename.rpartition(f"site-packages{os.sep}")[2]
    return f"`{own[-1].line}` in {file}, line {own[-1].lineno} ({words[0]})"


def _in_the_way(what: str) -> InputError:
    return InputError(
        "a model of operations that hold for any graph and draw nothing",
        what,
        "Replace that layer, or serve the model with gduq.predict.",
    )


def _draws(node: Any) -> bool:
    """Whether an operation is random, as it is called."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    name, args = str(node.target), node.args
    if "dropout" in name:
        return bool(args[2] if len(args) > 2 else node.kwargs.get("train", True))
    if "attention" in name:
        return bool(args[4] if len(args) > 4 else node.kwargs.get("dropout_p", 0.0))
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch tells at length what it tries; an error says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# -- files ---------------------------------------------------------------------------------------


def _check_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        what = "onnx and onnxscript, which write .onnx files"
        raise not_installed(what, "onnx onnxscript", ", or export to .pt2.") from error


def _write_onnx(
    program: _Program, inputs: list[str], outputs: list[str], told: str, path: Path
) -> None:
    try:
        with _quiet():
            made: Any = torch.onnx.export(program, (), dynamo=True, verbose=False)
    except Exception as error:
        last: BaseException = error
        while last.__cause__ is not None:
            last = last.__cause__
        lines = str(last).strip().splitlines() or [type(last).__name__]  # the last says which
        raise _in_the_way(f"what ONNX does not know: {lines[-1].strip()}") from error
    graph = made.model.graph
    for node in graph:  # what has a name that an input or output is to have gets another
        for value in node.outputs:
            if value.name in (*inputs, *outputs):
                value.name = f"{value.name}_inside"
    for value, name in zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True):
        value.name = name
    made.model.metadata_props["gduq"] = told
    made.save(path)
