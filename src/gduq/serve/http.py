"""The HTTP service: graphs in, answers with uncertainty out.

Annotations of the functions inside `make_app` are read by FastAPI, so they are not postponed here.
"""

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeVar

import torch
from pydantic import BaseModel

import gduq
from gduq.bundle import BundleInfo
from gduq.data.smiles import RDKitProcess
from gduq.errors import InputError
from gduq.serve.batching import Batcher, Query, Refused, read_query
from gduq.serve.server import check_installed
from gduq.serve.service import Service
from gduq.serve.settings import Limits

__all__ = ["make_app", "make_card"]

_log = logging.getLogger(__name__)
_COMMON = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# a picture is made from a stranger's text: it may not run or load anything
_PICTURE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", **_COMMON}

Found = TypeVar("Found")


class Rejected(BaseModel):
    """A graph that cannot be answered."""

    row: int  # its place in the request, from 0
    reason: str


class PredictResponse(BaseModel):
    """One entry per graph, or per node where the model answers for nodes."""

    answers: list[dict[str, Any]]  # the columns of `gduq predict`
    rejected: list[Rejected]


_PROBLEMS: dict[int | str, dict[str, Any]] = {  # answered as {"error": a sentence}
    413: {"description": "More than one request may hold."},
    415: {"description": "No JSON."},
    422: {"description": "No request that can be read."},
    500: {"description": "The model failed."},
    503: {"description": "Too many requests are waiting."},
    504: {"description": "No answer within the time for a request."},
}
_BODY = {"application/json": {"schema": Query.model_json_schema()}}


def make_app(
    service: Service,
    card: Mapping[str, Any],
    limits: Limits | None = None,
    hosts: Sequence[str] | None = None,
) -> Any:
    """The service as a FastAPI application.

    Args:
        service: The model.
        card: What ``/model`` says, see `make_card`.
        limits: Bounds of a request.
        hosts: Names under which it may be asked for; ``None``: any. A service on loopback should
            name them, else a page of another site could ask through the user's browser.

    Raises:
        InputError: FastAPI is not installed, or the model answers for edges.
    """
    check_installed("fastapi")
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, JSONResponse, Response
    from starlette.concurrency import run_in_threadpool

    if service.rows == "edge":
        raise InputError("a model that answers for graphs or nodes", "one for edges")
    bounds = limits or Limits()
    batcher, drawer = Batcher(service, bounds), RDKitProcess(bounds.reading)

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()
        drawer.close()

    app = FastAPI(
        title="gduq",
        version=gduq.__version__,
        description=f"How far to trust {card.get('name', 'the model')}, graph by graph.",
        lifespan=working,
        docs_url=None,  # FastAPI's pages run scripts of another site
        redoc_url=None,
    )

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        again = {"retry-after": "1"} if error.status == 503 else None
        return JSONResponse({"error": error.reason}, error.status, again)

    @app.post(
        "/predict",
        summary="Answers for molecules or graphs",
        responses={200: {"model": PredictResponse}, **_PROBLEMS},
        openapi_extra={"requestBody": {"required": True, "content": _BODY}},
    )
    async def predict(request: Request) -> Response:
        """One entry per graph, or per node where the model answers for nodes."""
        answer = await _in_time(_answer(request, batcher), bounds)
        return Response(answer, media_type="application/json")

    @app.get("/health", summary="Whether requests are answered, and how many were")
    async def health() -> Response:
        ok = batcher.alive
        counts = {**batcher.counts, "waiting": batcher.waiting}
        return JSONResponse({"status": "ok" if ok else "down", **counts}, 200 if ok else 503)

    @app.get("/model", summary="The model card: target, calibration, novelty, versions, bounds")
    async def model() -> Response:
        return JSONResponse(dict(card))

    @app.get("/draw", summary="A picture of a molecule", responses=_PROBLEMS)
    async def draw(smiles: str) -> Response:
        if len(smiles) > bounds.smiles:
            raise Refused(413, f"expected at most {bounds.smiles} characters, got {len(smiles)}")
        try:
            found = await _in_time(run_in_threadpool(drawer.draw, smiles), bounds)
        except ValueError as error:
            raise Refused(422, str(error)) from None
        return Response(found, media_type="image/svg+xml", headers=_PICTURE)

    @app.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        page, headers = _template("page.html.jinja")
        return HTMLResponse(page.render(card=card), headers=headers)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        page, headers = _template("docs.html.jinja")
        return HTMLResponse(page.render(schema=app.openapi()), headers=headers)

    async def own_hosts_only(scope: Any, receive: Any, send: Any) -> None:
        host = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1").lower()
        known = scope["type"] != "http" or re.sub(r":\d*$", "", host) in (hosts or ())
        refusal = JSONResponse({"error": "expected another host name"}, 400)
        await (app if known else refusal)(scope, receive, send)

    return app if hosts is None else own_hosts_only


