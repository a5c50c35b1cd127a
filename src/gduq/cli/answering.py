"""From the options of ``gduq predict`` to a `Service`, in this process or in several."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gduq.bundle import describe, load, load_reference
from gduq.bundle.rebuilding import Spec, leaves, needs_call
from gduq.calibration import Calibrator, method_name, methods_for
from gduq.cli.known import labelled
from gduq.cli.objects import find_object, make_network
from gduq.cli.request import Request, Told, bundle_of, check_sources, smiles_in
from gduq.data.files import Reject, stream
from gduq.deploy.places import Places
from gduq.deploy.service import Service, Settings
from gduq.deploy.shift_sample import ShiftSample
from gduq.deploy.stream import (
    Served,
    join_served,
    predict_files,
    predict_part,
)
from gduq.errors import InputError
from gduq.evaluation.calibrated import make_calibrator
from gduq.nn.network_specs import network_from
from gduq.prediction.predictor import Predictor
from gduq.runs.folder import RunFolder

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["first_graph", "load_model", "load_network", "make_service", "serve"]


def serve(
    request: Request,
    sources: Sequence[Path],
    output: Path,
    rejects: Path | None,
    *,
    workers: int = 1,
    engine: str = "local",
    line: Any,
) -> tuple[Served, Service]:
    """Predict all sources; also the service that did."""
    notes = describe(bundle_of(request.bundle)[0]).preprocessing
    smiles = smiles_in(sources, request.smiles, Told.by(request.bundle))
    places = Places.of(sources, smiles, request.keep, notes)
    service = make_service(request)
    line.update("Predicting")
    if workers > 1 and len(sources) > 1:
        done = _in_parallel(request, service, places, sources, output, rejects, workers, engine)
    else:
        done = predict_files(
            service,
            sources,
            output,
            rejects=rejects,
            places=places,
            batch_size=request.batch_size,
            notify=lambda seen: line.update(f"Predicting: {seen} graphs"),
        )
    done.units = service.units
    return done, service


# -- the service ---------------------------------------------------------------------------------


def make_service(request: Request) -> Service:
    """The model with calibrator and thresholds."""
    bundle, run = bundle_of(request.bundle)
    model, saved = load_model(request)
    settings = Settings(
        request.alpha,
        request.coverage,
        request.accuracy,
        request.ood_score,
        request.per_class,
        request.max_novelty,
        request.max_epistemic,
    )
    service = Service(model, saved, describe(bundle).class_names, settings)
    known = _reference(request, service, run)
    if request.calibrator is not None:
        service.calibrator, rest = _fitted(request.calibrator, known, saved)
        known = service.calibrated(rest)
    return service if known is None else service.refer_to(known)


def load_model(request: Request) -> tuple[Predictor, Calibrator | None]:
    """The model of a bundle or run on its device, and the calibrator saved with it."""
    bundle, _ = bundle_of(request.bundle)
    _check_code(describe(bundle).model, request.net, request.call)
    model, saved = load(bundle, *_own_code(request.net, request.call))
    return _on(model, request.device), saved


def _check_code(spec: Spec, net: str | None, call: str | None) -> None:
    """Ask for a user's own code in the words of the command line."""
    others = [leaf["class"] for leaf in leaves(spec) if leaf["kind"] == "other"]
    if others and net is None:
        raise InputError(f"--net package.module:Name, which makes a {others[0]}", "none")
    if needs_call(spec) and call is None:
        raise InputError("--call package.module:name, which the model was made with", "none")


def _own_code(net: str | None, call: str | None) -> tuple[Any, Any]:
    return (
        None if net is None else make_network(net),
        None if call is None else find_object(call),
    )


def _on(model: Predictor, device: str) -> Predictor:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise InputError("a device torch can use", f"{device!r} ({reason})") from None


def _reference(request: Request, service: Service, run: RunFolder | None) -> Any:
    """Predictions of labelled rows the model was not trained on, by the bundle's calibrator."""
    if request.calibration_data is not None:
        return labelled(request, service, request.calibration_data, "the calibration data")
    if run is not None and service.needs_features:
        known = run.predictions().get("id_val")
    else:
        known = load_reference(bundle_of(request.bundle)[0])
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
    usable = [n for n, c in methods.items() if not (c.needs_graph or c.needs_features)]
    name = method_name(name)
    if name not in usable:
        raise InputError(f"a calibrator from {', '.join(usable)}", repr(name))
    if known is None:
        raise InputError("--calibration-data to fit a calibrator on", "none")
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))
    middle = len(known) // 2
    return make_calibrator(name).fit(known[order[:middle]]), known[order[middle:]]


# -- many files ----------------------------------------------------------------------------------


def _in_parallel(
    request: Request,
    service: Service,
    places: Places,
    sources: Sequence[Path],
    output: Path,
    rejects: Path | None,
    workers: int,
    engine: str,
) -> Served:
    """Each file by a worker, into a part of its own; the parts are joined in order."""
    from gduq.jobs.engines import map_cells

    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        here, parts = Path.cwd(), Path(folder).resolve()
        jobs = [
            _Job(request, places, i, source, parts / f"{i:06d}{output.suffix}", here)
            for i, source in enumerate(sources)
        ]
        found = map_cells(jobs, _predict_one, engine, workers, progress=False)
        for outcome, source in zip(found, sources, strict=True):
            if outcome.error is not None:
                reason = outcome.error.strip().splitlines()[-1]
                raise InputError(f"answers for {source}", reason.removeprefix("gduq.errors."))
        answers = [o.value for o in found if o.value is not None]
        return join_served(answers, output, rejects, service.reference)


@dataclass(frozen=True)
class _Job:
    request: Request
    places: Places
    number: int
    source: Path
    part: Path
    folder: Path  # names are relative to it, here and in the worker


def _predict_one(job: _Job) -> tuple[Served, ShiftSample]:
    os.chdir(job.folder)
    service, size = _once(job.request), job.request.batch_size
    return predict_part(service, job.number, job.source, job.part, job.places, size)


@lru_cache(maxsize=1)
def _once(request: Request) -> Service:
    """The service of a worker, which answers for many files."""
    return make_service(request)


# -- points --------------------------------------------------------------------------------------


def load_network(bundle: Path | None, net: str | None, call: str | None) -> tuple[nn.Module, Any]:
    """The network of a bundle as it was before it was wrapped, or the one that is named."""
    own, function = _own_code(net, call)
    if own is None:
        if bundle is None:
            raise InputError("a bundle, or --net package.module:Name", "neither")
        spec = describe(bundle_of(bundle)[0]).model
        _check_code(spec, net, call)
        own = network_from(leaves(spec)[0])
    return own, function


def first_graph(path: Path, smiles: str | None) -> Data:
    """The first graph of a file that can be read."""
    check_sources([path])
    column = smiles_in([path], smiles, Told()) or "smiles"
    for _, item in stream(path, smiles=column):
        if not isinstance(item, Reject):
            return item
    raise InputError(f"at least one graph in {path}", "none")
