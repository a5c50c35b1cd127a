"""What a request may ask for, and what is said to one that asks for more."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gduq.errors import InputError

__all__ = ["Limits", "Refused"]


class Refused(Exception):
    """A request that is not answered: an HTTP status and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Limits:
    """Bounds of the service, so that no request can take the machine from the others.

    Attributes:
        body: Bytes of a request.
        graphs: Graphs of a request.
        smiles: Characters of a SMILES string.
        nodes: Nodes of a graph, and of all graphs that are answered in one pass.
        edges: Edges of the same.
        batch: Graphs in one pass.
        queue: Requests that may wait; more are told to come back.
        seconds: Time for a request to arrive, and time for it to be answered.
        reading: Seconds for RDKit to read the SMILES of a request, or to draw one.
        connections: Open connections.

    Example:
        >>> Limits(queue=0)
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected queue above 0, got 0.
    """

    body: int = 8 * 2**20
    graphs: int = 1000
    smiles: int = 2000
    nodes: int = 20_000
    edges: int = 200_000
    batch: int = 256
    queue: int = 256
    seconds: float = 30.0
    reading: float = 5.0
    connections: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InputError(f"{field.name} above 0", value)
