"""`save` and `load`: a trained model in one folder, the same in any process, never pickle."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gduq.anchored import Anchored
from gduq.auto import AutoAnchored, settled
from gduq.bundle import files
from gduq.bundle.blueprint import Spec, as_json, leaves, needs_call, one_line, rebuild, spec_of
from gduq.errors import BundleError, InputError, NotFittedError
from gduq.nn.call import Call

if TYPE_CHECKING:
    from gduq.calibration import Calibrator

__all__ = ["BundleInfo", "describe", "load", "save"]

Net = nn.Module | Sequence[nn.Module]


@dataclass(frozen=True)
class BundleInfo:
    """What a bundle says about itself.

    Attributes:
        model: Kind and settings of the model, nested as the model is.
        class_names: One for each class, or ``None``.
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
) -> Path:
    """Save a model that can predict, with all that prediction needs, in one folder.

    The folder holds ``bundle.json`` and safetensors files. It is written atomically: whatever
    happens meanwhile, a bundle that was there before stays whole until the new one is.

    Args:
        model: A `GNN`, an `Anchored` model with its bank, an `Ensemble` or `MCDropout` of these,
            or any other network.
        path: The folder; made if missing.
        calibrator: A fitted calibrator to keep with the model.
        class_names: A name for each class.
        preprocessing: Notes on how inputs are made, as JSON holds them; see `describe`.
        overwrite: Whether a bundle that is there may be replaced.

    Returns:
        The folder.

    Example:
        >>> import tempfile, torch
        >>> from gduq.nn import GNN
        >>> from torch_geometric.data import Data
        >>> graph = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> model = Anchored(GNN(4, 8, 3, num_layers=2), at="readout", num_anchors=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(model.fit_bank([graph] * 3), f"{folder}/model")
        ...     again, calibrator = load(path)
        >>> torch.equal(again.sample(graph), model.sample(graph))
        True
    """
    folder = Path(path)
    model = settled(getattr(model, "_orig_mod", model))  # what torch.compile wrapped
    files.check_target(folder, overwrite)
    parts = {"weights": _tensors(model)}
    spec = spec_of(model)
    document = {
        "model": spec,
        "class_names": _names(class_names, spec),
        "preprocessing": None if preprocessing is None else as_json(preprocessing, "preprocessing"),
        "calibrator": None,
        "libraries": _libraries(),
    }
    if calibrator is not None:
        document["calibrator"], parts["calibrator"] = _calibrator_parts(calibrator)
    _check_rebuilds(spec, parts["weights"])
    files.write(folder, document, parts)
    return folder


def load(
    path: str | PathLike[str], net: Net | None = None, call: Call | None = None
) -> tuple[nn.Module, Calibrator | None]:
    """Load what `save` saved: ``(model, calibrator or None)``, on the CPU, in evaluation mode.

    Models made of `GNN` need nothing else. No code from the bundle is ever run, so any other
    network must be handed in, built as the saved one was.

    Args:
        path: The folder.
        net: A freshly built network for a model that is not made of `GNN`: as it was before
            `gduq.anchor`, weights do not matter. It is copied, not changed. An ensemble takes
            one for all members, or a list of one a member.
        call: The function the model was made with, if it was made with one.

    Raises:
        BundleError: The bundle is damaged, not ours, too new, or does not fit ``net``.
    """
    folder = Path(path)
    document, parts = _read(folder)
    with _as_bundle_errors(folder):
        spec, saved = document["model"], document["calibrator"]
        _check_call(spec, call)
        model = rebuild(spec, parts["weights"], _supply(spec, net), call, document["version"])
        calibrator = None if saved is None else _calibrator(saved, parts["calibrator"])
    if document["class_names"] is not None:
        model.class_names = tuple(document["class_names"])  # type: ignore[assignment]
    return model.eval(), calibrator


def describe(path: str | PathLike[str]) -> BundleInfo:
    """Read what a bundle says about itself, without its tensors.

    Example:
        >>> import tempfile
        >>> from gduq.nn import GNN
        >>> net = GNN(4, 8, 2, num_layers=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(net, f"{folder}/model", class_names=["no", "yes"])
        ...     describe(path).class_names
        ['no', 'yes']
    """
    folder = Path(path)
    document = files.read_document(folder)
    with _as_bundle_errors(folder):
        return BundleInfo(**{name: document[name] for name in BundleInfo.__annotations__})


# -- what is saved -----------------------------------------------------------------------------


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    for name, module in model.named_modules():
        if isinstance(module, AutoAnchored):
            _ = module.chosen  # raises: whatever holds a chosen one holds it alone
        if isinstance(module, Anchored) and module.bank.size(0) == 0:
            raise NotFittedError(
                "a model that can predict, with its bank of anchors",
                f"none yet{f' in {name}' if name else ''}",
                "Call model.fit_bank(train_data) before saving.",
            )
    state = model.state_dict()
    bad = [name for name, value in state.items() if not _can_be_saved(value)]
    if bad:
        raise InputError(
            "a network whose state is initialised, dense tensors only",
            f"something else in {', '.join(bad[:3])}",
            "Run lazy layers once; sparse buffers and get_extra_state cannot be saved.",
        )
    return state


