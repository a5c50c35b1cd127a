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
    names = (card.get("target") or {}).get("names") or []
    return _page("page.html.jinja", card=card, names=names)


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
