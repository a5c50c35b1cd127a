"""`run`: from a config to a result on disk, once; and everything again without training."""

from __future__ import annotations

import contextlib
import platform
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import gduq
from gduq._io import locked, write_json
from gduq.bundle import save as save_bundle
from gduq.data import Splits, View
from gduq.data.outputs import RejectList
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.models.predictor import Predictor
from gduq.prediction import ClassPrediction, predict
from gduq.runs import build
from gduq.runs.calibrated import CalibratedRun
from gduq.runs.config import RunConfig
from gduq.runs.folder import FINISHED, REJECTS, RunFolder
from gduq.runs.training import train

__all__ = ["evaluated", "prepare", "recalibrate", "requirements", "run"]

_LIBRARIES = ("torch", "torch-geometric", "numpy", "scipy", "scikit-learn")
_WIDE = 1024  # features wider than this are not kept with predictions
_SHARED = ("vanilla", "ensemble", "mcdropout")  # their history is all of their training


def run(
    config: RunConfig,
    root: str | Path,
    progress: bool = True,
    *,
    evaluate: bool = True,
) -> RunFolder:
    """Train, predict every split, measure; all of it in one folder of ``root``.

    A run that is finished is not repeated, one that was interrupted goes on from its checkpoint.
    Calibrators that are new are fitted without training. A lock keeps other processes from the
    same run: they wait and find it finished.

    Args:
        config: What to run.
        root: Folder of all runs.
        progress: Show the epochs, on a terminal.
        evaluate: Also write ``metrics.json`` now; otherwise when it is first asked for.

    Example:
        >>> import tempfile
        >>> config = RunConfig(
        ...     data={"name": "cbas/color/concept"},
        ...     model={"conv": "gcn", "hidden_channels": 8},
        ...     method={"kind": "anchored", "recipe": "paper"},
        ...     training={"epochs": 2},
        ... )
        >>> folder = run(config, tempfile.mkdtemp(), progress=False, evaluate=False)
        >>> folder.predictions()["ood_test"].samples.shape
        torch.Size([10, 140, 4])
    """
    root = Path(root)
    for needed in requirements(config):
        run(needed, root, progress, evaluate=False)
    path = root / config.folder_name
    with locked(path):
        if not (path / FINISHED).is_file():
            _make(config, path, root, progress)
    return recalibrate(path, config.calibrators, evaluate)


def requirements(config: RunConfig) -> list[RunConfig]:
    """Runs that must be there before: members of an ensemble, the network to start from."""
    method = config.method
    bare = config.with_({"calibrators": ()})
    if method.kind == "ensemble":
        kind = {"method.kind": method.member}
        return [bare.with_({**kind, "seed": config.seed + i}) for i in range(method.size)]
    plain = {"kind": "vanilla", "calibrate": method.calibrate}
    return [bare.with_({"method": plain})] if method.from_vanilla else []


def prepare(config: RunConfig, root: str | Path) -> Path:
    """The folder of a run; one that is not finished gets its config and its list of rejects."""
    path = Path(root) / config.folder_name
    if not (path / FINISHED).is_file():
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "config.json", config.model_dump(mode="json"))
        _list_rejects(config, path)
    return path


# -- the run itself -----------------------------------------------------------------------------


def _make(config: RunConfig, path: Path, root: Path, progress: bool) -> None:
    prepare(config, root)
    splits = build.splits_of(config)
    needed = [RunFolder(root / other.folder_name) for other in requirements(config)]
    model, history = train(config, splits, needed, path, progress)
    seconds, predictions = _predicted(model, build.all_views(splits))
    save_bundle(
        model,
        path / "bundle",
        class_names=splits.class_names or None,
        preprocessing=_preprocessing(config),
        reference=predictions.get("id_val"),
    )
    (path / "predictions").mkdir(exist_ok=True)
    for split, p in predictions.items():
        p.to_npz(path / "predictions" / f"{split}.npz")
    write_json(path / "history.json", asdict(history))
    times = {"train": history.seconds, "predict": sum(seconds.values()), "predicted": seconds}
    if config.method.kind not in _SHARED:  # what the network it starts from took
        times["plain"] = sum(folder.info["seconds"]["train"] for folder in needed)
    rows = {split: len(p) for split, p in predictions.items()}
    write_json(path / "info.json", _info(config, splits, model, times, rows))
    write_json(path / FINISHED, {"hash": config.hash})
    shutil.rmtree(path / "checkpoint", ignore_errors=True)


