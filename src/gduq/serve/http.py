"""The HTTP service: graphs in, answers with uncertainty out.

Annotations of the functions inside `make_app` are read by FastAPI, so they are not postponed here.
"""

import asyncio
import base64
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING

from pydantic import BaseModel

import gduq
from gduq.bundle import BundleInfo
from gduq.data.smiles import RDKitProcess
from gduq.errors import InputError
from gduq.serve.batching import Batcher, Query, Refused, read_query
from gduq.serve.service import Service
from gduq.serve.settings import Limits
from gduq.serve.watch import watched

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from jinja2 import Template

__all__ = ["make_app", "make_card"]

_log = logging.getLogger(__name__)
_COMMON = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# a picture is made from a stranger's text: it may not run or load anything
_PICTURE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", **_COMMON}
_BODY = {"application/json": {"schema": Query.model_json_schema()}}


class PredictResponse(BaseModel):
    """One entry per graph or node, and the graphs that cannot be answered, with the reason."""

    model: dict[str, str]  # its name, and the digest of its file
    answers: list[dict[str, object]]  # the columns of `gduq predict`
    rejected: list[dict[str, int | str]]


def make_app(
    service: Service,
    card: Mapping[str, object],
    limits: Limits,
    hosts: Sequence[str] | None = None,
    keys: Sequence[str] = (),
) -> "FastAPI":
    """The service as a FastAPI application.

    Args:
        service: The model.
        card: What ``/model`` says, see `make_card`.
        limits: Bounds of a request.
        hosts: Names under which it may be asked for; ``None``: any. A service on loopback should
            name them, else a page of another site could ask through the user's browser.
        keys: Only requests with one of these are answered, if there are any.

    Raises:
        InputError: The model answers for edges.
    """
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    if service.rows == "edge":
        raise InputError("a model that answers for graphs or nodes", "one for edges")
    page, headers = _page()
    named = {key: str(card[key]) for key in ("name", "digest")}
    batcher, drawer = Batcher(service, limits, named), RDKitProcess(limits.reading)

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
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        again = {"Retry-After": "1"} if error.status == 503 else None
        return JSONResponse({"detail": str(error)}, error.status, again)

    @app.post(
        "/predict",
        summary="Answers for molecules or graphs",
        response_model=PredictResponse,
        openapi_extra={"requestBody": {"required": True, "content": _BODY}},
    )
    async def predict(request: Request) -> Response:
        """One entry per graph, or per node where the model answers for nodes."""
        try:
            answer, numbers = await asyncio.wait_for(_answer(request, batcher), limits.seconds)
        except Refused:
            raise
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise Refused(504, f"no answer within {limits.seconds:g} seconds") from None
        except asyncio.CancelledError:  # the service stops
            raise Refused(503, "the service is shutting down") from None
        except Exception:
            _log.exception("a request failed")
            raise Refused(500, "the model failed; the log of the service says why") from None
        request.scope["answered"].update(numbers)  # for the log
        return Response(answer, media_type="application/json")

    @app.get("/health", summary="Whether it works, and whether rows are like the training data")
    async def health() -> Response:
        found = {"status": "ok" if batcher.alive else "down", "waiting": batcher.waiting}
        keys, monitor = ("alarm", "alarm_at", "rows", "log_capital"), batcher.watch.monitor
        seen = None if monitor is None else {key: getattr(monitor, key) for key in keys}
        return JSONResponse({**found, "monitor": seen}, 200 if batcher.alive else 503)

    @app.get("/ready", summary="Whether one more request would be answered now")
    async def ready() -> Response:
        found = batcher.alive and batcher.waiting < limits.queue
        return JSONResponse({"ready": found}, 200 if found else 503)

    @app.get("/metrics", summary="Numbers for Prometheus")
    async def metrics() -> Response:
        kind = "text/plain; version=0.0.4"
        return PlainTextResponse(batcher.watch.metrics(batcher.waiting), media_type=kind)

    @app.get("/model", summary="The model card: target, calibration, novelty, versions, bounds")
    async def model() -> Response:
        return JSONResponse(dict(card))

    @app.get("/draw", summary="A picture of a molecule")
    async def draw(smiles: str) -> Response:
        if len(smiles) > limits.smiles:
            raise Refused(413, f"expected at most {limits.smiles} characters")
        try:
            found = await run_in_threadpool(drawer.draw, smiles)
        except ValueError as error:
            raise Refused(422, str(error)) from None
        return Response(found, media_type="image/svg+xml", headers=_PICTURE)

    @app.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        return HTMLResponse(page.render(card=card), headers=headers)

    paths = {getattr(route, "path", "") for route in app.routes}
    app.add_middleware(watched, watch=batcher.watch, routes=paths, keys=keys)
    return app


async def _answer(request: "Request", batcher: Batcher) -> tuple[bytes, dict[str, int]]:
    """The answer to a request as JSON, and its numbers."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"expected content-type application/json, got {kind[:50]!r}")
    most, body = batcher.limits.body, bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise Refused(413, f"expected at most {most} bytes, got more")
    return await batcher.answer(read_query(bytes(body), batcher.limits))


# -- what the service says of itself ---------------------------------------------------------------


def make_card(
    service: Service, limits: Limits, info: BundleInfo, **named: str
) -> dict[str, object]:
    """The model card as JSON holds it; ``name`` and ``digest`` of its file are in all answers."""
    model, reference, novelty = service.model, service.reference, service.model.novelty
    settings = asdict(service.settings)
    rows = {"training_rows": len(novelty.reference), "validation_rows": len(novelty.distances)}
    spec, columns = service.target, (info.preprocessing or {}).get("targets")
    count = spec.get("num_classes") or len(spec.get("rates") or spec.get("shift") or ())
    names = spec.get("names") or service.class_names or [str(number) for number in range(count)]
    return {
        **named,
        "model": info.model["kind"],
        "answers": service.kind,
        "target": {"columns": columns, "names": list(names), "units": spec.get("units")},
        "rows": service.rows,
        "calibration": {
            "fitted_on": model.calibration,
            "temperature": float(model.temperature) if model.calibration else None,
            "calibrator": info.calibrator,
        },
        "novelty": rows if novelty.fitted else None,
        "max_novelty": service.settings.max_novelty,
        "decisions": None if reference is None else {"reference_rows": len(reference), **settings},
        "preprocessing": info.preprocessing,
        "saved_with": info.libraries,
        "limits": asdict(limits),
    }


def _page() -> tuple["Template", dict[str, str]]:
    """The page for SMILES, and headers that let nothing but its own script run."""
    from jinja2 import Environment, StrictUndefined

    source = files("gduq.serve").joinpath("page.html.jinja").read_text(encoding="utf-8")
    script = source.partition("<script>")[2].partition("</script>")[0]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashed}'; style-src 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    pages = Environment(
        undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return pages.from_string(source), {"Content-Security-Policy": policy, **_COMMON}
