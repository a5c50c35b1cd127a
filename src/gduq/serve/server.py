"""How a service is set up: `Settings` of decisions, `Limits`, the address; all without torch."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gduq.errors import InputError, not_installed

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["Limits", "Settings", "listen", "own_hosts", "read_keys", "run"]


@dataclass(frozen=True)
class Settings:
    """How predictions become decisions: shares from 0 to 1. Without ``per_class``, sets hold the
    truth that often over all rows and may miss a rare class altogether."""

    alpha: float = 0.1  # accepted misses of conformal sets and intervals
    coverage: float = 0.9  # of rows like the reference to answer, all reasons to abstain together
    accuracy: float | None = None  # that answers should have; then coverage is not used
    per_class: bool = False  # sets hold every class, and yes and no of every label, that often
    max_novelty: float = 0.99  # a row above it is unlike the training data; 1 for no limit
    max_epistemic: float = 0.99  # quantile of the reference above which hypotheses disagree

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if share is not None and not 0 <= share <= 1:
                raise InputError(f"{name} from 0 to 1", share)


@dataclass(frozen=True)
class Limits:
    """Bounds of the service, so that no request can take the machine from the others."""

    body: int = 8 * 2**20  # bytes of a request
    graphs: int = 1000  # of a request
    smiles: int = 2000  # characters of a SMILES string
    nodes: int = 20_000  # of a graph, and of all graphs that are answered in one pass
    edges: int = 200_000  # of the same
    batch: int = 256  # graphs in one pass
    queue: int = 256  # requests at a time; more are told to come back
    seconds: float = 30.0  # for a request to arrive and to be answered
    reading: float = 5.0  # of computing for RDKit to read the SMILES of a request, or to draw one
    connections: int = 512  # that are open
    idle: float = 10.0  # seconds for the next request of a connection to begin
    stopping: float = 5.0  # seconds for requests under way to be answered


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
    if not all(map(find_spec, ("fastapi", "uvicorn", "prometheus_client"))):
        raise not_installed("packages to serve with", "fastapi uvicorn prometheus_client")
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
    from prometheus_client import disable_created_metrics

    disable_created_metrics()  # type: ignore[no-untyped-call]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=log_level.upper())
    # the log is ours; h11 bounds the headers of a request
    config = uvicorn.Config(
        app, log_config=None, log_level="warning", access_log=False, server_header=False,
        proxy_headers=False, http="h11", ws="none", backlog=limits.connections,
        limit_concurrency=limits.connections, timeout_keep_alive=max(1, int(limits.idle)),
        timeout_graceful_shutdown=int(limits.stopping),
    )  # fmt: skip
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal that ended it once more
        uvicorn.Server(config).run(sockets=[place])
