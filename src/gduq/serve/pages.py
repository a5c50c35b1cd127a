"""What the service says of itself: the model card, a page to try it, one that lists its routes."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch

import gduq
from gduq.bundle import BundleInfo
from gduq.serve.service import Service
from gduq.serve.settings import Limits

__all__ = ["PICTURE", "docs", "front", "make_card"]

_COMMON = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# a picture is made from a stranger's text: it may not run or load anything
PICTURE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", **_COMMON}

Page = tuple[str, int, dict[str, str]]  # content, status, headers


def make_card(service: Service, limits: Limits, info: BundleInfo, name: str) -> dict[str, Any]:
    """The model card as JSON holds it: target, calibration, novelty reference, versions, bounds."""
    model, reference, novelty = service.model, service.reference, service.model.novelty
    rows = {"training_rows": len(novelty.reference), "validation_rows": len(novelty.distances)}
    decided: dict[str, Any] = {"reference_rows": 0 if reference is None else len(reference)}
    decided |= {**asdict(service.settings), "notes": service.notes}
    return {
        "name": name,
        "model": info.model["kind"],
        "answers": service.kind,
        "target": _target_of(service, info),
        "rows": service.rows,
        "calibration": {
            "fitted_on": model.calibration,
            "temperature": float(model.temperature) if model.calibration else None,
            "calibrator": info.calibrator and info.calibrator.get("name"),
        },
        "novelty": rows if novelty.fitted else None,
        "max_novelty": service.settings.max_novelty,
        "decisions": None if reference is None else decided,
        "ood_score": service.score,
        "preprocessing": info.preprocessing,
        "saved_with": info.libraries,
        "served_with": {"gduq": gduq.__version__, "torch": torch.__version__},
        "limits": asdict(limits),
    }


def _target_of(service: Service, info: BundleInfo) -> dict[str, Any]:
    """Columns of the training table, names (or numbers) of classes, labels or values, and units."""
    spec, noted = service.target, (info.preprocessing or {}).get("targets")
    count = spec.get("num_classes") or len(spec.get("rates") or spec.get("shift") or ())
    names = spec.get("names") or service.class_names or [str(number) for number in range(count)]
    known = isinstance(noted, list) and all(isinstance(name, str) for name in noted)
    return {"columns": noted if known else None, "names": list(names), "units": spec.get("units")}


def front(card: Mapping[str, Any]) -> Page:
    """A form for SMILES, and the answers below it."""
    target = card["target"]
    units = target["units"] or [""] * len(target["names"])
    shown = [f"{n} [{u}]" if u else n for n, u in zip(target["names"], units, strict=True)]
    return _page("page.html.jinja", card=card, names=shown)


def docs(schema: Mapping[str, Any]) -> Page:
    """The routes with their parameters and answers, from the OpenAPI schema."""
    routes = [
        {"method": method.upper(), "path": path, **route}
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    ]
    models = schema.get("components", {}).get("schemas", {})
    text = {name: json.dumps(model, indent=1) for name, model in models.items()}
    for route in routes:
        body = route.get("requestBody", {}).get("content", {}).get("application/json", {})
        form = body.get("schema", {})
        route["fields"] = {k: v["description"] for k, v in form.get("properties", {}).items()}
        route["examples"] = [json.dumps(example) for example in form.get("examples", ())]
    return _page("docs.html.jinja", info=schema["info"], routes=routes, models=text)


def _page(name: str, **values: Any) -> Page:
    source, template = _template(name)
    script = source.partition("<script>")[2].partition("</script>")[0]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{hashed}'" if script else "script-src 'none'"
    policy = (
        f"default-src 'none'; {allowed}; style-src 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    return template.render(**values), 200, {"Content-Security-Policy": policy, **_COMMON}


@lru_cache
def _template(name: str) -> tuple[str, Any]:
    from jinja2 import Environment, StrictUndefined

    source = files("gduq.serve").joinpath(name).read_text(encoding="utf-8")
    options: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    return source, Environment(undefined=StrictUndefined, **options).from_string(source)
