"""Graphs, scaffolds and pictures of SMILES texts, made by RDKit in a process of its own.

A text of 300 characters can keep RDKit busy for hours, and nothing in the same process could stop
it: it holds Python's lock. So another process works (`gduq.data.smiles_work`), with a clock.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gduq.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["Ended", "RDKitProcess", "molecules", "readable", "scaffolds"]

_START = "import sys; sys.path[:] = {}; from gduq.data.smiles_work import serve; serve()"


def molecules(texts: Sequence[str]) -> list[Data | str]:
    """Per SMILES text its graph as PyG's ``from_smiles`` makes it, or why there is none.

    Features are floats, so that any model takes them.

    Example:
        >>> ethanol, other = molecules(["CCO", "nonsense"])
        >>> ethanol.num_nodes, other
        (3, "'nonsense' is no valid SMILES")
    """
    return [found for (found,) in _shared(os.getpid()).read([text] for text in texts)]


def readable(texts: Sequence[str]) -> list[bool]:
    """Per text whether RDKit can read it; torch is not needed to tell.

    Example:
        >>> readable(["CCO", "nonsense"])
        [True, False]
    """
    found = _shared(os.getpid()).ask("parse", ([text] for text in texts))
    return [one is True for (one,) in found]


def scaffolds(texts: Sequence[str]) -> list[str]:
    """Per SMILES text its Bemis-Murcko scaffold; a text without one raises `InputError`.

    Example:
        >>> scaffolds(["CCc1ccccc1", "CCO"])
        ['c1ccccc1', '']
    """
    found = [one for (one,) in _shared(os.getpid()).ask("scaffold", ([t] for t in texts))]
    for row, one in enumerate(found):
        if isinstance(one, str):
            raise InputError("SMILES that RDKit can read", f"row {row}: {one}", "Drop the row.")
    return [scaffold for (scaffold,) in found]


@lru_cache
def _shared(process: int) -> RDKitProcess:
    """One for all tables; a fork of this process gets another one."""
    found = RDKitProcess()
    atexit.register(found.close)
    return found


class Ended(str):
    """Why a text was not read: its process ended, and with it the time of its group."""

    __slots__ = ()


class RDKitProcess:
    """Reads and draws SMILES.

    Args:
        seconds: For the texts of a group, or for a picture.

    Example:
        >>> rdkit = RDKitProcess(seconds=20)
        >>> [[methanol, other]] = rdkit.read([["CO", "nonsense"]])
        >>> rdkit.close()
        >>> methanol.edge_index.tolist(), other
        ([[0, 1], [1, 0]], "'nonsense' is no valid SMILES")
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds, self._closed, self._late = seconds, False, False
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def read(self, groups: Iterable[Sequence[str]]) -> list[list[Data | str]]:
        """Per text its graph, or why there is none.

        Where a group takes too long, the text it ended with and those behind it in the group have
        none; other groups are not touched.
        """
        given = [list(group) for group in groups]
        return [
            [
                one if isinstance(one, str) else _graph(text, *one)
                for text, one in zip(texts, made, strict=True)
            ]
            for texts, made in zip(given, self.ask("read", given), strict=True)
        ]

    def draw(self, text: str) -> bytes:
        """A picture, as an SVG file; a ``ValueError`` says why there is none."""
        [[found]] = self.ask("draw", [[text]])
        if isinstance(found, str):
            raise ValueError(found)
        return str(found[0]).encode()

    def close(self) -> None:
        """End the process, at work or not; nothing is read any more."""
        self._closed, process = True, self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def ask(self, what: str, groups: Iterable[Sequence[str]]) -> list[list[Any]]:
        """Per text what the process answers; a plain text is the reason why there is nothing."""
        left, found = deque(map(list, groups)), list[list[Any]]()
        with self._lock:
            try:
                while left:
                    self._send(what, list(left))
                    while left:
                        size = len(left.popleft())
                        part = self._received(size)
                        found.append(part)
                        if len(part) < size or self._late:  # a new process goes on behind it
                            why = self._why()
                            late = f"not read: RDKit did not end with row {len(part)} before it"
                            part += [why, *[late] * (size - len(part) - 1)][: size - len(part)]
                            break
            except BaseException:  # Ctrl-C, say: nobody gets the answers to this question next
                self._end()
                raise
        return found

    def _send(self, what: str, groups: list[list[str]]) -> None:
        """Ask a running process, which reads all before it answers."""
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._closed:
            return
        maps = {}
        if what == "read":
            from torch_geometric.utils.smiles import e_map, x_map

            maps = {**x_map, **e_map}
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(repr(sys.path))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the caller, who then ends this one
            )
            assert self._process.stdout is not None
            self._process.stdout.readline()  # it has imported RDKit: from now on the clock runs
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended: so it has no answers
            message = json.dumps([what, groups, maps])
            self._process.stdin.write(f"{message}\n".encode())
            self._process.stdin.flush()

    def _received(self, count: int) -> list[Any]:
        """So many answers, or those before the process ended or its time was over."""
        found, self._late = list[Any](), False
        if (process := self._process) is None:
            return found

        def stop() -> None:
            self._late = True
            process.kill()

        clock = threading.Timer(self.seconds, stop)
        clock.start()
        assert process.stdout is not None
        while len(found) < count and (line := process.stdout.readline()).endswith(b"\n"):
            found.append(json.loads(line))
        clock.cancel()
        return found

    def _why(self) -> Ended:
        """Why a process that ended did so."""
        self._end()
        if self._closed:
            return Ended("RDKit was stopped")
        reason = f"did not end within {self.seconds:g} seconds" if self._late else "failed"
        return Ended(f"RDKit {reason}")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _graph(text: str, atoms: str, ends: str, bonds: str) -> Data:
    import numpy as np
    import torch
    from torch_geometric.data import Data

    def floats(content: str, columns: int) -> torch.Tensor:
        found = np.frombuffer(bytes.fromhex(content), np.uint8).astype(np.float32)
        return torch.from_numpy(found.reshape(-1, columns))

    edge_index = np.frombuffer(bytes.fromhex(ends), np.intc).astype(np.int64).reshape(2, -1)
    return Data(floats(atoms, 9), torch.from_numpy(edge_index), floats(bonds, 3), smiles=text)