def _can_be_saved(value: object) -> bool:
    return isinstance(value, Tensor) and not is_lazy(value) and value.layout == torch.strided


def _names(class_names: Sequence[str] | None, spec: Spec) -> list[str] | None:
    if class_names is None:
        return None
    names = list(class_names)
    if isinstance(class_names, str) or not all(isinstance(name, str) for name in names):
        raise InputError("class_names, a list of texts", repr(class_names))
    if len(set(names)) < len(names):
        raise InputError("class_names that differ", names)
    logits = [leaf["config"]["out_channels"] for leaf in leaves(spec) if leaf["kind"] == "GNN"]
    classes = {max(2, count) for count in logits}  # one logit stands for two classes
    if classes - {len(names)}:
        raise InputError(f"{max(classes)} class names, one a class", len(names))
    return names


def _libraries() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("gduq", "torch", "torch-geometric", "safetensors"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree that was never installed
            found[name] = "unknown"
    return found


def _calibrator_parts(calibrator: Calibrator) -> tuple[dict[str, Any], dict[str, Tensor]]:
    name = type(calibrator).__name__
    config = as_json(calibrator.config(), f"settings of {name}")
    saved, state = {"name": name, "config": config}, calibrator.state()
    _calibrator(saved, state)  # raises for a class that could not be loaded
    return saved, state


def _check_rebuilds(spec: Spec, weights: Mapping[str, Tensor]) -> None:
    """Refuse a model that `load` could not make again, as far as gduq makes it alone."""
    if needs_call(spec) or any(leaf["kind"] == "other" for leaf in leaves(spec)):
        return
    try:
        rebuild(spec, weights, iter(()), None)
    except InputError as error:
        raise InputError(
            "a model whose parts are as its constructor made them",
            f"one that was rebuilt by hand ({one_line(error)})",
            "Put your own parts into a module of your own class, and load with net=.",
        ) from error


# -- what is loaded ----------------------------------------------------------------------------


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    document = files.read_document(folder)
    while True:
        try:
            with _as_bundle_errors(folder):
                entries = document["files"].items()
                return document, {part: files.read_tensors(folder, f) for part, f in entries}
        except FileNotFoundError as error:
            before, document = document, files.read_document(folder)
            if document == before:  # otherwise a save came between: read what it wrote
                raise BundleError(
                    f"the file {error.filename}", "none", "Copy the whole folder."
                ) from error


def _calibrator(spec: Spec, state: Mapping[str, Tensor]) -> Calibrator:
    from gduq.calibration import restore

    return restore(spec["name"], spec["config"], state)


# -- what the user must hand in ----------------------------------------------------------------


def _check_call(spec: Spec, call: Call | None) -> None:
    if call is None and needs_call(spec):
        raise BundleError(
            "call=, the function this model was made with",
            "none",
            "A function cannot be saved: gduq.load(path, ..., call=call).",
        )
    if call is not None and not needs_call(spec):
        raise InputError("no call= for a model that was made without one", repr(call))


def _supply(spec: Spec, net: Net | None) -> Iterator[nn.Module]:
    """The user's networks, one for each place that asks for one."""
    wanted = [leaf["class"] for leaf in leaves(spec) if leaf["kind"] == "other"]
    if net is None and wanted:
        raise BundleError(
            f"net=, a network of class {wanted[0]}",
            "none",
            "gduq rebuilds its own networks only: build yours as it was built before "
            "and call gduq.load(path, net=...).",
        )
    if net is not None and not wanted:
        raise InputError("no net= for a model made of gduq's own networks", type(net).__name__)
    anything: Any = net
    if not isinstance(anything, (nn.Module, Sequence, type(None))):
        got = f"{getattr(anything, '__name__', anything)!r}, which is none yet"
        raise InputError("net=, a network or a list of them", got, "Build it: net=MyNet(...).")
    given = [] if net is None else [net] * len(wanted) if isinstance(net, nn.Module) else list(net)
    if len(given) != len(wanted):
        raise InputError(f"{len(wanted)} networks in net=, one a member", len(given))
    for network, name in zip(given, wanted, strict=True):
        if type(network).__name__ != name.rpartition(".")[2]:
            raise BundleError(
                f"a network of class {name}",
                type(network).__name__,
                "Pass the network itself, as it was before gduq wrapped it.",
            )
    return iter(given)


@contextmanager
def _as_bundle_errors(folder: Path) -> Iterator[None]:
    """Whatever goes wrong in making a model from a sound file is said to be the bundle's fault."""
    try:
        yield
    except BundleError:
        raise
    except InputError as error:
        raise BundleError(error.expected, error.got, error.do) from error
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise BundleError(f"a model in {folder}", one_line(error)) from error
