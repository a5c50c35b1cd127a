"""The service on an address, until it is told to stop."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gduq.deploy.http_limits import Limits
from gduq.errors import InputError

__all__ = ["is_loopback", "listen", "own_hosts", "run"]


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
        reason = error.strerror or error
        raise InputError(
            "an address to listen on", f"{host} port {port} ({reason})", "Choose another --port."
        ) from None


def run(app: Any, place: socket.socket, limits: Limits, started: Callable[[str], None]) -> None:
    """Answer requests until SIGINT or SIGTERM; those under way are answered first.

    Args:
        app: What `gduq.deploy.make_app` made.
        place: What `listen` gave.
        limits: Bounds of the service.
        started: Called with the address when requests are answered.
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
                started(_address(place))

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.connections,
        backlog=limits.connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )
    Server(config).run(sockets=[place])


def _address(place: socket.socket) -> str:
    host, port = place.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
