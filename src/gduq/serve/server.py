"""The service on an address, with its bounds, until it is told to stop."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from gduq.errors import InputError, not_installed
from gduq.serve.settings import Limits

__all__ = ["check_installed", "listen", "own_hosts", "run"]


def check_installed(*names: str) -> None:
    """Raise where one of these libraries of the service is missing."""
    for name in names:
        if find_spec(name) is None:
            raise not_installed(f"{name} to serve", "fastapi uvicorn")


def own_hosts(address: str, host: str = "localhost") -> list[str] | None:
    """Names under which a service on a loopback address may be asked for; ``None``: any.

    Example:
        >>> own_hosts("::1"), own_hosts("0.0.0.0")
        (['127.0.0.1', '[::1]', 'localhost'], None)
    """
    if not ipaddress.ip_address(address).is_loopback:
        return None
    names = {address, host.lower(), "localhost", "127.0.0.1"}
    return sorted(f"[{name}]" if ":" in name else name for name in names)


def listen(host: str, port: int) -> socket.socket:
    """A socket on an address; port 0 takes a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        got = f"{host} port {port} ({error.strerror or error})"
        raise InputError("an address to listen on", got, "Choose another --port.") from None


def run(app: Any, place: socket.socket, limits: Limits, started: Callable[[str], None]) -> None:
    """Answer requests until SIGINT or SIGTERM; those under way have some seconds to be answered.

    ``started`` is called with the address when requests are answered.
    """
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: object) -> None:
            """As uvicorn does, but the signal that ended it is not raised once more."""
            self.force_exit, self.should_exit = self.should_exit and sig == signal.SIGINT, True

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
        http="h11",  # which bounds the headers of a request
        ws="none",
        backlog=limits.connections,
        limit_concurrency=limits.connections,
        timeout_keep_alive=max(1, int(limits.idle)),
        timeout_graceful_shutdown=int(limits.stopping),
    )
    Server(config).run(sockets=[place])
