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
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from gduq.errors import InputError, not_installed, one_line

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["Ended", "RDKitProcess", "molecules", "readable", "scaffolds", "serve"]

_START = "import sys; sys.path[:] = {}; from gduq.data.smiles import serve; serve()"
_MOST_DRAWN = 200  # atoms: drawing takes more than linear time
_ATOM = {
    "atomic_num": "GetAtomicNum",
    "chirality": "GetChiralTag",
    "degree": "GetTotalDegree",
    "formal_charge": "GetFormalCharge",
    "num_hs": "GetTotalNumHs",
    "num_radical_electrons": "GetNumRadicalElectrons",
    "hybridization": "GetHybridization",
    "is_aromatic": "GetIsAromatic",
    "is_in_ring": "IsInRing",
}
_BOND = {"bond_type": "GetBondType", "stereo": "GetStereo", "is_conjugated": "GetIsConjugated"}


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
        from torch_geometric.utils.smiles import e_map, x_map

        given = [list(group) for group in groups]
        found = self.ask("read", given, {**x_map, **e_map})
        for texts, made in zip(given, found, strict=True):
            for place, (text, one) in enumerate(zip(texts, made, strict=True)):
                made[place] = one if isinstance(one, str) else _graph(text, *one)
        return found

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

    def ask(
        self, what: str, groups: Iterable[Sequence[str]], maps: Mapping[str, Sequence[Any]] = {}
    ) -> list[list[Any]]:
        """Per text what the process answers; a plain text is the reason why there is nothing."""
        with self._lock:
            try:
                return [self._ask([what, list(group), maps]) for group in groups]
            except BaseException:  # Ctrl-C, say: nobody gets the answers to this question next
                self._end()
                raise

    def _ask(self, question: list[Any]) -> list[Any]:
        count, found = len(question[1]), list[Any]()
        if not self._closed and count:
            found = self._answers(self._running(), question)
        if len(found) < count or self._late:  # the process has ended; another one goes on
            self._end()
        if len(found) < count:
            reason = f"did not end within {self.seconds:g} seconds" if self._late else "failed"
            why = Ended("RDKit was stopped" if self._closed else f"RDKit {reason}")
            late = f"not read: RDKit did not end with row {len(found)} before it"
            found += [why, *[late] * (count - len(found) - 1)]
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
            assert self._process.stdout is not None
            self._process.stdout.readline()  # it has imported RDKit: from now on the clock runs
        return self._process

    def _answers(self, process: subprocess.Popen[bytes], question: list[Any]) -> list[Any]:
        """The answers to a question, or those before the process ended or its time was over."""
        found, self._late = list[Any](), False

        def stop() -> None:
            self._late = True
            process.kill()

        assert process.stdin is not None
        assert process.stdout is not None
        clock = threading.Timer(self.seconds, stop)
        clock.start()
        with suppress(OSError):  # it has ended: so it has no answers
            process.stdin.write(f"{json.dumps(question)}\n".encode())
            process.stdin.flush()
        while len(found) < len(question[1]):
            line = process.stdout.readline()
            if not line.endswith(b"\n"):
                break
            found.append(json.loads(line))
        clock.cancel()
        return found

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


# -- in the process of its own ---------------------------------------------------------------------

_maps: dict[str, Sequence[Any]] = {}  # the values that PyG numbers, by feature


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
        what, texts, maps = json.loads(line)
        _maps.update(maps)
        for text in texts:
            try:
                found: Any = tasks[what](_molecule(text))
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


def _read(molecule: Any) -> tuple[str, str, str]:
    """Features of the atoms, ends and features of the bonds, as PyG's ``from_smiles`` has them."""
    bonds = []
    atoms = b"".join(_row(atom, _ATOM) for atom in molecule.GetAtoms())
    for bond in molecule.GetBonds():
        i, j, row = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), _row(bond, _BOND)
        bonds += [(i, j, row), (j, i, row)]
    bonds.sort()
    ends = array("i", [i for i, _, _ in bonds] + [j for _, j, _ in bonds])
    return atoms.hex(), ends.tobytes().hex(), b"".join(row for _, _, row in bonds).hex()


def _row(part: Any, methods: Mapping[str, str]) -> bytes:
    return bytes([_number(name, getattr(part, ask)()) for name, ask in methods.items()])


@cache
def _number(name: str, value: Any) -> int:
    """The number that PyG gives to a value; it has texts where RDKit has names of its own."""
    known = _maps[name]
    if value not in known and str(value) not in known:
        raise ValueError(f"{value} is no {name} that PyG knows")
    return known.index(value if value in known else str(value))
