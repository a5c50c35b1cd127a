"""From options to answers: models, networks by name, a `Service`, files of graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from gduq.bundle import BundleInfo, describe, load_reference
from gduq.bundle import load as load_bundle
from gduq.bundle.save_load import needs_call, networks
from gduq.calibration import Calibrator, make, methods_for, parse_name
from gduq.cli.request import Request, TrainingInfo, bundle_file, check_sources, smiles_in
from gduq.data.catalog import load
from gduq.data.files import stream
from gduq.data.outputs import Reject
from gduq.data.source import find_object
from gduq.data.table import is_table
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.models.predictor import Predictor
from gduq.nn.network_specs import network_from
from gduq.prediction.base import Prediction
from gduq.runs.build import with_encodings
from gduq.runs.folder import RunFolder
from gduq.serve.files import InputTable, Served, predict_files
from gduq.serve.service import Service

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = [
    "Loaded",
    "judge",
    "labelled",
    "load_model",
    "load_network",
    "make_network",
    "make_service",
    "predict_all",
    "readable_graphs",
]


class Loaded(NamedTuple):
    """A model on its device, the calibrator saved with it, and what its bundle says."""

    model: Predictor
    calibrator: Calibrator | None
    info: BundleInfo


def load_model(request: Request) -> Loaded:
    """The model of a bundle or run."""
    file = bundle_file(request.bundle)
    info, network, function = _described(file, request.net, request.call)
    model, saved = load_bundle(file, network, function)
    try:
        return Loaded(model.to(request.device), saved, info)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        got = f"{request.device!r} ({str(error).splitlines()[0]})"
        raise InputError("a device torch can use", got) from None


def load_network(bundle: Path | None, net: str | None, call: str | None) -> tuple[nn.Module, Any]:
    """The network of a bundle as it was before it was wrapped, or the one that is named."""
    if net is not None:
        return make_network(net), None if call is None else find_object(call)
    if bundle is None:
        raise InputError("a bundle, or --net package.module:Name", "neither")
    info, _, function = _described(bundle_file(bundle), net, call)
    return network_from(networks(info.model)[0]), function


def _described(file: Path, net: str | None, call: str | None) -> tuple[BundleInfo, Any, Any]:
    """What a bundle says, and the user's own code that it needs."""
    info = describe(file)
    others = [net["class"] for net in networks(info.model) if net["kind"] == "other"]
    if others and net is None:
        raise InputError(f"--net package.module:Name, which makes a {others[0]}", "none")
    if needs_call(info.model) and call is None:
        raise InputError("--call package.module:name, which the model was made with", "none")
    network = None if net is None else make_network(net)
    return info, network, None if call is None else find_object(call)


def make_network(name: str) -> Any:
    """The network that ``package.module:Name`` is, or that calling it gives."""
    found = find_object(name)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise InputError(f"a network, or a function that makes one, as {name}", repr(found))
        try:
            found = found()
        except TypeError as error:
            do = "Name a function that builds your network."
            raise InputError(f"{name} to be called without arguments", str(error), do) from error
    if not isinstance(found, nn.Module):
        raise InputError(f"a torch.nn.Module from {name}", type(found).__name__)
    return found


# -- the service ---------------------------------------------------------------------------------


def make_service(request: Request) -> Service:
    """The model with calibrator and thresholds."""
    model, saved, info = load_model(request)
    service = Service(model, saved, info.class_names, request.settings)
    known = _reference(request, service)
    if request.calibrator is not None:
        service.calibrator, rest = _fitted(request.calibrator, known, saved)
        known = service.calibrated(rest)
    return service if known is None else service.refer_to(known)


def _reference(request: Request, service: Service) -> Any:
    """Predictions of labelled rows the model was not trained on, by the bundle's calibrator."""
    if request.calibration_data is not None:
        return labelled(request, service, request.calibration_data, "the calibration data")
    known: Any = None
    if service.needs_features and request.bundle.is_dir():
        known = RunFolder(request.bundle).predictions().get("id_val")
    else:
        known = load_reference(bundle_file(request.bundle))
    if known is None:
        return None
    if service.needs_features and known.features is None:
        raise InputError(
            f"representations with the stored predictions for {service.score!r}",
            "none",
            "Pass --calibration-data, or another --ood-score.",
        )
    return service.calibrated(known)


def _fitted(name: str, known: Any, saved: Calibrator | None) -> tuple[Calibrator, Any]:
    """A calibrator fitted on half of the reference rows, and the other half."""
    if saved is not None:
        raise InputError("--calibrator for a bundle without one", type(saved).__name__)
    methods = methods_for("classes" if known is None else known.kind)
    usable = [method for method, cls in methods.items() if not cls.needs_graph]
    name = parse_name(name)[0]
    if name not in usable:
        raise InputError(f"a calibrator from {', '.join(usable)}", repr(name))
    if known is None:
        raise InputError("--calibration-data to fit a calibrator on", "none")
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))
    middle = len(known) // 2
    return make(name).fit(known[order[:middle]]), known[order[middle:]]


