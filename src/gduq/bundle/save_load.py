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
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import gduq.anchoring
import gduq.models  # noqa: F401  (both: their models are known once they are imported)
from gduq import __version__
from gduq._io import DamagedFile, read_metadata, read_tensors, write_tensors
from gduq.errors import BundleError, InputError, first_flaw, one_line
from gduq.models.ensemble import inner_spec
from gduq.models.network import checked_predictor
from gduq.models.predictor import KINDS, Predictor
from gduq.nn.network_specs import class_name, network_from
from gduq.prediction import Classes, Prediction, Target, target_from
from gduq.tracing.call import Call, check_complete, copied

if TYPE_CHECKING:
    from gduq.calibration import Calibrator

__all__ = ["BundleInfo", "Factory", "describe", "load", "load_reference", "needs_call", "networks",
           "save"]  # fmt: skip

_FORMAT = "gduq bundle 7"  # no other one is read
_LIBRARIES = ("torch", "torch-geometric", "safetensors")
_REFERENCE = ("samples", "target", "novelty", "weights")  # what is kept of a prediction
_MOST = 2**21  # numbers in the samples of a reference: 8 MB

Net = nn.Module | Sequence[nn.Module]
Spec = dict[str, Any]
_Parts = dict[str, dict[str, Tensor]]


class BundleInfo(BaseModel):
    """What a bundle says about itself.

    Attributes:
        model: Kind and settings of the model, nested as the model is; what its outputs mean is its
            ``target``.
        aliases: Names of tensors that are those of another name.
        preprocessing: What the user noted about it, or ``None``.
        calibrator: Its class name and settings, or ``None``.
        libraries: Versions the bundle was saved with.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: dict[str, Any]
    aliases: dict[str, str]
    preprocessing: dict[str, Any] | None
    calibrator: dict[str, Any] | None
    libraries: dict[str, str]

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

    A bundle that was there before stays complete until the new one is; anything else that is there
    is left alone.

    Args:
        model: What `gduq.fit` or `gduq.choose` trained, a baseline, or any network.
        path: The file; folders above it are made if missing.
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
    ours = file.is_file() and read_metadata(file).get("format", "").startswith("gduq bundle")
    if file.exists() and not ours:
        got = f"{file}, a folder or another file"
        raise InputError("a new file, or a bundle to replace", got, "Choose another name.")
    known.check_ready()
    state = known.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor) or is_lazy(value) or value.layout != torch.strided:
            do = "Run lazy layers once; sparse buffers and get_extra_state cannot be saved."
            got = f"something else in {name}"
            raise InputError("a network whose state is initialised, dense tensors only", got, do)
    spec = _as_json(_named(inner_spec(known), known.target, class_names), "settings of the model")
    weights, aliases = _each_once(state)
    parts: _Parts = {"weights": weights}
    libraries = {"python": platform.python_version(), "gduq": __version__}
    document = {
        "model": spec,
        "aliases": aliases,
        "preprocessing": preprocessing and _as_json(preprocessing, "preprocessing"),
        "calibrator": None,
        "libraries": libraries | {name: version(name) for name in _LIBRARIES},
    }
    if calibrator is not None:
        name = type(calibrator).__name__
        config = _as_json(calibrator.config(), f"settings of {name}")
        document["calibrator"] = {"name": name, "config": config}
        parts["calibrator"] = calibrator.state()
        restore(name, config, parts["calibrator"])  # raises for a class that could not be loaded
    if reference is not None:
        parts["reference"] = _reference_tensors(known.target, reference)
    _check_rebuilds(spec, state)
    texts = {"format": _FORMAT, "document": json.dumps(document, allow_nan=False)}
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
    from gduq.calibration import restore

    info, parts = _read(Path(path))
    with _as_bundle_errors(path):
        spec, saved, tensors = info.model, info.calibrator, parts["weights"]
        tensors |= {alias: tensors[name] for alias, name in info.aliases.items()}
        check_spec(spec, tensors)
        model, calibrator = rebuild(spec, tensors, Factory(spec, net, call)).eval(), None
        if saved is not None:
            calibrator = restore(saved["name"], saved["config"], parts.get("calibrator", {}))
    return model, calibrator


def load_reference(path: str | PathLike[str]) -> Any:
    """The predictions that `save` was given as ``reference``, or ``None``."""
    info, parts = _read(Path(path))
    tensors = parts.get("reference")
    if tensors is None:
        return None
    with _as_bundle_errors(path):
        target = info.model["target"]
        known = {"samples", "target"} <= tensors.keys() <= set(_REFERENCE)
        if target is None or not known:
            raise BundleError("a reference of samples and targets", ", ".join(sorted(tensors)))
        samples = tensors.pop("samples")  # in their units already
        p: Any = target_from(target).prediction(samples, tensors.pop("target"), **tensors)
        return replace(p, samples=samples)


def describe(path: str | PathLike[str]) -> BundleInfo:
    """What a bundle says about itself.

    Example:
        >>> import tempfile
        >>> from gduq.nn import GNN
        >>> net = GNN(4, 8, 2, num_layers=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(net, f"{folder}/model", preprocessing={"scale": 0.1})
        ...     describe(path).preprocessing
        {'scale': 0.1}
    """
    return _read(Path(path))[0]


# -- what is saved ---------------------------------------------------------------------------------


def _as_json(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A copy of a dictionary that comes back from JSON as it went in."""
    do = "Use dictionaries with text keys, lists, text, finite numbers, True, False and None."
    try:
        again: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} that JSON can hold", error, do) from error
    if again != value:
        raise InputError(f"{what} that JSON can hold unchanged", value, do)
    return again


