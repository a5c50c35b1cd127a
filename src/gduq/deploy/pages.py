"""The pages of the service: one to try a model, one that describes its routes."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

__all__ = ["PICTURE", "docs", "front"]

_COMMON = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# a picture is made from a stranger's text: it may not run or load anything
PICTURE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", **_COMMON}

Page = tuple[str, int, dict[str, str]]  # content, status, headers


def front(card: Mapping[str, Any]) -> Page:
    """A form for SMILES, and the answers below it."""
    return _page("page.html.jinja", card=card, told=_told(card))


def _told(card: Mapping[str, Any]) -> str:
    """What the model predicts, in one sentence.

    Example:
        >>> _told({"answers": "classes", "target": {"columns": ["toxic"], "names": ["0", "1"]}})
        'Predicts toxic, which is 0 or 1, as in the training data.'
    """
    target = card["target"]
    names = target["names"] or []
    if card["answers"] == "classes":
        column = ", ".join(target["columns"] or ["the class"])
        return f"Predicts {column}, which is {' or '.join(names)}, as in the training data."
    if card["answers"] == "labels":
        return f"Predicts {len(names)} labels, yes (1) or no (0) each: {', '.join(names)}."
    units = target["units"] or [""] * len(names)
    shown = [f"{n} [{u}]" if u else n for n, u in zip(names, units, strict=True)]
    return f"Predicts {', '.join(shown)}."


def docs(schema: Mapping[str, Any]) -> Page:
    """The routes with their parameters and answers, from the OpenAPI schema."""
    routes = [
        {"method": method.upper(), "path": path, **told}
        for path, methods in schema["paths"].items()
        for method, told in methods.items()
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

    source = files("gduq.deploy").joinpath(name).read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return source, environment.from_string(source)