# -- many files ----------------------------------------------------------------------------------


def predict_all(
    request: Request,
    sources: Sequence[Path],
    output: Path,
    rejects: Path | None,
    keep: Sequence[str],
    line: Any,
) -> tuple[Served, Service]:
    """Predict all sources; also the service that did."""
    info = TrainingInfo.from_bundle(request.bundle)
    smiles = smiles_in(sources, request.smiles, info)
    table = InputTable.of(sources, smiles, keep, info.ids)
    service = make_service(request)
    line.update("Predicting")
    options: dict[str, Any] = {"table": table, "batch_size": request.batch_size}
    options["notify"] = lambda seen: line.update(f"Predicting: {seen} graphs")
    return predict_files(service, sources, output, rejects=rejects, **options), service


# -- labelled files ------------------------------------------------------------------------------


def labelled(
    request: Request,
    service: Service,
    path: Path,
    what: str,
    rejects: list[Reject] | None = None,
) -> Any:
    """Predictions of a file in which every graph has a label.

    Rows that cannot be read are added to ``rejects``; without such a list they are an error.
    """
    where, parts, before = f"{what} {path}", list[Any](), len(rejects or ())
    graphs = _sound(request, service, path, where, rejects)
    while part := list(islice(graphs, request.batch_size)):
        parts.append(service.answer(part))
    if rejects is not None and len(rejects) > before and not parts:
        raise InputError(f"sound graphs in {where}", f"none; the first: {rejects[before]}")
    return Prediction.concatenate(parts)


def _sound(
    request: Request, service: Service, path: Path, where: str, rejects: list[Reject] | None
) -> Iterator[Data]:
    """The graphs of a labelled file; the bundle knows its columns, unless info otherwise."""
    info = TrainingInfo.from_bundle(request.bundle)
    names: Any = service.class_names
    task: Any = service.kind if is_table(path) else None
    smiles = smiles_in([path], request.smiles, info) or "smiles"
    targets = info.targets_in(path, request.target or ())
    source = stream(path, smiles=smiles, targets=targets, class_names=names, task=task)
    codes = service.target.get("codes")
    by_name = codes is not None and bool(getattr(source, "found", source.class_names))
    for index, item in source:
        if isinstance(item, Reject):
            if rejects is None:
                raise InputError(f"sound graphs in {where}", f"row {index}: {item}")
            rejects.append(item)
            continue
        if item.get("y") is None:
            do = "Tables: name the column with --target." if is_table(path) else ""
            raise InputError(f"labelled graphs in {where}", "no labels", do)
        spec = service.target
        count = 1 if "num_classes" in spec else len(spec.get("names") or ())
        if service.rows == "graph" and count and item.y.numel() != count:
            wanted = f"{count} target{'s' * (count != 1)} per graph in {where}, as in training"
            raise InputError(wanted, item.y.numel())
        if by_name:
            item.y = torch.tensor(codes)[item.y]  # as it stands in other files
        yield item


def judge(
    request: Request,
    name: str,
    files: Mapping[str, Path],
    methods: Sequence[str] = (),
    subgroups: bool = False,
) -> Evaluation:
    """Everything measured of a bundle, or of a run's model, on other data.

    Rows that cannot be read are left out, and listed in ``settings["rejected"]``.

    Args:
        request: The bundle, and how its files are read.
        name: Of a dataset, where there are no files; subgroups of its rows can be measured too.
        files: Labelled graphs by split.
        methods: Calibrators to fit on ``id_val``, next to the one in the bundle.
        subgroups: Whether to.
    """
    model, saved, info = load_model(request)
    calibrators: list[Any] = [*([] if saved is None else [saved]), *methods]
    if not files:
        config = networks(info.model)[0].get("config", {})
        encodings = 0 if config.get("positional") is None else int(config["positional_channels"])
        splits = with_encodings(load(name), encodings)
        return evaluate(model, splits, calibrators, subgroups=subgroups)
    service = Service(model, None, info.class_names)
    rejects, found = list[Reject](), dict[str, Any]()
    for split, path in files.items():
        found[split] = labelled(request, service, path, "the data", rejects)
    judged = evaluate(found, None, calibrators)
    return replace(judged, settings={**judged.settings, "rejected": [str(r) for r in rejects]})


def readable_graphs(path: Path, smiles: str | None, bundle: Path | None = None) -> Iterator[Data]:
    """The graphs of a file that can be read."""
    check_sources([path])
    info = TrainingInfo() if bundle is None else TrainingInfo.from_bundle(bundle)
    for _, item in stream(path, smiles=smiles_in([path], smiles, info) or "smiles"):
        if not isinstance(item, Reject):
            yield item
