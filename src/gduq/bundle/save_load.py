"""`save` and `load`: a trained model in one file, the same in any process, never pickle.

A bundle is one safetensors file, replaced in a single step: a crash, a kill or a full disk at any
moment leaves the old bundle or the new one. Its header holds a document, as JSON; tensors are named
``part/name``, where the part is ``weights``, ``calibrator`` or ``reference``.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from itertools import repeat
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gduq import __version__, models
from gduq._io import DamagedFile, read_metadata, read_tensors, write_tensors
from gduq.anchoring.anchored import Anchored
from gduq.errors import BundleError, InputError, first_flaw, one_line
from gduq.models.network import checked_predictor
from gduq.models.predictor import Predictor
from gduq.nn.gnn import class_name, network_from
from gduq.prediction import Classes, Prediction, Target, target_from
from gduq.tracing.call import Call, check_complete, copied

if TYPE_CHECKING:
    from gduq.calibration import Calibrator

__all__ = ["BundleInfo", "describe", "load", "load_reference", "save"]

_FORMAT = "gduq bundle 9"  # no other one is read
_REFERENCE = ("samples", "target", "novelty", "trust", "weights")  # what is kept of a prediction
_MODELS = (Anchored, models.Ensemble, models.HeadEnsemble, models.LastLayerLaplace,
           models.MCDropout, models.Neighbours, models.Network, models.Stack)  # fmt: skip
_KINDS = {kind.__name__: kind for kind in _MODELS}  # of models that a bundle may hold
_MOST = 2**21  # numbers in the samples of a reference: 8 MB

Net = nn.Module | Sequence[nn.Module]
Spec = dict[str, Any]
_Parts = dict[str, dict[str, Tensor]]


class BundleInfo(BaseModel):
    """What a bundle says about itself."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Spec  # kind and settings, nested as the model is; its ``target``: what its outputs mean
    aliases: dict[str, str]  # names of tensors that are those of another name
    preprocessing: dict[str, Any] | None  # what the user noted about it
    calibrator: str | None  # its class name
    libraries: dict[str, str]  # versions the bundle was saved with

    @property
    def class_names(self) -> list[str] | None:
        """One per class, or ``None``."""
        return (self.model.get("target") or {}).get("names")


