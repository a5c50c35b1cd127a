"""``gduq evaluate BUNDLE --data ...``: a saved model on labelled data of one's own, or by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gduq.bundle import describe
from gduq.bundle.rebuilding import leaves
from gduq.cli.answering import Request, bundle_of, labelled, load_model
from gduq.data import load
from gduq.deploy.service import Service
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.runs.build import with_encodings

__all__ = ["judge"]


def judge(
    request: Request, data: Sequence[str], methods: Sequence[str] = (), subgroups: bool = False
) -> Evaluation:
    """Everything measured of a bundle, or of a run's model, on other data.

    Args:
        request: The bundle, and how its files are read.
        data: One name of a dataset, or files; ``split=FILE`` says which split a file is.
        methods: Calibrators to fit on ``id_val``, next to the one in the bundle.
        subgroups: Also measure groups of rows; for a dataset only.
    """
    files = _files(data)
    model, saved = load_model(request)
    calibrators: list[Any] = [*([] if saved is None else [saved]), *methods]
    if files is None:
        splits = with_encodings(load(data[0]), _encodings(request.bundle))
        return evaluate(model, splits, calibrators, subgroups=subgroups)
    if subgroups:
        raise InputError("--subgroups with a run, or the name of a dataset", ", ".join(data))
    if methods and "id_val" not in files:
        raise InputError(f"--data id_val=FILE to fit {methods[0]} on", ", ".join(data))
    service = Service(model, None, describe(bundle_of(request.bundle)[0]).class_names)
    found = {split: labelled(request, service, path, "the data") for split, path in files.items()}
    return evaluate(found, None, calibrators)


def _encodings(bundle: Path) -> int:
    """How many Laplacian encodings the network of a bundle reads."""
    spec = leaves(describe(bundle_of(bundle)[0]).model)[0]
    config = spec.get("config", {})
    return int(config["positional_channels"]) if config.get("positional") is not None else 0


def _files(data: Sequence[str]) -> dict[str, Path] | None:
    """Files by split; ``None`` for a dataset that is named."""
    found: dict[str, Path] = {}
    for text in data:
        split, equals, name = text.partition("=")
        path = Path(text if Path(text).exists() or not equals else name)
        if not path.exists():
            if len(data) == 1 and not equals:
                return None  # loading it explains what is wrong with a name that is none
            raise InputError("files of labelled graphs, or one dataset's name", repr(text))
        split = split if equals and path == Path(name) else path.stem
        if split in found:
            raise InputError("a split of its own for every file", text, "Use --data split=FILE.")
        found[split] = path
    return found