def _each_once(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor under its first name, and that name for all its others."""
    first: dict[Any, str] = {}
    aliases = {}
    for name, value in state.items():
        place = (value.data_ptr(), value.dtype, value.shape, value.stride(), value.device)
        key = place if value.numel() else name  # empty ones are nowhere
        if first.setdefault(key, name) != name:
            aliases[name] = first[key]
    return {name: value for name, value in state.items() if name not in aliases}, aliases


def _named(spec: Spec, target: Target | None, names: Sequence[str] | None) -> Spec:
    """The spec with these class names, or those that it has."""
    if names is None:
        return spec if target is None else {**spec, "target": target.spec()}
    texts = not isinstance(names, str) and all(isinstance(name, str) for name in names)
    if not texts or len(set(names)) < len(names):
        raise InputError("class_names, a list of different texts", repr(names)[:100])
    if target is None:  # never fitted: as many classes as the model has outputs, or names
        configs = [net["config"] for net in networks(spec) if "config" in net]
        target = Classes.of_outputs(configs[0]["out_channels"] if configs else len(names))
    if not isinstance(target, Classes):
        raise InputError("class_names for a model of classes", f"one of {target.kind}")
    return {**spec, "target": replace(target, names=tuple(names)).spec()}


def _reference_tensors(target: Target | None, p: Prediction) -> dict[str, Tensor]:
    """What a bundle keeps of predictions of labelled rows; of very many rows a random part."""
    p.require_target()
    if target is None:
        got = "one that gduq.fit has not trained"
        raise InputError("a fitted model to save with a reference", got)
    if p.kind != target.kind:
        raise InputError(f"a reference about {target.kind}, as the model is", f"one about {p.kind}")
    rows = max(1, _MOST // max(1, p.samples[:, :1].numel()))
    if len(p) > rows:
        order = torch.randperm(len(p), generator=torch.Generator().manual_seed(0))
        p = p[order[:rows].sort().values]
    found = {name: getattr(p, name) for name in _REFERENCE}
    return {name: value for name, value in found.items() if value is not None}


def _check_rebuilds(spec: Spec, weights: Mapping[str, Tensor]) -> None:
    """Refuse a model that `load` could not make again, as far as gduq makes it alone."""
    if needs_call(spec) or any(net["kind"] == "other" for net in networks(spec)):
        return
    try:
        check_spec(spec, weights)
        rebuild(spec, weights, Factory(spec))
    except InputError as error:
        raise InputError(
            "a model whose parts are as its constructor made them",
            f"one that was rebuilt by hand ({one_line(error)})",
            "Put your own parts into a module of your own class, and load with net=.",
        ) from error


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
    if not path.exists():
        raise BundleError(f"a bundle in {path}", "no such file")
    try:
        tensors, texts = read_tensors(path)
    except DamagedFile as error:
        do = "Copy the file again, or save the model again."
        raise BundleError(f"{path} as gduq.save wrote it", error, do) from error
    if texts.get("format") != _FORMAT:
        got = texts.get("format", "another file")
        raise BundleError(f"a {_FORMAT} in {path}", got, "Save the model again with this gduq.")
    try:
        info = BundleInfo.model_validate_json(texts.get("document", ""))
    except ValidationError as error:
        raise BundleError(f"a document in {path} as gduq writes it", first_flaw(error)) from None
    parts: _Parts = {"weights": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = value.clone()
    return info, parts


# -- the model made from settings and tensors ------------------------------------------------------


def _inner(spec: Spec) -> list[Spec]:
    """The models inside a model."""
    return [*spec.get("members", ()), *([spec["model"]] if "model" in spec else [])]


def networks(spec: Spec) -> list[Spec]:
    """The networks inside a model, from the first to the last; a shared one counts once."""
    found, parts = [spec["net"]] if "net" in spec else [], _inner(spec)
    shared = spec.get("shared") or [None] * len(parts)
    for i, (part, first) in enumerate(zip(parts, shared, strict=True)):
        found += networks(part) if first in (None, i) else []
    return found


def needs_call(spec: Spec) -> bool:
    """Whether any part of a model was made with ``call=``."""
    return bool(spec.get("call")) or any(map(needs_call, _inner(spec)))


def check_spec(spec: Spec, tensors: Mapping[str, Tensor]) -> None:
    """Raise where settings speak of a larger model than the tensors are of.

    Networks are made on the meta device for that, which allocates nothing. Members of a stack that
    share a network hold one and the same entry afterwards.
    """
    numbers = sum({value.data_ptr(): value.numel() for value in tensors.values()}.values())
    most = 2 * numbers + 10_000  # a head may be kept in another form
    needed = _share_networks(spec)
    for net in networks(spec):
        if "config" in net and needed <= most:
            layers, columns = (net["config"].get(k) for k in ("num_layers", "categories"))
            if not isinstance(layers, int) or max(layers, len(columns or ())) > len(tensors):
                raise BundleError(f"at most {len(tensors)} layers, as there are tensors", "more")
            with torch.device("meta"):
                needed += sum(v.numel() for v in network_from(net).state_dict().values())
    if needed > most:
        raise BundleError("settings of a model as large as its tensors", "a larger one")


def _share_networks(spec: Spec) -> int:
    """Give members that share a network one entry for it; how many heads there are at most."""
    parts, most = _inner(spec), int(spec.get("size", 0))
    for part, first in zip(parts, spec.get("shared") or [None] * len(parts), strict=True):
        most = max(most, _share_networks(part))
        if first is not None:
            if part["net"] != parts[first]["net"]:
                raise BundleError("members that share a network of one kind", repr(first)[:50])
            part["net"] = parts[first]["net"]
    return most


class Factory:
    """Networks of gduq's own made anew, the user's copied, and the user's call.

    Args:
        spec: Of the model, as `check_spec` left it.
        net: The user's network, or several; one for each network that is not gduq's own.
        call: The user's call.
    """

    def __init__(self, spec: Spec, net: Net | None = None, call: Call | None = None) -> None:
        if call is None and needs_call(spec):
            do = "A function cannot be saved: gduq.load(path, ..., call=call)."
            raise BundleError("call=, the function this model was made with", "none", do)
        if call is not None and not needs_call(spec):
            raise InputError("no call= for a model that was made without one", repr(call))
        others = [own for own in networks(spec) if own["kind"] == "other"]
        given = _match_networks([own["class"] for own in others], net)
        self._call = call
        self._made: dict[int, nn.Module] = {
            id(own): copied(network) for own, network in zip(others, given, strict=True)
        }

    def net(self, spec: Any) -> nn.Module:
        if id(spec) not in self._made:
            self._made[id(spec)] = network_from(spec)
        return self._made[id(spec)]

    def model(self, spec: Any) -> Predictor:
        if spec["kind"] not in KINDS:
            raise BundleError("a kind of model this gduq knows", repr(spec["kind"]))
        model = KINDS[spec["kind"]].from_spec(spec, self)
        model.target = None if spec["target"] is None else target_from(spec["target"])
        return model

    def call(self, spec: Any) -> Any:
        return self._call if spec["call"] else None


def _match_networks(wanted: Sequence[str], net: Net | None) -> list[nn.Module]:
    """The user's networks, one for each class that is wanted."""
    if net is None and wanted:
        do = "Build it as it was built before and call gduq.load(path, net=...)."
        raise BundleError(f"net=, a network of class {wanted[0]}", "none", do)
    if net is not None and not wanted:
        raise InputError("no net= for a model made of gduq's own networks", type(net).__name__)
    given: Any = [net] * len(wanted) if isinstance(net, nn.Module) else net or []
    if not isinstance(given, Sequence) or len(given) != len(wanted):
        got = len(given) if isinstance(given, Sequence) else f"{given!r}, which is none yet"
        do = "Build them: net=MyNet(...)."
        raise InputError(f"{len(wanted)} networks in net=, one per network saved", got, do)
    for network, name in zip(given, wanted, strict=True):
        check_complete(network)
        if class_name(network).rpartition(".")[2] != name.rpartition(".")[2]:
            do = "Pass the network itself, as it was before gduq wrapped it."
            raise BundleError(f"a network of class {name}", type(network).__name__, do)
    return list(given)


def rebuild(spec: Spec, tensors: Mapping[str, Tensor], factory: Factory) -> Predictor:
    """The model of a spec with its weights; torch's global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        model = factory.model(spec)
    for name, value in model.state_dict(keep_vars=True).items():
        saved = tensors.get(name)
        if saved is None or is_lazy(value):
            continue
        both = value.is_floating_point() and saved.is_floating_point()
        if not both and value.dtype != saved.dtype:
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
