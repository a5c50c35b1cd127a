"""The HTTP service: graphs in, answers with uncertainty out.

Annotations of the functions inside `make_app` are read by FastAPI, so they are not postponed here.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field
from pydantic_core import to_json

import gduq
from gduq.data.smiles import RDKitProcess
from gduq.deploy import pages
from gduq.deploy.batching import Batcher
from gduq.deploy.http_reading import Query, Refused, read_query
from gduq.deploy.running import Limits, check_installed
from gduq.deploy.service import Service
from gduq.errors import InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["make_app"]

_LATE = (TimeoutError, asyncio.TimeoutError)  # two classes before Python 3.11


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
    """The service as an ASGI application.

    Args:
        service: The model.
        card: What ``/model`` says, see `gduq.deploy.pages.make_card`.
        limits: Bounds of a request.
        hosts: Names under which it may be asked for; ``None``: any. A service on loopback should
            name them, else a page of another site could ask through the user's browser.

    Raises:
        InputError: FastAPI is not installed, or the model answers for edges.
    """
    check_installed("fastapi")
    from fastapi import FastAPI

    if service.rows == "edge":
        raise InputError("a model that answers for graphs or nodes", "one for edges")
    batcher = Batcher(service, limits or Limits())
    pencil = RDKitProcess(batcher.limits.reading)

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        with batcher:
            yield
        pencil.close()

    app = FastAPI(
        title="gduq",
        version=gduq.__version__,
        description=f"How far to trust {card.get('name', 'the model')}, graph by graph.",
        lifespan=working,
        docs_url=None,  # FastAPI's pages run scripts of another site
        redoc_url=None,
        responses={500: {"model": Problem, "description": "The model failed."}},
    )
    _add_routes(app, batcher, pencil, card)
    return _Door(app, batcher, hosts)


def _add_routes(
    app: "FastAPI", batcher: Batcher, pencil: RDKitProcess, card: Mapping[str, Any]
) -> None:
    from fastapi import Request
    from fastapi.responses import HTMLResponse, JSONResponse, Response
    from starlette.concurrency import run_in_threadpool

    limits = batcher.limits
    body = {"application/json": {"schema": Query.model_json_schema()}}

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        return JSONResponse({"error": error.reason}, error.status)

    @app.post(
        "/predict",
        summary="Answers for molecules or graphs",
        responses={200: {"model": PredictResponse}, **_PROBLEMS},
        openapi_extra={"requestBody": {"required": True, "content": body}},
    )
    async def predict() -> None:  # for the description only, see `_Door`
        """One entry per graph, or per node where the model answers for nodes."""

    @app.get("/health", summary="Whether requests are answered, and how many were")
    async def health() -> Response:
        ok = batcher.alive
        counts = {**asdict(batcher.counts), "waiting": batcher.waiting}
        return JSONResponse({"status": "ok" if ok else "down", **counts}, 200 if ok else 503)

    @app.get("/model", summary="The model card: target, calibration, novelty, versions, bounds")
    async def model() -> Response:
        return JSONResponse(dict(card))

    @app.get("/draw", summary="A picture of a molecule", responses=_PROBLEMS)
    async def picture(smiles: str) -> Response:
        if len(smiles) > limits.smiles:
            raise Refused(413, f"expected at most {limits.smiles} characters, got {len(smiles)}")
        try:
            found = await _in_time(run_in_threadpool(pencil.draw, smiles), limits)
        except ValueError as error:
            raise Refused(422, str(error)) from None
        return Response(found, media_type="image/svg+xml", headers=pages.PICTURE)

    @app.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        return HTMLResponse(*pages.front(card))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(*pages.docs(app.openapi()))


class _Door:
    """Knows the host names, and answers ``POST /predict`` past FastAPI, which takes most time."""

    def __init__(self, app: Any, batcher: Batcher, hosts: Sequence[str] | None) -> None:
        self.app, self.batcher = app, batcher
        self.hosts = None if hosts is None else {host.encode() for host in hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = re.sub(rb":\d*$", b"", headers.get(b"host", b"").lower())
        if self.hosts is not None and host not in self.hosts:
            await _send(send, 400, to_json({"error": "expected another host name"}))
        elif scope["path"] == "/predict" and scope["method"] == "POST":
            try:
                answer = _answer(headers, receive, self.batcher)
                await _send(send, 200, await _in_time(answer, self.batcher.limits))
            except Refused as error:
                await _send(send, error.status, to_json({"error": error.reason}))
            except asyncio.CancelledError:  # the service stops
                await _send(send, 503, to_json({"error": "the service is shutting down"}))
        else:
            await self.app(scope, receive, send)


async def _in_time(work: Any, limits: Limits) -> Any:
    try:
        if sys.version_info < (3, 11):
            return await asyncio.wait_for(work, limits.seconds)
        async with asyncio.timeout(limits.seconds):  # takes no task of its own
            return await work
    except _LATE:
        raise Refused(504, f"no answer within {limits.seconds:g} seconds") from None


async def _send(send: Any, status: int, content: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        *[(b"retry-after", b"1")] * (status == 503),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _answer(headers: Mapping[bytes, bytes], receive: Any, batcher: Batcher) -> bytes:
    """The answer to a request as JSON."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        got = kind[:50].decode("latin-1") or "none"
        raise Refused(415, f"expected content-type application/json, got {got}")
    body = await _body(headers, receive, batcher.limits.body)
    future = batcher.submit(read_query(body, batcher.limits))
    try:
        return await future
    except Exception:  # its traceback is in the log
        raise Refused(500, "the model failed; the log of the service says why") from None


async def _body(headers: Mapping[bytes, bytes], receive: Any, most: int) -> bytes:
    """The bytes of a request, as long as they are not too many."""
    declared = headers.get(b"content-length", b"")
    size = int(declared) if declared.isdigit() else 0
    found, more = bytearray(), True
    while more and max(size, len(found)) <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the client has gone")
        found += message.get("body", b"")
        more = message.get("more_body", False)
    if max(size, len(found)) > most:
        raise Refused(413, f"expected at most {most} bytes, got more")
    return bytes(found)
