"""RDKit in a process of its own, which ends itself where the work takes too long."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from torch_geometric.utils.smiles import e_map, x_map

__all__ = ["Found", "RDKitProcess"]


class Found(NamedTuple):
    """What was made of a text, or why there is nothing."""

    value: Any
    reason: str | None = None


class RDKitProcess:
    """Reads and draws SMILES for a service.

    A text of 300 characters can keep RDKit busy for hours, and nothing in the same process could
    stop it: it holds Python's lock. So another process works, with a clock that ends it; the next
    texts get a new one.

    Args:
        seconds: Time for all texts of one call.

    Example:
        >>> rdkit = RDKitProcess(seconds=20)
        >>> one, two = rdkit.read(["CO", "nonsense"])
        >>> rdkit.close()
        >>> one.value["edge_index"], two.reason
        ([[0, 1], [1, 0]], "'nonsense' is no valid SMILES")
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def read(self, texts: Sequence[str]) -> list[Found]:
        """Per text ``x``, ``edge_index`` and ``edge_attr`` as PyG's ``from_smiles`` makes them."""
        return self._ask("read", texts)

    def draw(self, text: str) -> Found:
        """A picture, as the text of an SVG file."""
        return self._ask("draw", [text])[0]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _ask(self, what: str, texts: Sequence[str]) -> list[Found]:
        found = list[Found]()
        with self._lock:
            with suppress(BrokenPipeError):
                process = self._running()
                _send(process, [what, self.seconds, list(texts)])
                assert process.stdout is not None
                while len(found) < len(texts) and (line := process.stdout.readline()):
                    found.append(Found(*json.loads(line)))
            if len(found) < len(texts):
                self._end()
        if len(found) < len(texts):
            late = f"not read: RDKit did not end with row {len(found)} of this request"
            found.append(Found(None, f"RDKit did not end within {self.seconds:g} seconds"))
            found += [Found(None, late)] * (len(texts) - len(found))
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gduq.deploy.rdkit_work"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the service, which then ends this one
            )
            _send(self._process, {"x": x_map, "edge_attr": e_map})
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _send(process: subprocess.Popen[bytes], content: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(content).encode() + b"\n")
    process.stdin.flush()
