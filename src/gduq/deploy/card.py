"""What a served model says about itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

import gduq
from gduq.bundle import BundleInfo
from gduq.deploy.http_limits import Limits
from gduq.deploy.service import Service

__all__ = ["card"]


def card(service: Service, limits: Limits, info: BundleInfo, name: str) -> dict[str, Any]:
    """The model card as JSON holds it: target, calibration, novelty reference, versions, bounds.

    Args:
        service: The model.
        limits: Bounds of the service.
        info: What the bundle says.
        name: What to call the model.
    """
    model, reference = service.model, service.reference
    novelty = model.novelty
    return {
        "name": name,
        "model": info.model["kind"],
        "answers": service.kind,
        "target": _target(service, info),
        "rows": service.rows,
        "calibration": {
            "fitted_on": model.calibration,
            "temperature": float(model.temperature) if model.calibration else None,
            "calibrator": info.calibrator and info.calibrator.get("name"),
        },
        "novelty": {
            "training_rows": len(novelty.reference),
            "validation_rows": len(novelty.distances),
        }
        if novelty.fitted
        else None,
        "max_novelty": service.settings.max_novelty,
        "decisions": None
        if reference is None
        else {"reference_rows": len(reference), **asdict(service.settings)},
        "ood_score": service.score,
        "preprocessing": info.preprocessing,
        "saved_with": info.libraries,
        "served_with": {"gduq": gduq.__version__, "torch": torch.__version__},
        "limits": asdict(limits),
    }


def _target(service: Service, info: BundleInfo) -> dict[str, Any]:
    """Columns of the training table, names of classes, labels or values, and units.

    What has no name is called by its number.
    """
    target, noted = service.model.target, (info.preprocessing or {}).get("targets")
    spec = {} if target is None else target.spec()
    count = spec.get("num_classes") or len(spec.get("rates") or spec.get("shift") or ())
    names = service.class_names or spec.get("names") or [str(number) for number in range(count)]
    known = isinstance(noted, list) and all(isinstance(name, str) for name in noted)
    return {
        "columns": noted if known else None,
        "names": list(names),
        "units": spec.get("units"),
    }
