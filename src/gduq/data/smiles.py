"""Graphs, scaffolds and pictures of SMILES texts, made by RDKit in a process of its own, with a
clock: 300 characters can keep RDKit busy for hours, and it holds Python's lock."""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from gduq.errors import InputError, not_installed, one_line

if TYPE_CHECKING:
    from rdkit.Chem import Mol
    from torch_geometric.data import Data

__all__ = ["RDKitProcess", "molecules", "scaffolds", "serve"]

_START = "import sys; sys.path[:] = {}; from gduq.data.smiles import serve; serve({})"
_OTHER = re.compile("InChI=|[A-Z]{14}-[A-Z]{10}-[A-Z]$")  # not SMILES, but often taken for them
_MOST_DRAWN = 200  # atoms: drawing takes more than linear time


def molecules(texts: Sequence[str]) -> list[Data | str]:
    """Per SMILES text its graph as of PyG's ``from_smiles``, in floats, or why there is none.

    Example:
        >>> ethanol, other = molecules(["CCO", "nonsense"])
        >>> ethanol.num_nodes, other
        (3, "'nonsense' is no valid SMILES")
    """
    return [_shared(os.getpid()).read([text])[0] for text in texts]


def scaffolds(texts: Sequence[str]) -> list[str]:
    """Per SMILES text its Bemis-Murcko scaffold; a text without one raises `InputError`.

    Example:
        >>> scaffolds(["CCc1ccccc1", "CCO"])
        ['c1ccccc1', '']
    """
    found = [_shared(os.getpid()).ask("scaffold", [text])[0] for text in texts]
    if bad := [f"row {row}: {one}" for row, one in enumerate(found) if isinstance(one, Failure)]:
        raise InputError("SMILES that RDKit can read", bad[0])
    return found


def failures(texts: Sequence[str]) -> list[str]:
    """Why some of the texts are no SMILES, without making graphs."""
    return [one for one in _shared(os.getpid()).ask("read", texts) if isinstance(one, Failure)]


@lru_cache
def _shared(process: int) -> RDKitProcess:
    """One for all tables; a fork of this process gets another one."""
    found = RDKitProcess()
    atexit.register(found.close)
    return found


class Failure(str):
    """Why there is nothing made of a text."""


class RDKitProcess:
    """Reads and draws SMILES, within so many seconds per call."""

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def read(self, texts: Sequence[str]) -> list[Data | str]:
        """Per text its graph, or why there is none."""
        found = zip(texts, self.ask("read", texts), strict=True)
        return [one if isinstance(one, str) else _graph(text, one) for text, one in found]

    def draw(self, text: str) -> bytes:
        """A picture, as an SVG file; a ``ValueError`` says why there is none."""
        [found] = self.ask("draw", [text])
        if isinstance(found, Failure):
            raise ValueError(found)
        return str(found).encode()

    def close(self) -> None:
        """End the process, at work or not."""
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def ask(self, task: str, texts: Sequence[str]) -> list[Any]:
        """Per text what the process makes of it, or a `Failure`."""
        if find_spec("rdkit") is None:
            return [Failure(not_installed("RDKit to read SMILES", "rdkit"))] * len(texts)
        found, reason = list[Any](), f"did not end within {self.seconds:g} seconds"
        with self._lock:
            try:
                pipe = self._running()
                end = time.monotonic() + self.seconds
                pipe.send((task, list(texts)))
                while len(found) < len(texts) and pipe.poll(max(end - time.monotonic(), 0)):
                    found.append(pipe.recv())
            except (EOFError, OSError):  # it has ended: so it has no answers
                reason = "failed"
            finally:  # after Ctrl-C, too
                if len(found) < len(texts):
                    self._end()
        if behind := len(texts) - len(found):
            late = Failure(f"not read: RDKit did not end with row {len(found)} before it")
            found += [Failure(f"RDKit {reason}"), *[late] * (behind - 1)]
        return found

    def _running(self) -> Connection:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._pipe, other = Pipe()
            quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            with other:
                command = [sys.executable, "-c", _START.format(sys.path, other.fileno())]
                # Ctrl-C is for the caller, who then ends this one
                self._process = subprocess.Popen(  # type: ignore[call-overload]
                    command, pass_fds=[other.fileno()], start_new_session=True, **quiet
                )
            self._pipe.recv()  # it has imported RDKit
        return self._pipe

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._pipe.close()
            self._process = None


def _graph(text: str, molecule: bytes) -> Data | str:
    from rdkit.Chem import Mol
    from torch_geometric.utils.smiles import from_rdmol

    try:
        graph = from_rdmol(Mol(molecule))  # type: ignore[call-overload]
    except ValueError as error:  # an atom that is in none of its lists
        return f"PyG has no number for an atom or bond of {text!r}: {error}"
    graph.x, graph.edge_attr, graph.smiles = graph.x.float(), graph.edge_attr.float(), text
    return graph


def serve(pipe: int) -> None:
    """Answer text by text, until nobody asks any more; who asks has the clock."""
    from rdkit import RDLogger
    from rdkit.Chem import Draw  # noqa: F401  # before the clock runs
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles as scaffold

    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    answers = Connection(pipe)
    answers.send("ready")
    tasks: dict[str, Callable[[Mol], object]] = {
        "read": lambda molecule: molecule.ToBinary(),
        "scaffold": lambda molecule: scaffold(mol=molecule),  # type: ignore[no-untyped-call]
        "draw": _draw,
    }
    with suppress(EOFError):
        while True:
            task, texts = answers.recv()
            for text in texts:
                try:
                    answers.send(tasks[task](_molecule(text)))
                except Exception as error:  # of RDKit's: the next text is another one
                    answers.send(Failure(one_line(error)))


def _molecule(text: str) -> Mol:
    from rdkit import Chem

    if not text:
        raise ValueError("the SMILES field is empty")
    molecule = Chem.MolFromSmiles(text)
    if molecule is None or not molecule.GetNumAtoms():
        shown = repr(text).replace("\\\\", "\\")  # a bond, not an escape
        other = "an InChI or InChIKey, " if _OTHER.match(text) else ""
        raise ValueError(f"{shown} is {other}no valid SMILES")
    return molecule


def _draw(molecule: Mol) -> str:
    from rdkit.Chem.Draw import rdMolDraw2D

    if molecule.GetNumAtoms() > _MOST_DRAWN:
        raise InputError(f"at most {_MOST_DRAWN} atoms to draw", molecule.GetNumAtoms())
    canvas = rdMolDraw2D.MolDraw2DSVG(240, 160)
    canvas.drawOptions().clearBackground = False  # type: ignore[assignment]
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    return canvas.GetDrawingText()