def save(
    model: nn.Module,
    path: str | PathLike[str],
    calibrator: Calibrator | None = None,
    class_names: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    reference: Prediction | None = None,
) -> Path:
    """Save a model that can predict, with all that prediction needs, in one file.

    Args:
        model: What `gduq.fit` or `gduq.choose` trained, a baseline, or any network.
        path: The file; folders above it are made if missing. A bundle that is there stays complete
            until the new one is; anything else is left alone.
        calibrator: A fitted calibrator to keep with the model, beside its own temperature.
        class_names: A name per class; those given to `gduq.fit` are saved anyway.
        preprocessing: Notes on how inputs are made, as JSON holds them; see `describe`.
        reference: Predictions of labelled rows that the model was not trained on: ``gduq predict``
            and ``gduq serve`` fit conformal sets and the rule for abstaining on them.

    Example:
        >>> import tempfile, gduq, torch
        >>> from torch_geometric.data import Data
        >>> graph = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> model = gduq.anchor(gduq.nn.GNN(4, 8, 3, num_layers=2), num_anchors=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(model.fit_anchors([graph] * 3), f"{folder}/model")
        ...     again, calibrator = load(path)
        >>> torch.equal(again.sample(graph), model.sample(graph))
        True
    """
    from gduq.calibration import restore

    file, known = Path(path), checked_predictor(model)
    if file.exists() and not read_metadata(file).get("format", "").startswith("gduq bundle"):
        got = f"{file}, a folder or another file"
        raise InputError("a new file, or a bundle to replace", got, "Choose another name.")
    known.check_ready()
    state = known.state_dict()
    weights, aliases = _each_once(state)
    parts: _Parts = {"weights": weights}
    libraries = {name: version(name) for name in ("torch", "torch-geometric", "safetensors")}
    document: dict[str, Any] = {
        "model": _named(known.spec(), known.target, class_names),
        "aliases": aliases,
        "preprocessing": preprocessing and dict(preprocessing),
        "calibrator": None,
        "libraries": {"python": platform.python_version(), "gduq": __version__, **libraries},
    }
    if calibrator is not None:
        document["calibrator"] = name = type(calibrator).__name__
        parts["calibrator"] = calibrator.state()
        restore(name, parts["calibrator"])  # raises for a class that could not be loaded
    if reference is not None:
        parts["reference"] = _reference_tensors(known.target, reference)
    texts = {"format": _FORMAT, "document": _as_json(document)}
    _check_rebuilds(document["model"], state)
    tensors = {f"{part}/{name}": value for part in parts for name, value in parts[part].items()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(file, tensors, texts)
    except OSError as error:
        do = "A bundle that was there is still intact. Check free space and permissions."
        raise BundleError(f"to write the bundle {file}", error.strerror or error, do) from error
    return file


def load(
    path: str | PathLike[str], net: Net | None = None, call: Call | None = None
) -> tuple[Predictor, Calibrator | None]:
    """Load what `save` saved: ``(model, calibrator or None)``, on the CPU, in evaluation mode.

    Args:
        path: The file. A plain network comes back as a `gduq.Network`.
        net: A network built as the saved one was before `gduq.anchor`, with any weights, which is
            copied; only a `GNN` needs none, as no code from the bundle is ever run. An ensemble
            takes one for all members, or a list of one per member.
        call: The function the model was made with, if it was made with one.

    Raises:
        BundleError: The bundle is damaged, not ours, of another format, or does not fit ``net``.
    """
    from gduq.calibration import restore

    info, parts = _read(Path(path))
    tensors, calibrator = parts["weights"], None
    with _as_bundle_errors(path):
        tensors |= {alias: tensors[name] for alias, name in info.aliases.items()}
        model = _rebuilt(info.model, tensors, net, call).eval()
        if info.calibrator is not None:
            calibrator = restore(info.calibrator, parts.get("calibrator", {}))
    return model, calibrator


def load_reference(path: str | PathLike[str]) -> Prediction | None:
    """The predictions that `save` was given as ``reference``, or ``None``."""
    info, parts = _read(Path(path))
    if "reference" not in parts:
        return None
    with _as_bundle_errors(path):
        given = parts["reference"]
        samples = given.pop("samples")  # in their units already
        p = target_from(info.model["target"]).prediction(samples, given.pop("target"), **given)
        return replace(p, samples=samples)


def describe(path: str | PathLike[str]) -> BundleInfo:
    """What a bundle says about itself.

    Example:
        >>> import gduq, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net = gduq.nn.GNN(4, 8, 2, num_layers=2)
        ...     describe(save(net, f"{folder}/m", preprocessing={"scale": 0.1})).preprocessing
        {'scale': 0.1}
    """
    return _read(Path(path))[0]


# -- what is saved ---------------------------------------------------------------------------------


def _as_json(document: Mapping[str, object]) -> str:
    """A document that comes back from JSON as it went in."""
    for name, value in document.items():
        try:
            again = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            again = error
        if again != value:
            do = "Use dictionaries with text keys, lists, text, finite numbers, True and None."
            got = again if isinstance(again, Exception) else value
            raise InputError(f"{name} that JSON can hold unchanged", got, do)
    return json.dumps(document, allow_nan=False)


def _each_once(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor under its first name, and that name for all its others."""
    first: dict[object, str] = {}
    aliases = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or is_lazy(value) or value.layout != torch.strided:
            do = "Run lazy layers once; sparse buffers and get_extra_state cannot be saved."
            raise InputError("a network of initialised, dense tensors only", name, do)
        place = (value.data_ptr(), value.dtype, value.shape, value.stride(), value.device)
        key = place if value.numel() else name  # empty ones are nowhere
        if first.setdefault(key, name) != name:
            aliases[name] = first[key]
    return {name: value for name, value in state.items() if name not in aliases}, aliases


def _named(spec: Spec, target: Target | None, names: Sequence[str] | None) -> Spec:
    """The spec with these class names, or those that it has."""
    if names is None:
        return spec
    texts = not isinstance(names, str) and all(isinstance(name, str) for name in names)
    if not texts or len(set(names)) < len(names):
        raise InputError("class_names, a list of different texts", repr(names)[:100])
    if target is None:  # never fitted: as many classes as the model has outputs, or names
        configs = [net["config"] for net in _networks(spec) if "config" in net]
        target = Classes.of_outputs(configs[0]["out_channels"] if configs else len(names))
    if not isinstance(target, Classes):
        raise InputError("class_names for a model of classes", f"one of {target.kind}")
    return {**spec, "target": replace(target, names=tuple(names)).spec()}


def _reference_tensors(target: Target | None, p: Prediction) -> dict[str, Tensor]:
    """What a bundle keeps of predictions of labelled rows; of very many rows a random part."""
    p.require_target()
    if target is None or p.kind != target.kind:
        wanted = f"a reference about {'nothing yet' if target is None else target.kind}"
        raise InputError(f"{wanted}, as the model is", f"one about {p.kind}")
    rows = max(1, _MOST // max(1, p.samples[:, :1].numel()))
    if len(p) > rows:
        order = torch.randperm(len(p), generator=torch.Generator().manual_seed(0))
        p = p[order[:rows].sort().values]
    found = {name: getattr(p, name) for name in _REFERENCE}
    return {name: value for name, value in found.items() if value is not None}


def _check_rebuilds(spec: Spec, weights: Mapping[str, Tensor]) -> None:
    """Refuse a model that `load` could not make again, as far as gduq makes it alone."""
    if any(m.get("call") or m.get("net", {}).get("kind") == "other" for m in _models(spec)):
        return
    try:
        _rebuilt(spec, weights)
    except InputError as error:
        do = "Put your own parts into a module of your own class, and load with net=."
        got = f"one that was rebuilt by hand ({one_line(error)})"
        raise InputError("a model as its constructor makes it", got, do) from error


# -- the file --------------------------------------------------------------------------------------


@contextmanager
def _as_bundle_errors(file: str | PathLike[str]) -> Iterator[None]:
    """Raise errors of making a model from a readable file as `BundleError`."""
    try:
        yield
    except (BundleError, MemoryError, OSError, ImportError, Warning):
        raise
    except InputError as error:
        raise BundleError(error.expected, error.got, error.do) from error
    except Exception as error:  # code that makes a model may raise any for odd settings
        raise BundleError(f"a model in {file}", one_line(error)) from error


def _read(path: Path) -> tuple[BundleInfo, _Parts]:
    """What a bundle says about itself, and its parts; the tensors are copies, so that the file may
    change while the model is in use."""
    try:
        tensors, texts = read_tensors(path)
        if texts.get("format") != _FORMAT:
            raise DamagedFile(texts.get("format", "another file"))
        info = BundleInfo.model_validate_json(texts.get("document", ""))
    except (DamagedFile, ValidationError) as error:
        got = first_flaw(error) if isinstance(error, ValidationError) else error
        do = "Copy the file again, or save the model again with this gduq."
        raise BundleError(f"a {_FORMAT} in {path}", got, do) from None
    parts: _Parts = {"weights": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = value.clone()
    return info, parts


# -- the model made from settings and tensors ------------------------------------------------------


def _models(spec: Spec) -> Iterator[Spec]:
    """A model and all models inside it, from the first to the last."""
    yield spec
    for inner in (*spec.get("members", ()), *([spec["model"]] if "model" in spec else ())):
        yield from _models(inner)


def _networks(spec: Spec) -> list[Spec]:
    """The networks inside a model."""
    return [model["net"] for model in _models(spec) if "net" in model]


class _Factory:
    """Networks of gduq's own made anew, the user's copied (one for all, or one per network that is
    not gduq's own), and the user's call; no larger a model than the tensors are of."""

    def __init__(self, tensors: Mapping[str, Tensor], net: Net | None, call: Call | None) -> None:
        numbers = sum({value.data_ptr(): value.numel() for value in tensors.values()}.values())
        self._spare = 2 * numbers + 10_000  # a head may be kept in another form
        self._layers, self._call = len(tensors), call
        self._users = iter(net) if isinstance(net, Sequence) else repeat(net)
        self._made: dict[int, nn.Module] = {}

    def net(self, spec: Spec) -> nn.Module:
        if id(spec) not in self._made:
            other = spec["kind"] == "other"
            self._made[id(spec)] = self._users_net(spec["class"]) if other else self._own_net(spec)
        return self._made[id(spec)]

    def _own_net(self, spec: Spec) -> nn.Module:
        layers = spec["config"].get("num_layers")
        if not isinstance(layers, int) or layers > self._layers:
            raise BundleError(f"at most {self._layers} layers, as there are tensors", "more")
        with torch.device("meta"):  # which allocates nothing
            self._spend(sum(v.numel() for v in network_from(spec).state_dict().values()))
        return network_from(spec)

    def _spend(self, numbers: int) -> None:
        self._spare -= numbers
        if self._spare < 0:
            raise BundleError("settings of a model as large as its tensors", "a larger one")

    def _users_net(self, name: str) -> nn.Module:
        network = next(self._users, None)
        if not isinstance(network, nn.Module):
            got = "none" if network is None else f"{network!r}, which is none yet"
            do = "Build it as it was built before and call gduq.load(path, net=...)."
            raise BundleError(f"net=, a network of class {name}", got, do)
        check_complete(network)
        if class_name(network).rpartition(".")[2] != name.rpartition(".")[2]:
            do = "Pass the network itself, as it was before gduq wrapped it."
            raise BundleError(f"a network of class {name}", type(network).__name__, do)
        return copied(network)

    def model(self, spec: Spec) -> Predictor:
        if spec["kind"] not in _KINDS:
            raise BundleError("a kind of model this gduq knows", repr(spec["kind"]))
        self._spend(int(spec.get("size", 0)))
        parts = spec.get("members", ())
        for part, first in zip(parts, spec.get("shared") or [None] * len(parts), strict=True):
            if first is not None and part["net"] != parts[first]["net"]:
                raise BundleError("members that share a network of one kind", repr(first)[:50])
            if first is not None:
                part["net"] = parts[first]["net"]  # one entry, which `net` knows again
        model = _KINDS[spec["kind"]].from_spec(spec, self)
        model.target = None if spec["target"] is None else target_from(spec["target"])
        return model

    def call(self, spec: Spec) -> Call | None:
        if spec["call"] and self._call is None:
            do = "A function cannot be saved: gduq.load(path, ..., call=call)."
            raise BundleError("call=, the function this model was made with", "none", do)
        return self._call if spec["call"] else None


def _rebuilt(
    spec: Spec, tensors: Mapping[str, Tensor], net: Net | None = None, call: Call | None = None
) -> Predictor:
    """The model of a spec with its weights; torch's global random state is left alone."""
    others = [own for own in _networks(spec) if own["kind"] == "other"]
    if net is not None and len(others) < (len(net) if isinstance(net, Sequence) else 1):
        raise InputError(f"net= for {len(others)} networks that are not gduq's own", repr(net))
    if call is not None and not any(model.get("call") for model in _models(spec)):
        raise InputError("no call= for a model that was made without one", repr(call))
    with torch.random.fork_rng(devices=[]):
        model = _Factory(tensors, net, call).model(spec)
    for name, value in model.state_dict(keep_vars=True).items():
        saved = tensors.get(name, value)
        if is_lazy(value) or saved.dtype == value.dtype:
            continue
        if not (value.is_floating_point() and saved.is_floating_point()):
            raise BundleError(f"{name} of {value.dtype}", saved.dtype)
        value.data = value.data.to(saved.dtype)  # the precision it was saved in
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        do = "Build the network with the arguments it had when it was saved."
        raise BundleError("tensors that fit the network", one_line(error), do) from error
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise BundleError("finite weights", f"NaN or infinite ones in {name}")
    for part in model.modules():
        getattr(part, "calibration", None)  # raises for a number that stands for none
    model.check_ready()
    return model
