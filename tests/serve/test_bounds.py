"""Connections have bounds: their number, their headers, their time; and stopping takes a moment."""

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
from gduq.serve.server import listen, run
from gduq.serve.settings import Limits

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": kind + ".complete"})
            if kind.endswith("shutdown"):
                return
    if scope["path"] == "/read":
        while (await receive()).get("more_body"):
            pass
    if scope["path"] == "/slow":
        await asyncio.sleep(60)
    if scope["path"] == "/large":
        content = b"x" * 20_000_000
    else:
        content = b"ok"
    await send({"type": "http.response.start", "status": 200,
                "headers": [(b"content-length", str(len(content)).encode())]})
    await send({"type": "http.response.body", "body": content})

limits = Limits(connections=8, headers=10_000, idle=2, seconds=1, stopping=1)
run(app, listen("127.0.0.1", 0), limits, lambda address: print(address, flush=True))
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


def ended(one) -> float:
    """Seconds until the other side ends a connection, whatever it says before."""
    start = time.monotonic()
    with suppress(ConnectionResetError):
        while one.recv(1 << 16):
            pass
    return time.monotonic() - start


def test_idle_connections_take_no_place_for_long(place):
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(place)) for _ in range(10)]
        idle[0].sendall(b"GET / HTTP/1.1\r\nhos")  # never finished
        assert "503" in ask(place), "too many"
        assert all(ended(one) < 15 for one in idle)
    assert "200" in ask(place)


def test_dripping_headers_and_bodies_have_a_time(place):
    for start in (
        b"GET / HTTP/1.1\r\nhost: x\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n",  # answered, then idle
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\n",  # the second one
    ):
        with connected(place) as one:
            one.sendall(start)
            for _ in range(40):
                time.sleep(0.2)
                try:
                    one.sendall(b"a")
                except OSError:
                    break
            else:
                pytest.fail(f"still open: {start!r}")


def test_a_client_that_does_not_read_is_left(place):
    with connected(place) as one:
        one.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(6)
        read = 0
        with suppress(ConnectionResetError):
            while part := one.recv(1 << 20):
                read += len(part)
        assert read < 20_000_000


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


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_body_is_no_header(place, pieces):
    size = 7 * 100_000
    with connected(place) as one:
        for _ in range(2):
            head = f"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n"
            one.sendall(head.encode())
            for _ in range(pieces):
                one.sendall(b"x" * (size // pieces))
                time.sleep(0.01)
            assert b"200 OK" in one.recv(1000)
            one.settimeout(0.5)
            with suppress(TimeoutError):
                one.recv(1000)  # the rest of the answer
            one.settimeout(20)


def test_stopping_takes_a_moment():
    with serving() as (place, process), connected(place), connected(place) as busy:
        busy.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(0.3)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert time.monotonic() - start < 4
