"""What RDKit does in a process of its own: SMILES read as arrays, or drawn; see `gduq.data.smiles`.

It imports nothing but RDKit, so that a new process works in a moment.
"""

from __future__ import annotations

import array
import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gduq.errors import InputError, not_installed, one_line

__all__ = ["HEAD", "OTHER", "work"]

HEAD = struct.Struct("<ii")  # atoms and directed bonds; or one of the next two, and bytes
_REASON, OTHER = -1, -2
_MOST = 200  # atoms: drawing takes more than linear time
_Lists = Mapping[str, Sequence[Any]]  # PyG's values of each column
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


def work(answers: int) -> None:
    """Take a line of groups of texts and write an answer per text, until nobody asks any more.

    Args:
        answers: Number of the open file they are written to; a dot on standard output says that
            all are.
    """
    make: dict[str, Callable[[str], bytes]] = {"parse": _parse, "draw": _draw}
    try:
        from rdkit import RDLogger
        from rdkit.Chem import Draw  # noqa: F401  # before the clock runs

        RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    except ImportError:
        make = dict.fromkeys(("parse", "draw"), _missing)
    for line in sys.stdin:
        what, *rest = json.loads(line)
        if what == "lists":
            make["read"] = make["parse"] if make["parse"] is _missing else _reader(*rest)
            continue
        seconds, *groups = rest
        for group in groups:
            # this clock ends the process whatever RDKit does
            signal.setitimer(signal.ITIMER_PROF, seconds)
            for text in group:
                os.write(answers, _answer(make[what], text))
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, b".")


def _missing(text: str) -> bytes:
    raise not_installed("RDKit to read SMILES", "rdkit")


def _answer(make: Callable[[str], bytes], text: str) -> bytes:
    try:
        return make(text)
    except (RuntimeError, ValueError) as error:
        reason = one_line(error).encode(errors="backslashreplace")
        return HEAD.pack(_REASON, len(reason)) + reason


def _reader(x_map: _Lists, e_map: _Lists) -> Callable[[str], bytes]:
    """What makes ``x``, ``edge_index`` and ``edge_attr`` of a text."""
    from rdkit import Chem

    atom_columns = _columns(Chem.Atom, _ATOM, x_map)
    bond_columns = _columns(Chem.Bond, _BOND, e_map)

    def read(text: str) -> bytes:
        molecule = _molecule(text)
        atoms = [_row(atom, atom_columns) for atom in molecule.GetAtoms()]
        bonds = []
        for bond in molecule.GetBonds():
            i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
            row = _row(bond, bond_columns)
            bonds += [(i, j, row), (j, i, row)]
        bonds.sort()
        ends = array.array("i", [i for i, _, _ in bonds] + [j for _, j, _ in bonds])
        if sys.byteorder == "big":
            ends.byteswap()
        parts = [HEAD.pack(len(atoms), len(bonds)), *atoms, ends.tobytes()]
        return b"".join([*parts, *(row for _, _, row in bonds)])

    return read


def _parse(text: str) -> bytes:
    _molecule(text)
    return HEAD.pack(OTHER, 0)


def _molecule(text: str) -> Any:
    from rdkit import Chem

    if not text:
        raise ValueError("the SMILES field is empty")
    molecule = Chem.MolFromSmiles(text)
    if molecule is None or not molecule.GetNumAtoms():
        shown = repr(text).replace("\\\\", "\\")  # a bond, not an escape
        raise ValueError(f"{shown} is no valid SMILES")
    return molecule


class _Numbers(dict[Any, int]):
    """The number of each value that a column may have."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        super().__init__((value, number) for number, value in enumerate(values))
        self._name = name

    def __missing__(self, value: Any) -> int:
        """PyG has texts where RDKit has names of its own."""
        if str(value) not in self:
            raise ValueError(f"{value} is no {self._name} that PyG knows")
        self[value] = self[str(value)]
        return self[value]


_Columns = list[tuple[Callable[[Any], Any], _Numbers]]


def _columns(of: type, methods: Mapping[str, str], lists: _Lists) -> _Columns:
    """Per column what RDKit is asked for, and the numbers of what it may say."""
    return [(getattr(of, method), _Numbers(name, lists[name])) for name, method in methods.items()]


def _row(part: Any, columns: _Columns) -> bytes:
    """The features of an atom or a bond."""
    return bytes([numbers[ask(part)] for ask, numbers in columns])


def _draw(text: str) -> bytes:
    """A molecule as an SVG picture."""
    from rdkit.Chem.Draw import rdMolDraw2D

    molecule = _molecule(text)
    if molecule.GetNumAtoms() > _MOST:
        raise InputError(f"at most {_MOST} atoms to draw", molecule.GetNumAtoms())
    canvas = rdMolDraw2D.MolDraw2DSVG(240, 160)
    options: Any = canvas.drawOptions()
    options.clearBackground = False
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    picture = canvas.GetDrawingText().encode()
    return HEAD.pack(OTHER, len(picture)) + picture
