"""The service on an address, with its bounds, until it is told to stop."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gduq.errors import InputError, not_installed
from gduq.serve.settings import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["listen", "own_hosts", "read_keys", "run"]


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
    if not (find_spec("fastapi") and find_spec("uvicorn")):
        raise not_installed("fastapi and uvicorn to serve", "fastapi uvicorn")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        got = f"{host} port {port} ({error.strerror or error})"
        raise InputError("an address to listen on", got, "Choose another --port.") from None


def read_keys(path: Path) -> list[str]:
    """The keys in a file, one per line."""
    if not (keys := path.read_text(encoding="utf-8").split()):
        raise InputError("a file with a key per line", f"{path}, which has none")
    return keys


def run(app: FastAPI, place: socket.socket, limits: Limits, log_level: str = "info") -> None:
    """Answer requests until SIGINT or SIGTERM; those under way have some seconds to be answered."""
    import uvicorn

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=log_level.upper())
    config = uvicorn.Config(
        app,
        log_config=None,  # ours
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal that ended it once more
        uvicorn.Server(config).run(sockets=[place])
