"""The service on an address, with its bounds, until it is told to stop."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

from gduq.errors import InputError, not_installed

__all__ = ["Limits", "check_installed", "is_loopback", "listen", "own_hosts", "run"]


@dataclass(frozen=True)
class Limits:
    """Bounds of the service, so that no request can take the machine from the others.

    Example:
        >>> Limits(queue=0)
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected queue above 0, got 0.
    """

    body: int = 8 * 2**20  # bytes of a request
    graphs: int = 1000  # of a request
    smiles: int = 2000  # characters of a SMILES string
    nodes: int = 20_000  # of a graph, and of all graphs that are answered in one pass
    edges: int = 200_000  # of the same
    batch: int = 256  # graphs in one pass
    queue: int = 256  # requests that may wait; more are told to come back
    seconds: float = 30.0  # for a request to arrive and to be answered
    reading: float = 5.0  # of computing for RDKit to read the SMILES of a request, or to draw one
    connections: int = 1024  # that are open

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InputError(f"{field.name} above 0", getattr(self, field.name))


def check_installed(*names: str) -> None:
    """Raise where one of these libraries of the service is missing."""
    for name in names:
        if find_spec(name) is None:
            raise not_installed(f"{name} to serve", "fastapi uvicorn httptools")


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach an address.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_hosts(host: str) -> list[str] | None:
    """Names under which a service on loopback may be asked for; ``None``: any."""
    if not is_loopback(host) or ":" in host:
        return None
    return sorted({host, "localhost", "127.0.0.1"})


def listen(host: str, port: int) -> socket.socket:
    """A socket on an address; port 0 takes a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        got = f"{host} port {port} ({error.strerror or error})"
        raise InputError("an address to listen on", got, "Choose another --port.") from None


def run(app: Any, place: socket.socket, limits: Limits, started: Callable[[str], None]) -> None:
    """Answer requests until SIGINT or SIGTERM; those under way are answered first.

    ``started`` is called with the address when requests are answered.
    """
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """As uvicorn does, but the signal that ended it is not raised once more."""
            signals = (signal.SIGINT, signal.SIGTERM)
            before = [signal.signal(number, self.handle_exit) for number in signals]
            try:
                yield
            finally:
                for number, handler in zip(signals, before, strict=True):
                    signal.signal(number, handler)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                host, port = place.getsockname()[:2]
                started(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        backlog=limits.connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )
    Server(config).run(sockets=[place])
