"""`save` and `load`: a trained model in one file, the same in any process, never pickle."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gduq import __version__
from gduq.baselines.ensemble import inner_spec
from gduq.baselines.network import as_predictor
from gduq.bundle import bundle_file
from gduq.bundle.forged import Allowance, Spec, check_names, check_spec
from gduq.bundle.rebuilding import (
    BundleSupply,
    Net,
    as_json,
    each_once,
    leaves,
    needs_call,
    rebuild,
    state_of,
    with_aliases,
)
from gduq.bundle.reference import reference_from, reference_tensors
from gduq.errors import BundleError, InputError, one_line
from gduq.nn.call import Call
from gduq.nn.network_specs import small_graph
from gduq.prediction import predict
from gduq.prediction.base import Hypotheses
from gduq.prediction.predictor import Predictor
from gduq.targets import Classes, Target, target_from

if TYPE_CHECKING:
    from gduq.calibration import Calibrator

__all__ = ["BundleInfo", "describe", "load", "load_reference", "save"]

_LIBRARIES = ("torch", "torch-geometric", "safetensors")


@dataclass(frozen=True)
class BundleInfo:
    """What a bundle says about itself.

    Attributes:
        model: Kind and settings of the model, nested as the model is.
        class_names: One per class, or ``None``.
        preprocessing: What the user noted about it, or ``None``.
        calibrator: Its class name and settings, or ``None``.
        libraries: Versions the bundle was saved with.
    """

    model: dict[str, Any]
    class_names: list[str] | None
    preprocessing: dict[str, Any] | None
    calibrator: dict[str, Any] | None
    libraries: dict[str, str]


def save(
    model: nn.Module,
    path: str | PathLike[str],
    calibrator: Calibrator | None = None,
    class_names: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    overwrite: bool = True,
    reference: Hypotheses | None = None,
) -> Path:
    """Save a model that can predict, with all that prediction needs, in one file.

    A bundle that was there before stays whole until the new one is.

    Args:
        model: What `gduq.fit` or `gduq.choose` trained, a baseline, or any network.
        path: The file; folders above it are made if missing.
        calibrator: A fitted calibrator to keep with the model, beside its own temperature.
        class_names: A name per class; those given to `gduq.fit` are saved anyway.
        preprocessing: Notes on how inputs are made, as JSON holds them; see `describe`.
        overwrite: Whether a bundle that is there may be replaced.
        reference: Predictions of labelled rows that the model was not trained on: ``gduq predict``
            and ``gduq serve`` fit conformal sets and the rule for abstaining on them.

    Example:
        >>> import tempfile, gduq, torch
        >>> from torch_geometric.data import Data
        >>> graph = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> model = gduq.anchor(gduq.nn.GNN(4, 8, 3, num_layers=2), num_anchors=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(model.fit_bank([graph] * 3), f"{folder}/model")
        ...     again, calibrator = load(path)
        >>> torch.equal(again.sample(graph), model.sample(graph))
        True
    """
    file, known = Path(path), as_predictor(model)
    bundle_file.check_target(file, overwrite)
    known.check_ready()
    state = state_of(known)
    spec = as_json(_named(inner_spec(known), known.target, class_names), "settings of the model")
    weights, aliases = each_once(state)
    parts = {"weights": weights}
    libraries = {"python": platform.python_version(), "gduq": __version__}
    document = {
        "model": spec,
        "aliases": aliases,
        "preprocessing": None if preprocessing is None else as_json(preprocessing, "preprocessing"),
        "calibrator": None,
        "libraries": libraries | {name: version(name) for name in _LIBRARIES},
    }
    if calibrator is not None:
        name = type(calibrator).__name__
        config = as_json(calibrator.config(), f"settings of {name}")
        saved, parts["calibrator"] = {"name": name, "config": config}, calibrator.state()
        _calibrator(saved, parts["calibrator"])  # raises for a class that could not be loaded
        document["calibrator"] = saved
    if reference is not None:
        parts["reference"] = reference_tensors(known.target, reference)
    _check_rebuilds(spec, state)
    bundle_file.write(file, document, parts)
    return file


def load(
    path: str | PathLike[str], net: Net | None = None, call: Call | None = None
) -> tuple[Predictor, Calibrator | None]:
    """Load what `save` saved: ``(model, calibrator or None)``, on the CPU, in evaluation mode.

    Models made of `GNN` need nothing else. No code from the bundle is ever run, so any other
    network must be handed in. A plain network comes back as a `gduq.Network`.

    Args:
        path: The file.
        net: A network built as the saved one was before `gduq.anchor`, with any weights; it is
            copied. An ensemble takes one for all members, or a list of one per member; members
            that share their network need it once.
        call: The function the model was made with, if it was made with one.

    Raises:
        BundleError: The bundle is damaged, not ours, of another format, or does not fit ``net``.
    """
    file = Path(path)
    document, parts = bundle_file.read(file)
    with _as_bundle_errors(file):
        spec, saved = document["model"], document["calibrator"]
        tensors = with_aliases(parts["weights"], document["aliases"])
        check_spec(spec, tensors)
        _check_call(spec, call)
        model = rebuild(spec, tensors, BundleSupply(spec, net, call))
        calibrator = None if saved is None else _calibrator(saved, parts.get("calibrator", {}))
        _check_answers(model.eval(), spec)
    return model, calibrator


def load_reference(path: str | PathLike[str]) -> Any:
    """The predictions that `save` was given as ``reference``, or ``None``."""
    file = Path(path)
    document, parts = bundle_file.read(file)
    if "reference" not in parts:
        return None
    with _as_bundle_errors(file):
        target = document["model"]["target"]
        return reference_from(target and target_from(target), parts["reference"])


def describe(path: str | PathLike[str]) -> BundleInfo:
    """What a bundle says about itself.

    Example:
        >>> import tempfile
        >>> from gduq.nn import GNN
        >>> net = GNN(4, 8, 2, num_layers=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(net, f"{folder}/model", class_names=["no", "yes"])
        ...     describe(path).class_names
        ['no', 'yes']
    """
    file = Path(path)
    document, _ = bundle_file.read(file)
    with _as_bundle_errors(file):
        names = (document["model"]["target"] or {}).get("names")
        check_names(names)
        own = [name for name in BundleInfo.__annotations__ if name != "class_names"]
        return BundleInfo(class_names=names, **{name: document[name] for name in own})


# -- what is saved -----------------------------------------------------------------------------


def _named(spec: Spec, target: Target | None, names: Sequence[str] | None) -> dict[str, Any]:
    """The spec with these class names, or those that it has."""
    known: Any = target
    if names is not None:
        if isinstance(names, str):
            raise InputError("class_names, a list of texts", repr(names))
        if not isinstance(known, Classes | None):
            raise InputError("class_names for a model of classes", f"one of {known.kind}")
        if known is None:  # never fitted: as many classes as the model has outputs, or names
            sizes = [leaf["config"]["out_channels"] for leaf in leaves(spec) if "config" in leaf]
            known = Classes.of_outputs((sizes or [len(names)])[0])
        known = replace(known, names=tuple(names))
    if known is None:
        return dict(spec)
    found = known.spec()
    check_names(found.get("names"))
    return {**spec, "target": found}


def _check_rebuilds(spec: Spec, weights: Mapping[str, Tensor]) -> None:
    """Refuse a model that `load` could not make again, as far as gduq makes it alone."""
    if needs_call(spec) or any(leaf["kind"] == "other" for leaf in leaves(spec)):
        return
    try:
        rebuild(spec, weights, BundleSupply(spec))
    except InputError as error:
        raise InputError(
            "a model whose parts are as its constructor made them",
            f"one that was rebuilt by hand ({one_line(error)})",
            "Put your own parts into a module of your own class, and load with net=.",
        ) from error


# -- what is loaded ----------------------------------------------------------------------------


def _calibrator(spec: Spec, state: Mapping[str, Tensor]) -> Calibrator:
    from gduq.calibration import restore

    with Allowance(state):
        return restore(spec["name"], spec["config"], state)


def _check_answers(model: Predictor, spec: Spec) -> None:
    """Let a model of gduq's own networks answer for one edge, which shows that its parts fit."""
    configs = [leaf["config"] for leaf in leaves(spec) if leaf["kind"] != "other"]
    if not configs or len(configs) < len(leaves(spec)):
        return
    weights = (w for w in model.parameters() if w.is_floating_point())
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = small_graph(configs[0], next(weights, torch.zeros(0)).dtype)
        predict(model, graph).to_pandas()


def _check_call(spec: Spec, call: Call | None) -> None:
    if call is None and needs_call(spec):
        raise BundleError(
            "call=, the function this model was made with",
            "none",
            "A function cannot be saved: gduq.load(path, ..., call=call).",
        )
    if call is not None and not needs_call(spec):
        raise InputError("no call= for a model that was made without one", repr(call))


@contextmanager
def _as_bundle_errors(file: Path) -> Iterator[None]:
    """Whatever goes wrong in making a model from a sound file is said to be the bundle's fault."""
    try:
        yield
    except (BundleError, MemoryError, OSError, ImportError, Warning):
        raise
    except InputError as error:
        raise BundleError(error.expected, error.got, error.do) from error
    except Exception as error:  # code that makes a model may raise any for odd settings
        raise BundleError(f"a model in {file}", one_line(error)) from error
