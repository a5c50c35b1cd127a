"""Graphs, scaffolds and pictures of SMILES texts, made by RDKit in a process of its own.

A text of 300 characters can keep RDKit busy for hours, and nothing in the same process could stop
it: it holds Python's lock. So another process works (`serve`), with a clock. That process imports
nothing but RDKit, so that a new one works in a moment.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gduq.errors import InputError, not_installed, one_line

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["Ended", "RDKitProcess", "molecules", "readable", "scaffolds", "serve"]

_START = "import sys; sys.path[:] = {}; from gduq.data.smiles import serve; serve()"
_MOST_DRAWN = 200  # atoms: drawing takes more than linear time


def molecules(texts: Sequence[str]) -> list[Data | str]:
    """Per SMILES text its graph as PyG's ``from_smiles`` makes it, or why there is none.

    Features are floats, so that any model takes them.

    Example:
        >>> ethanol, other = molecules(["CCO", "nonsense"])
        >>> ethanol.num_nodes, other
        (3, "'nonsense' is no valid SMILES")
    """
    return [_shared(os.getpid()).read([text])[0] for text in texts]


def readable(texts: Sequence[str]) -> list[bool]:
    """Per text whether RDKit can read it; torch is not needed to tell.

    Example:
        >>> readable(["CCO", "nonsense"])
        [True, False]
    """
    return [_shared(os.getpid()).ask("parse", [text]) == [True] for text in texts]


def scaffolds(texts: Sequence[str]) -> list[str]:
    """Per SMILES text its Bemis-Murcko scaffold; a text without one raises `InputError`.

    Example:
        >>> scaffolds(["CCc1ccccc1", "CCO"])
        ['c1ccccc1', '']
    """
    found = [_shared(os.getpid()).ask("scaffold", [text])[0] for text in texts]
    if bad := [f"row {row}: {one}" for row, one in enumerate(found) if isinstance(one, str)]:
        raise InputError("SMILES that RDKit can read", bad[0], "Drop the row.")
    return [scaffold for (scaffold,) in found]


@lru_cache
def _shared(process: int) -> RDKitProcess:
    """One for all tables; a fork of this process gets another one."""
    found = RDKitProcess()
    atexit.register(found.close)
    return found


class Ended(str):
    """Why a text was not read: its process ended, and with it the time of those behind it."""

    __slots__ = ()


class RDKitProcess:
    """Reads and draws SMILES, within so many seconds per call."""

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def read(self, texts: Sequence[str]) -> list[Data | str]:
        """Per text its graph, or why there is none."""
        found = zip(texts, self.ask("read", texts), strict=True)
        return [one if isinstance(one, str) else _graph(text, *one) for text, one in found]

    def draw(self, text: str) -> bytes:
        """A picture, as an SVG file; a ``ValueError`` says why there is none."""
        [found] = self.ask("draw", [text])
        if isinstance(found, str):
            raise ValueError(found)
        return str(found[0]).encode()

    def close(self) -> None:
        """End the process, at work or not."""
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def ask(self, task: str, texts: Sequence[str]) -> list[Any]:
        """Per text what the process answers; a plain text is the reason why there is nothing:
        `Ended` for the text the time ended with, another one for those behind it."""
        found, late = list[Any](), threading.Event()
        with self._lock:
            process = self._running()

            def stop() -> None:
                late.set()
                process.kill()

            clock = threading.Timer(self.seconds, stop)
            clock.start()
            try:
                with suppress(OSError):  # it has ended: so it has no answers
                    process.stdin.write(f"{json.dumps([task, list(texts)])}\n".encode())  # type: ignore[union-attr]
                    process.stdin.flush()  # type: ignore[union-attr]
                line = b"\n"
                while len(found) < len(texts) and line.endswith(b"\n"):
                    line = process.stdout.readline()  # type: ignore[union-attr]
                    found += [json.loads(line)] if line.endswith(b"\n") else []
            finally:
                clock.cancel()
                if late.is_set() or len(found) < len(texts):  # after Ctrl-C, too
                    self._end()
        if (count := len(found)) < len(texts):
            reason = f"did not end within {self.seconds:g} seconds" if late.is_set() else "failed"
            not_read = f"not read: RDKit did not end with row {count} before it"
            found += [Ended(f"RDKit {reason}"), *[not_read] * (len(texts) - count - 1)]
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(repr(sys.path))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the caller, who then ends this one
            )
            self._process.stdout.readline()  # type: ignore[union-attr]  # it has imported RDKit
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _graph(text: str, atoms: Sequence[Any], bonds: Sequence[Any]) -> Data | str:
    """The graph of what `_read` found, with PyG's numbers for RDKit's values."""
    import torch
    from torch_geometric.data import Data

    try:
        x = torch.tensor([_codes("x_map", *atom) for atom in atoms], dtype=torch.float)
        coded = [(i, j, *_codes("e_map", *bond)) for i, j, *bond in bonds]
    except ValueError as error:
        return str(error)
    rows = sorted([*coded, *((j, i, *codes) for i, j, *codes in coded)])
    edges = torch.tensor(rows, dtype=torch.long).view(-1, 5)
    return Data(x, edges[:, :2].t().contiguous(), edges[:, 2:].float(), smiles=text)


@lru_cache(maxsize=10_000)
def _codes(which: str, *values: Any) -> tuple[int, ...]:
    """The numbers that PyG gives to the values of an atom or a bond."""
    from torch_geometric.utils import smiles

    maps: dict[str, list[Any]] = getattr(smiles, which)
    for (name, known), value in zip(maps.items(), values, strict=True):
        if value not in known:
            raise ValueError(f"{value} is no {name} that PyG knows")
    return tuple(known.index(one) for known, one in zip(maps.values(), values, strict=True))


# -- in the process of its own ---------------------------------------------------------------------


def serve() -> None:
    """Answer text by text, until nobody asks any more; who asks has the clock."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    with suppress(ImportError):  # every answer says so
        from rdkit import RDLogger
        from rdkit.Chem import Draw  # noqa: F401  # before the clock runs

        RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    print(file=answers, flush=True)  # ready
    tasks: dict[str, Any] = {"read": _read, "parse": bool, "scaffold": _scaffold, "draw": _draw}
    for line in sys.stdin:
        task, texts = json.loads(line)
        for text in texts:
            try:
                found: Any = tasks[task](_molecule(text))
            except Exception as error:  # of RDKit's: the next text is another one
                found = one_line(error)
            print(json.dumps(found), file=answers, flush=True)


