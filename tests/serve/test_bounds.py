"""Connections have bounds: their number and their headers; and stopping takes a moment."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest

pytest.importorskip("uvicorn", reason="needs gduq[serve]")

SERVER = """
import asyncio, sys
from gduq.serve.server import Limits, listen, run

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": kind + ".complete"})
            if kind.endswith("shutdown"):
                return
    if scope["path"] == "/slow":
        await asyncio.sleep(60)
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})

limits = Limits(connections=8, idle=2, seconds=1, stopping=1)
place = listen("127.0.0.1", 0)
print("http://127.0.0.1:%d" % place.getsockname()[1], flush=True)
run(app, place, limits)
"""


@contextmanager
def serving():
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as one:
        host, port = one.stdout.readline().strip().removeprefix("http://").split(":")
        try:
            yield (host, int(port)), one
        finally:
            one.kill()


@pytest.fixture(scope="module")
def place():
    with serving() as (found, _):
        yield found


def ask(place, path="/"):
    """The first line of the answer; nothing where the connection is ended."""
    with connected(place) as one:
        one.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        return one.recv(1000).partition(b"\r\n")[0].decode()


def connected(place):
    return socket.create_connection(place, timeout=20)


def test_connections_have_a_number(place):
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(connected(place))
        assert "503" in ask(place), "too many"
    time.sleep(0.1)
    assert "200" in ask(place)


@pytest.mark.parametrize("head", [b"GET /", b"GET / HTTP/1.1\r\n"])
def test_endless_headers_are_refused(place, head):
    line = b"y: z\r\n" if head.endswith(b"\r\n") else b"a"
    with connected(place) as one:
        one.sendall(head)
        sent = 0
        with suppress(OSError):  # reset, or a broken pipe
            while sent < 100_000_000:
                one.sendall(line * 10_000)
                sent += len(line) * 10_000
        assert sent < 20_000_000
    assert "200" in ask(place)


def test_stopping_takes_a_moment():
    with serving() as (place, process), connected(place), connected(place) as busy:
        busy.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(0.3)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert time.monotonic() - start < 4
