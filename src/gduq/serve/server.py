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

__all__ = ["check_installed", "is_loopback", "listen", "own_hosts", "run"]


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
        found: Any = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return bool((getattr(found, "ipv4_mapped", None) or found).is_loopback)


def own_hosts(address: str, host: str = "localhost") -> list[str] | None:
    """Names under which a service on loopback may be asked for; ``None``: any.

    Example:
        >>> own_hosts("::1"), own_hosts("0.0.0.0")
        (['127.0.0.1', '[::1]', 'localhost'], None)
    """
    if not is_loopback(address):
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
        http=_bounded_protocol(limits),
        ws="none",
        backlog=limits.connections,
        limit_concurrency=limits.connections,
        timeout_keep_alive=max(1, int(limits.idle)),
        timeout_graceful_shutdown=int(limits.stopping),
    )
    Server(config).run(sockets=[place])


def _bounded_protocol(limits: Limits) -> type[Any]:
    """uvicorn's HTTP with bounds of a connection that it has not: size of headers, and time."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Bounded(base):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.held, self.since = 0, self.loop.time()
            self.timer = self.loop.call_later(limits.idle, self.check_time)

        def connection_lost(self, error: Exception | None) -> None:
            self.timer.cancel()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            unread = before is not None and before.more_body
            body = unread and not before.response_complete
            super().data_received(data)
            if self.cycle is not before:  # its headers are complete
                self.held, self.since = 0, self.loop.time()
            elif not body:
                self.held += len(data)  # of headers, or of the rest of a body that was refused
                if self.held > (limits.body if unread else limits.headers):
                    self.transport.abort()

        def on_response_complete(self) -> None:
            self.since = self.loop.time()
            super().on_response_complete()

        def check_time(self) -> None:
            """End the connection where the time for what it does is over."""
            idle = self.cycle is None or self.cycle.response_complete
            left = self.since + limits.idle + (0.0 if idle else limits.seconds) - self.loop.time()
            if left <= 0:
                self.transport.abort()  # what is not read by the client would wait for ever
            else:
                self.timer = self.loop.call_later(min(left, limits.idle), self.check_time)

    return Bounded