def _molecule(text: str) -> Any:
    try:
        from rdkit import Chem
    except ImportError:
        raise not_installed("RDKit to read SMILES", "rdkit") from None
    if not text:
        raise ValueError("the SMILES field is empty")
    molecule = Chem.MolFromSmiles(text)
    if molecule is None or not molecule.GetNumAtoms():
        shown = repr(text).replace("\\\\", "\\")  # a bond, not an escape
        raise ValueError(f"{shown} is no valid SMILES")
    return molecule


def _read(molecule: Any) -> tuple[list[Any], list[Any]]:
    """What PyG's ``from_smiles`` asks of the atoms, and of the bonds behind their two ends."""
    atoms = [
        (a.GetAtomicNum(), str(a.GetChiralTag()), a.GetTotalDegree(), a.GetFormalCharge())
        + (a.GetTotalNumHs(), a.GetNumRadicalElectrons(), str(a.GetHybridization()))
        + (a.GetIsAromatic(), a.IsInRing())
        for a in molecule.GetAtoms()
    ]
    bonds = [
        (b.GetBeginAtomIdx(), b.GetEndAtomIdx(), str(b.GetBondType()), str(b.GetStereo()))
        + (b.GetIsConjugated(),)
        for b in molecule.GetBonds()
    ]
    return atoms, bonds


def _scaffold(molecule: Any) -> tuple[str]:
    """The Bemis-Murcko scaffold; in a list, since a bare text is a reason why there is none."""
    from rdkit.Chem.Scaffolds import MurckoScaffold

    scaffold: Any = MurckoScaffold.MurckoScaffoldSmiles
    return (str(scaffold(mol=molecule)),)


def _draw(molecule: Any) -> tuple[str]:
    """A molecule as an SVG picture."""
    from rdkit.Chem.Draw import rdMolDraw2D

    if molecule.GetNumAtoms() > _MOST_DRAWN:
        raise InputError(f"at most {_MOST_DRAWN} atoms to draw", molecule.GetNumAtoms())
    canvas = rdMolDraw2D.MolDraw2DSVG(240, 160)
    options: Any = canvas.drawOptions()
    options.clearBackground = False
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    return (str(canvas.GetDrawingText()),)