async def _in_time(work: Awaitable[Found], limits: Limits) -> Found:
    try:
        return await asyncio.wait_for(work, limits.seconds)
    except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
        raise Refused(504, f"no answer within {limits.seconds:g} seconds") from None
    except asyncio.CancelledError:  # the service stops
        raise Refused(503, "the service is shutting down") from None


async def _answer(request: Any, batcher: Batcher) -> bytes:
    """The answer to a request as JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"expected content-type application/json, got {kind[:50] or 'none'}")
    most, body = batcher.limits.body, bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise Refused(413, f"expected at most {most} bytes, got more")
    try:
        return await batcher.answer(read_query(bytes(body), batcher.limits))
    except Refused:
        raise
    except Exception:
        _log.exception("a request failed")
        raise Refused(500, "the model failed; the log of the service says why") from None


# -- what the service says of itself ---------------------------------------------------------------


def make_card(service: Service, limits: Limits, info: BundleInfo, name: str) -> dict[str, Any]:
    """The model card as JSON holds it: target, calibration, novelty reference, versions, bounds."""
    model, reference, novelty = service.model, service.reference, service.model.novelty
    rows = {"training_rows": len(novelty.reference), "validation_rows": len(novelty.distances)}
    decided = {**asdict(service.settings), "notes": service.decisions.notes}
    spec, columns = service.target, (info.preprocessing or {}).get("targets")
    count = spec.get("num_classes") or len(spec.get("rates") or spec.get("shift") or ())
    names = spec.get("names") or service.class_names or [str(number) for number in range(count)]
    return {
        "name": name,
        "model": info.model["kind"],
        "answers": service.kind,
        "target": {"columns": columns, "names": list(names), "units": spec.get("units")},
        "rows": service.rows,
        "calibration": {
            "fitted_on": model.calibration,
            "temperature": float(model.temperature) if model.calibration else None,
            "calibrator": info.calibrator and info.calibrator.get("name"),
        },
        "novelty": rows if novelty.fitted else None,
        "max_novelty": service.settings.max_novelty,
        "decisions": None if reference is None else {"reference_rows": len(reference), **decided},
        "ood_score": service.score,
        "preprocessing": info.preprocessing,
        "saved_with": info.libraries,
        "served_with": {"gduq": gduq.__version__, "torch": torch.__version__},
        "limits": asdict(limits),
    }


@lru_cache
def _template(name: str) -> tuple[Any, dict[str, str]]:
    """A page, and headers that let nothing but its own script run."""
    from jinja2 import Environment, StrictUndefined

    source = files("gduq.serve").joinpath(name).read_text(encoding="utf-8")
    options: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    script = source.partition("<script>")[2].partition("</script>")[0]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{hashed}'" if script else "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    page = Environment(undefined=StrictUndefined, **options).from_string(source)
    return page, {"Content-Security-Policy": policy, **_COMMON}
