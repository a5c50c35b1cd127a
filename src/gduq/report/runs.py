"""Subjects from run folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from os import PathLike
from typing import Any

from gduq.errors import InputError
from gduq.graphs.splits import Splits
from gduq.prediction import Prediction
from gduq.report.seeds import pooled
from gduq.report.subject import Subject
from gduq.runs.build import all_views, splits_of
from gduq.runs.folder import RunFolder

__all__ = ["subject_from_run", "subjects_from_runs"]

_MOST = 6  # names of targets or classes that are listed


def subject_from_run(
    path: str | PathLike[str] | RunFolder, name: str | None = None, data: bool = True
) -> Subject:
    """The subject of a finished run.

    Args:
        path: A run folder, as `gduq.runs.run.run` leaves it.
        name: What to call it; by default what the title of its config says of the model.
        data: Also load the data, for drawn molecules; where it is gone the report does without.
    """
    folder = path if isinstance(path, RunFolder) else RunFolder(path)
    predictions, info, config = folder.predictions(), folder.info, folder.config
    classes = tuple(info["class_names"])
    first = next(iter(predictions.values()))
    if not first.names and len(classes) == len(set(classes)) == first.width:
        predictions = {split: replace(p, names=classes) for split, p in predictions.items()}
    if name is None:  # the network and the method: data and seed are mostly those of all subjects
        title = config.title.removeprefix(f"{config.data.name} ")
        name = title.removesuffix(f", seed {config.seed}") or folder.path.name
    seconds = {k: v for k, v in info["seconds"].items() if v is not None}
    cost = {f"{k}_seconds": seconds[k] for k in ("train", "predict") if k in seconds}
    if "train" in seconds:  # includes that of the network a model stands on
        cost["train_seconds"] += seconds.get("plain", 0.0)
    if info["parameters"] is not None:
        cost["parameters"] = info["parameters"]
    return Subject(
        name,
        predictions,
        cost,
        config.model_dump(mode="json"),
        _splits(folder, predictions) if data else None,
        folder.evaluation(),
        {**info["versions"], "machine": info["machine"] or "unknown"},
        facts=_facts(name, config.data.name, info),
        folder=str(folder.path),
    )


def subjects_from_runs(
    paths: Iterable[str | PathLike[str] | RunFolder],
    data: bool = True,
    notify: Callable[[str], None] = lambda _: None,
) -> list[Subject]:
    """Subjects of finished runs, in order; runs that differ in the seed only become one.

    Args:
        paths: Run folders.
        data: As in `subject_from_run`.
        notify: Called with the name of each folder before it is read.
    """
    groups: dict[str, list[RunFolder]] = {}
    for path in paths:
        folder = path if isinstance(path, RunFolder) else RunFolder(path)
        groups.setdefault(folder.config.with_({"seed": 0}).hash, []).append(folder)
    found = []
    for group in groups.values():
        runs = []
        for folder in sorted(group, key=lambda run: run.config.seed):
            notify(folder.path.name)
            runs.append(subject_from_run(folder, data=data))
        found.append(pooled(runs))
    return found


def _facts(name: str, data: str, info: Mapping[str, Any]) -> dict[str, str]:
    """Data, target, rows and model, in words."""
    pairs = zip_longest(info["target_names"], info["units"][: len(info["target_names"])])
    targets = [f"{n} [{u}]" if u and f"[{u}]" not in n else n for n, u in pairs]
    rows = ", ".join(f"{count:,} {split}" for split, count in info["rows"].items())
    found = {
        "Data": data,
        "Target": _first_names(targets),
        "Classes": _first_names(info["class_names"]),
        "Rows": f"{info['description']} {rows}.".strip(),
        "Model": f"{name}: {info['model']}" if info["model"] else name,
    }
    return {key: value for key, value in found.items() if value}


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def _splits(folder: RunFolder, predictions: Mapping[str, Prediction]) -> Splits | None:
    """The data, if it is still there and has the rows that were predicted."""
    try:
        splits = splits_of(folder.config)
    except (InputError, OSError):  # raw files that moved must not cost us the report
        return None
    views = all_views(splits)
    same = all(len(views[s]) == len(p) for s, p in predictions.items() if s in views)
    return splits if same else None
