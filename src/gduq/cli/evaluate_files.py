"""``gduq evaluate BUNDLE --data ...``: a saved model on labelled data of one's own, or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gduq.bundle import describe
from gduq.bundle.rebuilding import leaves
from gduq.cli.answering import load_model
from gduq.cli.known import labelled
from gduq.cli.request import Request, bundle_of
from gduq.data import load
from gduq.deploy.service import Service
from gduq.evaluation import Evaluation, evaluate
from gduq.runs.build import with_encodings

__all__ = ["judge"]


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