def _preprocessing(config: RunConfig) -> dict[str, Any] | None:
    """How `gduq predict` is to read new files: what the model was trained on says it."""
    own, data = build.own_of(config), config.data
    if own is None:
        return None
    notes: dict[str, Any] = {"file": data.name, "digest": data.digest, "task": own.target.kind}
    notes |= {"by": own.by, "rows": sum(len(view) for _, view in own.splits)}
    if data.smiles is not None:
        columns = {"smiles": data.smiles, "targets": list(data.targets), "ids": list(data.ids)}
        notes |= {**columns, "features": "torch_geometric.utils.from_smiles"}
    return notes


def _list_rejects(config: RunConfig, path: Path) -> None:
    own = build.own_of(config)
    if own is not None and own.rejects:
        with RejectList(path / REJECTS) as listed:
            for row, reject in own.rejects:
                listed.write(reject.file, row, reject)


def _predicted(
    model: Predictor, views: Mapping[str, View]
) -> tuple[dict[str, float], dict[str, ClassPrediction]]:
    """Seconds and predictions by split, with representations that are no wider than a layer."""
    seconds, found = {}, {}
    for split, view in views.items():
        start = time.perf_counter()
        p = predict(model, view, features=True).to("cpu")
        seconds[split] = time.perf_counter() - start
        wide = p.features is not None and p.features.size(1) > _WIDE
        found[split] = replace(p, features=None) if wide else p
    return seconds, found


def _info(
    config: RunConfig,
    splits: Splits,
    model: Predictor,
    times: Mapping[str, Any],
    rows: Mapping[str, int],
) -> dict[str, Any]:
    parameters = list(model.parameters())
    return {
        "status": "finished",
        "hash": config.hash,
        "title": config.title,
        "seconds": dict(times),
        "parameters": sum(p.numel() for p in parameters),
        "trained_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "rows": dict(rows),
        "task": splits.train.task,
        "model": repr(model),
        "class_names": list(splits.class_names),
        "target_names": list(splits.target_names),
        "units": list(splits.units),
        "severities": list(splits.severities),
        "description": splits.description,
        "sources": list(splits.sources),
        "versions": _versions(),
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} thread(s)",
    }


def _versions() -> dict[str, str]:
    found = {"gduq": gduq.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


# -- again, without training ---------------------------------------------------------------------


def recalibrate(
    folder: RunFolder | str | Path, methods: Iterable[str], evaluate: bool = True
) -> RunFolder:
    """Add calibrators to a finished run, which its evaluation then has; nothing is trained.

    Where one cannot be fitted, an `InputError` says why, and the run stays as it is.

    Args:
        folder: The run. Its config names all of its calibrators.
        methods: Names of `gduq.calibration.METHODS`, of `gduq.calibration.FIXED`,
            or of those that take copies with ``+corrupted``, which are fitted on shifted copies of
            the rows too.
        evaluate: Measure now; otherwise when the evaluation is first asked for.
    """
    path = folder.path if isinstance(folder, RunFolder) else Path(folder)
    with locked(path):
        found = RunFolder(path)
        found.check_finished()
        known, metrics = found.config.calibrators, path / "metrics.json"
        config = found.config.with_({"calibrators": (*known, *methods)})
        more = config.calibrators[len(known) :]
        result = None
        if evaluate and (more or not metrics.is_file()):
            result = evaluated(found, more)
            for name in more:
                if name in result.settings["skipped"]:
                    reason = result.settings["skipped"][name]
                    raise InputError(f"calibrators that fit this run, not {name}", reason)
        if more:
            metrics.unlink(missing_ok=True)
            write_json(path / "config.json", config.model_dump(mode="json"))
        if result is not None:
            result.to_json(metrics)
    return RunFolder(path)


def evaluated(folder: RunFolder, more: Iterable[str] = (), subgroups: bool = False) -> Evaluation:
    """Everything measured of a run, with every calibrator of its config; nothing is written.

    Args:
        folder: A finished run.
        more: Other calibrators beside those.
        subgroups: Also measure groups of rows, see `gduq.evaluate`.
    """
    run = CalibratedRun(folder)
    severe = folder.info["severities"]
    return evaluate(
        run,
        run.views if subgroups else None,
        (*folder.config.calibrators, *more),
        ood=[split for split in run.raw if split.startswith("ood") or split in severe],
        resamples=folder.config.resamples,
        subgroups=subgroups,
    )
