"""The HTTP service: graphs in, answers with uncertainty out.

Annotations of the functions inside `make_app` are read by FastAPI, so they are not postponed here.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field
from pydantic_core import to_json

import gduq
from gduq.data.smiles import RDKitProcess
from gduq.errors import InputError
from gduq.serve import pages
from gduq.serve.batching import Batcher
from gduq.serve.reading import Query, Refused, read_query
from gduq.serve.server import check_installed
from gduq.serve.service import Service
from gduq.serve.settings import Limits

__all__ = ["make_app"]


class Rejected(BaseModel):
    """A graph that cannot be answered."""

    row: int = Field(description="Its place in the request, from 0.")
    reason: str


class PredictResponse(BaseModel):
    """One entry per graph, or per node where the model answers for nodes."""

    answers: list[dict[str, Any]] = Field(
        description="The columns of `gduq predict`; row is the place in the request, from 0."
    )
    rejected: list[Rejected]


class Problem(BaseModel):
    """Why a request is not answered."""

    error: str


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": text}
    for code, text in {
        413: "More than one request may hold.",
        415: "No JSON.",
        422: "No request that can be read.",
        500: "The model failed.",
        503: "Too many requests are waiting.",
        504: "No answer within the time for a request.",
    }.items()
}


def make_app(
    service: Service,
    card: Mapping[str, Any],
    limits: Limits | None = None,
    hosts: Sequence[str] | None = None,
) -> Any:
    """The service as a FastAPI application.

    Args:
        service: The model.
        card: What ``/model`` says, see `gduq.serve.pages.make_card`.
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
        with batcher:
            yield
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
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": Query.model_json_schema()}},
            }
        },
    )
    async def predict(request: Request) -> Response:
        """One entry per graph, or per node where the model answers for nodes."""
        answer = await _in_time(_answer(request, batcher), bounds)
        return Response(answer, media_type="application/json")

    @app.get("/health", summary="Whether requests are answered, and how many were")
    async def health() -> Response:
        ok = batcher.alive
        counts = {**asdict(batcher.counts), "waiting": batcher.waiting}
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
        return Response(found, media_type="image/svg+xml", headers=pages.PICTURE)

    @app.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        return HTMLResponse(*pages.front(card))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(*pages.docs(app.openapi()))

    return app if hosts is None else _OwnHosts(app, hosts)


class _OwnHosts:
    """Answers under some host names only."""

    def __init__(self, app: Any, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, {host.encode() for host in hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        host = dict(scope.get("headers", ())).get(b"host", b"").lower()
        if scope["type"] == "http" and re.sub(rb":\d*$", b"", host) not in self.hosts:
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 400, "headers": head})
            body = to_json({"error": "expected another host name"})
            await send({"type": "http.response.body", "body": body})
        else:
            await self.app(scope, receive, send)


async def _in_time(work: Any, limits: Limits) -> Any:
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
    most, declared = batcher.limits.body, request.headers.get("content-length", "")
    body = bytearray()
    if not declared.isdigit() or int(declared) <= most:
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                break
    if len(body) > most or (declared.isdigit() and int(declared) > most):
        raise Refused(413, f"expected at most {most} bytes, got more")
    future = batcher.submit(read_query(bytes(body), batcher.limits))
    try:
        return await asyncio.wrap_future(future)
    except Exception:  # its traceback is in the log
        raise Refused(500, "the model failed; the log of the service says why") from None
