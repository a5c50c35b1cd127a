"""The service on an address, until it is told to stop."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Any

from gduq.deploy.limits import Limits
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
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, number)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            "an address to listen on", f"{host} port {port} ({reason})", "Choose another --port."
        ) from None
    return found


def run(app: Any, place: socket.socket, limits: Limits, started: Callable[[str], None]) -> None:
    """Answer requests until interrupted; those under way are answered first.

    Args:
        app: What `gduq.deploy.make_app` made.
        place: What `listen` gave.
        limits: Bounds of the service.
        started: Called with the address when requests are answered.
    """
    import uvicorn

    class Server(uvicorn.Server):
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
