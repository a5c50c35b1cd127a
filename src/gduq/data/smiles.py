"""Graphs of SMILES texts, made by RDKit in a process of its own.

A text of 300 characters can keep RDKit busy for hours, and nothing in the same process could stop
it: it holds Python's lock. So another process works, with a clock that ends it.

`RDKitProcess` asks that process; `gduq.data.smiles_work` is what runs there.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from gduq.data.smiles_work import HEAD, OTHER

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["Ended", "RDKitProcess", "molecules", "readable"]

_START = "import sys; sys.path[:] = {}; from gduq.data.smiles_work import work; work({})"


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
    return _shared(os.getpid()).readable(texts)


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
        seconds: Computing time for the texts of a group, or for a picture.

    Example:
        >>> rdkit = RDKitProcess(seconds=20)
        >>> [[methanol, other]] = rdkit.read([["CO", "nonsense"]])
        >>> rdkit.close()
        >>> methanol.edge_index.tolist(), other
        ([[0, 1], [1, 0]], "'nonsense' is no valid SMILES")
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: IO[bytes] | None = None  # a file, since a pipe would wake us for every text
        self._knows_lists = self._closed = False
        self._lock = threading.Lock()

    def read(self, groups: Iterable[Sequence[str]]) -> list[list[Data | str]]:
        """Per text its graph, or why there is none.

        Where a group takes too long, the text it ended with and those behind it in the group have
        none; other groups are not touched.
        """
        return self._ask("read", groups)

    def readable(self, texts: Iterable[str]) -> list[bool]:
        """Per text whether it is a SMILES."""
        found = self._ask("parse", ([text] for text in texts))
        return [not isinstance(one, str) for (one,) in found]

    def draw(self, text: str) -> bytes:
        """A picture, as an SVG file; a ``ValueError`` says why there is none."""
        [[found]] = self._ask("draw", [[text]])
        if isinstance(found, str):
            raise ValueError(found)
        picture: bytes = found
        return picture

    def close(self) -> None:
        """End the process, at work or not; nothing is read any more."""
        self._closed, process = True, self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _ask(self, what: str, groups: Iterable[Sequence[str]]) -> list[list[Any]]:
        left, found = deque(groups), list[list[Any]]()
        with self._lock, self._ended_by_errors():
            while left:
                answers, ended = self._tried(what, left)
                while left:
                    texts = left.popleft()
                    part = list(islice(answers, len(texts)))
                    found.append(part)
                    if len(part) < len(texts):  # a new process goes on with the next group
                        late = f"not read: RDKit did not end with row {len(part)} before it"
                        part.append(ended)
                        part += [late] * (len(texts) - len(part))
                        break
        return found

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Who is interrupted, by Ctrl-C say, must not get the answers to the last question next."""
        try:
            yield
        except BaseException:
            self._end()
            raise

    def _tried(self, what: str, groups: Iterable[Sequence[str]]) -> tuple[Iterator[Any], str]:
        """Answers for all texts, or for those before the process ended; and why it did."""
        if self._closed:
            return iter(()), Ended("RDKit was stopped")
        process, answers = self._running()
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            if what == "read" and not self._knows_lists:
                from torch_geometric.utils.smiles import e_map, x_map

                _send(process, ["lists", x_map, e_map])
                self._knows_lists = True
            _send(process, [what, self.seconds, *groups])
        done = process.stdout.read(1)
        answers.seek(0)
        content = answers.read()
        answers.seek(0)
        answers.truncate()
        made = _received(content, [text for group in groups for text in group])
        if done:
            return made, ""
        late = process.wait() == -signal.SIGPROF
        self._end()
        ended = f"did not end within {self.seconds:g} seconds" if late else "failed"
        return made, Ended(f"RDKit {ended}")

    def _running(self) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None or self._answers is None:
            self._answers = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            number = self._answers.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(repr(sys.path), number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,  # Ctrl-C is for the caller, who then ends this one
            )
            self._knows_lists = False
        return self._process, self._answers

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._answers is not None:
            self._answers.close()
            self._answers = None


def _send(process: subprocess.Popen[bytes], content: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(content).encode() + b"\n")
    process.stdin.flush()


def _received(content: bytes, texts: Iterable[str]) -> Iterator[Data | bytes | str]:
    """Graphs, pictures and reasons, as `work` writes them."""
    place = 0
    for text in texts:
        if place == len(content):
            return
        atoms, size = HEAD.unpack_from(content, place)
        place += HEAD.size
        if atoms > 0:
            yield _graph(content, place, atoms, size, text)
            place += 9 * atoms + (8 + 3) * size
        else:
            made = content[place : place + size]
            place += size
            yield made if atoms == OTHER else made.decode()


def _graph(content: bytes, place: int, atoms: int, bonds: int, text: str) -> Data:
    import numpy as np
    import torch
    from torch_geometric.data import Data

    x = np.frombuffer(content, "u1", 9 * atoms, place).astype(np.float32)
    ends = np.frombuffer(content, "<i4", 2 * bonds, place + 9 * atoms).astype(np.int64)
    edge_attr = np.frombuffer(content, "u1", 3 * bonds, place + 9 * atoms + 8 * bonds)
    return Data(
        torch.from_numpy(x.reshape(-1, 9)),
        torch.from_numpy(ends.reshape(2, -1)),
        torch.from_numpy(edge_attr.astype(np.float32).reshape(-1, 3)),
        smiles=text,
    )
