"""From options to answers: a `Service`, files of graphs, labelled files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gduq.bundle import describe, load_reference
from gduq.bundle.rebuilding import leaves
from gduq.calibration import Calibrator, method_name, methods_for
from gduq.cli.loading import load_model
from gduq.cli.request import Request, Told, bundle_of, check_sources, smiles_in
from gduq.data.catalog import load
from gduq.data.files import Reject, stream
from gduq.data.header import is_table
from gduq.deploy.places import Places
from gduq.deploy.service import Service, Settings
from gduq.deploy.shift_sample import ShiftSample
from gduq.deploy.stream import Served, join_served, predict_files, predict_part
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.evaluation.named_calibrators import make_calibrator
from gduq.prediction.base import Hypotheses
from gduq.runs.build import with_encodings
from gduq.runs.folder import RunFolder

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["first_graph", "judge", "labelled", "make_service", "serve"]


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
    wanted = {field.name: getattr(request, field.name) for field in fields(Settings)}
    service = Service(model, saved, describe(bundle).class_names, Settings(**wanted))
    known = _reference(request, service, run)
    if request.calibrator is not None:
        service.calibrator, rest = _fitted(request.calibrator, known, saved)
        known = service.calibrated(rest)
    return service if known is None else service.refer_to(known)


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


# -- labelled files ------------------------------------------------------------------------------


def labelled(request: Request, service: Service, path: Path, what: str) -> Any:
    """Predictions of a file in which every graph is sound and has a label."""
    graphs, parts = _sound(request, service, path, what), list[Any]()
    while part := list(islice(graphs, request.batch_size)):
        parts.append(service.answer(part))
    return Hypotheses.concatenate(parts)


def _sound(request: Request, service: Service, path: Path, what: str) -> Iterator[Data]:
    for index, item in _stream(request, service, path):
        if isinstance(item, Reject):
            raise InputError(f"sound graphs in {what} {path}", f"row {index}: {item}")
        _check(item, service, f"{what} {path}")
        yield item


def _stream(request: Request, service: Service, path: Path) -> Iterator[Any]:
    """The rows of a labelled file; the bundle knows what its columns are, unless told otherwise."""
    told = Told.by(request.bundle)
    names: Any = service.class_names
    task: Any = service.kind if is_table(path) else None
    if names is None and task == "classes":
        names = ()  # the numbers of its classes, whichever of them this file has
    return stream(
        path,
        smiles=smiles_in([path], request.smiles, told) or "smiles",
        targets=told.targets_in(path, request.target),
        class_names=names,
        task=task,
    )


def _check(item: Data, service: Service, where: str) -> None:
    """Raise for a graph without the truth that the model is to be compared with."""
    if item.get("y") is None:
        do = "Tables: name the column with --target." if is_table(where) else ""
        raise InputError(f"labelled graphs in {where}", "no labels", do)
    spec = {} if service.model.target is None else service.model.target.spec()
    count = len(spec.get("names") or ()) if service.kind != "classes" else 1
    if service.rows == "graph" and count and item.y.numel() != count:
        wanted = f"{count} target{'s' * (count != 1)} per graph in {where}, as in training"
        raise InputError(wanted, item.y.numel())


def judge(
    request: Request,
    name: str,
    files: Mapping[str, Path],
    methods: Sequence[str] = (),
    subgroups: bool = False,
) -> Evaluation:
    """Everything measured of a bundle, or of a run's model, on other data.

    Args:
        request: The bundle, and how its files are read.
        name: Of a dataset, where there are no files.
        files: Labelled graphs by split.
        methods: Calibrators to fit on ``id_val``, next to the one in the bundle.
        subgroups: Also measure groups of rows; for a dataset only.
    """
    model, saved = load_model(request)
    calibrators: list[Any] = [*([] if saved is None else [saved]), *methods]
    if not files:
        splits = with_encodings(load(name), _encodings(request.bundle))
        return evaluate(model, splits, calibrators, subgroups=subgroups)
    service = Service(model, None, describe(bundle_of(request.bundle)[0]).class_names)
    found = {split: labelled(request, service, path, "the data") for split, path in files.items()}
    return evaluate(found, None, calibrators)


def _encodings(bundle: Path) -> int:
    """How many Laplacian encodings the network of a bundle reads."""
    spec = leaves(describe(bundle_of(bundle)[0]).model)[0]
    config = spec.get("config", {})
    return int(config["positional_channels"]) if config.get("positional") is not None else 0


def first_graph(path: Path, smiles: str | None) -> Data:
    """The first graph of a file that can be read."""
    check_sources([path])
    column = smiles_in([path], smiles, Told()) or "smiles"
    for _, item in stream(path, smiles=column):
        if not isinstance(item, Reject):
            return item
    raise InputError(f"at least one graph in {path}", "none")
