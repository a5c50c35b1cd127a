"""What RDKit does in a process of its own, see `gduq.data.smiles`.

It imports nothing but RDKit, so that a new process works in a moment.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from gduq.errors import InputError, not_installed, one_line

__all__ = ["serve"]

_MOST = 200  # atoms: drawing takes more than linear time
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
_maps: dict[str, Sequence[Any]] = {}  # the values that PyG numbers, by feature


def serve() -> None:
    """Answer text by text, until nobody asks any more; who asks has the clock."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    try:
        from rdkit import RDLogger
        from rdkit.Chem import Draw  # noqa: F401  # before the clock runs

        RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    except ImportError:
        pass  # every answer says so
    print(file=answers, flush=True)  # ready
    tasks = {"read": _read, "parse": _parse, "scaffold": _scaffold, "draw": _draw}
    for line in sys.stdin:
        what, groups, maps = json.loads(line)
        _maps.update(maps)
        for group in groups:
            for text in group:
                try:
                    found: Any = tasks[what](text)
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


def _parse(text: str) -> bool:
    return _molecule(text) is not None


def _scaffold(text: str) -> tuple[str]:
    """The Bemis-Murcko scaffold; in a list, since a bare text is a reason why there is none."""
    from rdkit.Chem.Scaffolds import MurckoScaffold

    scaffold: Any = MurckoScaffold.MurckoScaffoldSmiles
    return (str(scaffold(mol=_molecule(text))),)


def _draw(text: str) -> tuple[str]:
    """A molecule as an SVG picture."""
    molecule = _molecule(text)
    from rdkit.Chem.Draw import rdMolDraw2D

    if molecule.GetNumAtoms() > _MOST:
        raise InputError(f"at most {_MOST} atoms to draw", molecule.GetNumAtoms())
    canvas = rdMolDraw2D.MolDraw2DSVG(240, 160)
    options: Any = canvas.drawOptions()
    options.clearBackground = False
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    return (str(canvas.GetDrawingText()),)


def _read(text: str) -> tuple[str, str, str]:
    """Features of the atoms, ends and features of the bonds, as PyG's ``from_smiles`` has them."""
    molecule, bonds = _molecule(text), []
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
