"""The HTTP service: graphs in, answers with uncertainty out; and what an operator sees of it."""

# annotations of the functions inside `make_app` are read by FastAPI: they are not postponed here
import asyncio
import base64
import hashlib
import hmac
import logging
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import to_json

import gduq
from gduq.bundle import BundleInfo
from gduq.data.smiles import RDKitProcess
from gduq.errors import InputError
from gduq.serve.batching import Batcher, Entry, Query, Refused, read_query
from gduq.serve.server import Limits
from gduq.serve.service import REASONS, Service

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from jinja2 import Template
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["make_app", "make_card"]

_log = logging.getLogger(__name__)
_COMMON = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# a picture is made from a stranger's text: it may not run or load anything
_PICTURE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", **_COMMON}
_CONTENT = {"application/json": {"schema": Query.model_json_schema()}}
_BODY = {"requestBody": {"required": True, "content": _CONTENT}}
_ID = re.compile(r"[\w.:/+=-]{1,100}", re.ASCII)  # of a request, if its client gives one


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
        service: The model, of graphs or nodes.
        card: What ``/model`` says, see `make_card`.
        limits: Bounds of a request.
        hosts: Names under which it may be asked for; ``None``: any. A service on loopback should
            name them, else a page of another site could ask through the user's browser.
        keys: Only requests with one of these are answered, if there are any.
    """
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, JSONResponse, Response
    from prometheus_client import generate_latest
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    if service.rows == "edge":
        raise InputError("a model that answers for graphs or nodes", "one for edges")
    page, headers = _page()
    named = {key: str(card[key]) for key in ("name", "digest")}  # the model, in every answer
    watch = Watch(service, named)
    batcher, drawer = Batcher(service, limits, watch.passes.inc), RDKitProcess(limits.reading)

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()
        drawer.close()

    about = f"How far to trust {named['name']}, graph by graph."
    # FastAPI's own pages run scripts of another site
    app = FastAPI(title="gduq", version=gduq.__version__, description=about, lifespan=working,
                  docs_url=None, redoc_url=None)  # fmt: skip
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        again = {"Retry-After": "1"} if error.status == 503 else None
        return JSONResponse({"detail": str(error)}, error.status, again)

    @app.post("/predict", summary="Answers", response_model=PredictResponse, openapi_extra=_BODY)
    async def predict(request: Request) -> Response:
        """One entry per graph, or per node where the model answers for nodes."""
        try:
            found = await asyncio.wait_for(_answer(request, batcher), limits.seconds)
            bad = [{"row": n, "reason": one} for n, one in enumerate(found) if isinstance(one, str)]
            good = [(n, one) for n, one in enumerate(found) if not isinstance(one, str)]
            rows = [{**row, "row": n} for n, one in good for row in one]
            answer = {"model": named, "answers": rows, "rejected": bad}
            content = to_json(answer, inf_nan_mode="null")
        except Refused:
            raise
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise Refused(504, f"no answer within {limits.seconds:g} seconds") from None
        except asyncio.CancelledError:  # the service stops
            raise Refused(503, "the service is shutting down") from None
        except Exception:
            _log.exception("a request failed")
            raise Refused(500, "the model failed; the log of the service says why") from None
        request.scope["answered"].update(watch.answered(rows, len(bad)))  # for the log
        return Response(content, media_type="application/json")

    @app.get("/health", summary="Whether it works, and whether rows are like the training data")
    async def health() -> Response:
        found = {"status": "ok" if batcher.alive else "down", "waiting": batcher.waiting}
        keys, monitor = ("alarm", "alarm_at", "rows", "log_capital"), watch.monitor
        seen = None if monitor is None else {key: getattr(monitor, key) for key in keys}
        return JSONResponse({**found, "monitor": seen}, 200 if batcher.alive else 503)

    @app.get("/ready", summary="Whether one more request would be answered now")
    async def ready() -> Response:
        found = batcher.alive and batcher.waiting < limits.queue
        return JSONResponse({"ready": found}, 200 if found else 503)

    @app.get("/metrics", summary="Numbers for Prometheus")
    async def metrics() -> Response:
        watch.waiting.set(batcher.waiting)
        return Response(generate_latest(watch.registry), media_type="text/plain; version=0.0.4")

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
    app.add_middleware(watched, watch=watch, routes=paths, keys=keys)
    return app


async def _answer(request: "Request", batcher: Batcher) -> list[Entry]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"expected content-type application/json, got {kind[:50]!r}")
    most, body = batcher.limits.body, bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise Refused(413, f"expected at most {most} bytes, got more")
    return await batcher.answer(read_query(bytes(body), batcher.limits))


# -- what an operator sees -------------------------------------------------------------------------


class Watch:
    """Numbers for Prometheus about what is answered, and `Service.monitor`."""

    def __init__(self, service: Service, named: Mapping[str, str]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

        self.monitor, self.registry = service.monitor(), CollectorRegistry()
        ours: dict[str, Any] = {"registry": self.registry}
        Info("gduq_model", "The model that answers", **ours).info(dict(named))
        self.requests = Counter("gduq_requests", "Requests", ("route", "status"), **ours)
        self.seconds = Histogram("gduq_request_seconds", "To the end", ("route",), **ours)
        self.waiting = Gauge("gduq_waiting", "Requests under way", **ours)
        self.passes = Counter("gduq_passes", "Passes of the model", **ours)
        self.rows = Counter("gduq_rows", "Rows answered", **ours)
        self.abstained = Counter("gduq_abstained", "Rows for a person", ("reason",), **ours)
        self.rejected = Counter("gduq_rejected", "Graphs left out", **ours)
        parts = {"buckets": (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99), **ours}
        self.novelty = Histogram("gduq_novelty", "Of rows answered", **parts)
        parts = {"buckets": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99), **ours}
        self.trust = Histogram("gduq_trust", "Of rows answered", **parts)
        for reason in REASONS:  # there from the start
            self.abstained.labels(reason)
        for name in () if self.monitor is None else ("log_capital", "alarm"):
            gauge = Gauge(f"gduq_monitor_{name}", "Of the test for a shift", **ours)
            gauge.set_function(partial(getattr, self.monitor, name))

    def answered(self, rows: Sequence[Mapping[str, object]], rejected: int) -> dict[str, int]:
        """Note an answer; its numbers of rows, of those abstained from, and of graphs rejected."""
        reasons = [str(row["abstain"]) for row in rows if row.get("abstain")]
        for reason in reasons:
            self.abstained.labels(reason).inc()
        self.rows.inc(len(rows))
        self.rejected.inc(rejected)
        novelty = _finite(rows, "novelty")
        for histogram, values in ((self.novelty, novelty), (self.trust, _finite(rows, "trust"))):
            for value in values:
                histogram.observe(value)
        if self.monitor is not None:
            before = self.monitor.alarm
            self.monitor.update(novelty)
            if self.monitor.alarm > before:
                _log.warning("alarm at row %s: not like the training data", self.monitor.alarm_at)
        return {"rows": len(rows), "abstained": len(reasons), "rejected": rejected}


def _finite(rows: Sequence[Mapping[str, object]], name: str) -> list[float]:
    """All finite values of a column, or of one each per label or value, ``name_...``."""
    names = [key for key in (rows[0] if rows else ()) if f"{key}_".startswith(f"{name}_")]
    found = (row[key] for row in rows for key in names)
    return [value for value in found if isinstance(value, float) and math.isfinite(value)]


def watched(
    app: "ASGIApp", watch: Watch, routes: Collection[str], keys: Collection[str]
) -> "ASGIApp":
    """The same with an id and a line of log for each request, counted in ``watch`` by route; if
    there are keys, only requests with one are answered."""
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.responses import JSONResponse

    why = {"detail": "expected a key: Authorization: Bearer KEY, or X-API-Key: KEY"}
    refusal = JSONResponse(why, 401, {"WWW-Authenticate": "Bearer"})

    async def respond(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        start, status, headers = time.perf_counter(), 499, Headers(scope=scope)
        name = headers.get("x-request-id", "")
        name = name if _ID.fullmatch(name) else secrets.token_hex(8)
        route = scope["path"] if scope["path"] in routes else "other"
        scope["answered"] = counts = dict[str, int]()

        async def reply(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        may = not keys or route in ("/health", "/ready") or _has_key(headers, keys)
        try:
            await (app if may else refusal)(scope, receive, reply)
        finally:  # without a status the client has gone
            seconds = time.perf_counter() - start
            watch.requests.labels(route, status).inc()
            watch.seconds.labels(route).observe(seconds)
            path = scope["raw_path"].decode("latin-1")  # as it was sent: no control characters
            more = "".join(f" {key}={count}" for key, count in counts.items())
            line = f"{name} {scope['method']} {path[:100]} {status}{more} ms={1000 * seconds:.1f}"
            _log.info(line)

    return respond


def _has_key(headers: Mapping[str, str], keys: Collection[str]) -> bool:
    """Whether a request names a key; the time it takes does not tell how much is right."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    given = token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
    return any(hmac.compare_digest(given.encode("latin-1"), key.encode()) for key in keys)


# -- what the service says of itself ---------------------------------------------------------------


def make_card(service: Service, limits: Limits, info: BundleInfo, **named: str) -> dict[str, Any]:
    """The model card as JSON holds it; ``name`` and ``digest`` of its file are in all answers."""
    model, reference, novelty = service.model, service.reference, service.model.novelty
    settings, columns = asdict(service.settings), (info.preprocessing or {}).get("targets")
    rows = {"training_rows": len(novelty.reference), "validation_rows": len(novelty.distances)}
    spec, width = service.target, 0 if model.target is None else model.target.width
    names = spec.get("names") or service.class_names or map(str, range(width))
    temperature = float(model.temperature) if model.calibration else None
    calibration = {"fitted_on": model.calibration, "temperature": temperature}
    return {
        **named,
        "model": info.model["kind"],
        "answers": service.kind,
        "target": {"columns": columns, "names": list(names), "units": spec.get("units")},
        "rows": service.rows,
        "calibration": {**calibration, "calibrator": info.calibrator},
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
    template = Environment(undefined=StrictUndefined, autoescape=True).from_string(source)
    return template, {"Content-Security-Policy": policy, **_COMMON}
