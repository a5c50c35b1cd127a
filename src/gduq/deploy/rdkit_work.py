"""What RDKit does in a process of its own: molecules read as arrays, molecules drawn.

Run as a program, it takes a line of texts and gives a line per text, until nobody asks any more. It
imports nothing but RDKit, so that a new one works in a moment.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from gduq.errors import InputError, one_line

__all__ = ["draw", "read"]

Lists = Mapping[str, Mapping[str, list[Any]]]

_MOST = 200  # atoms: drawing takes more than linear time
_ATOM: dict[str, Callable[[Any], Any]] = {
    "atomic_num": lambda atom: atom.GetAtomicNum(),
    "chirality": lambda atom: str(atom.GetChiralTag()),
    "degree": lambda atom: atom.GetTotalDegree(),
    "formal_charge": lambda atom: atom.GetFormalCharge(),
    "num_hs": lambda atom: atom.GetTotalNumHs(),
    "num_radical_electrons": lambda atom: atom.GetNumRadicalElectrons(),
    "hybridization": lambda atom: str(atom.GetHybridization()),
    "is_aromatic": lambda atom: atom.GetIsAromatic(),
    "is_in_ring": lambda atom: atom.IsInRing(),
}
_BOND: dict[str, Callable[[Any], Any]] = {
    "bond_type": lambda bond: str(bond.GetBondType()),
    "stereo": lambda bond: str(bond.GetStereo()),
    "is_conjugated": lambda bond: bond.GetIsConjugated(),
}


def read(smiles: str, lists: Lists) -> dict[str, Any]:
    """``x``, ``edge_index`` and ``edge_attr`` as PyG's ``from_smiles`` makes them, as lists.

    Args:
        smiles: The text.
        lists: Of ``x`` and ``edge_attr``, per column its values in the order of their numbers.
    """
    from rdkit import Chem, rdBase

    if not smiles:
        raise ValueError("the SMILES field is empty")
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        raise ValueError(f"{smiles!r} is no valid SMILES")
    try:
        atoms = _numbers(molecule.GetAtoms(), _ATOM, lists["x"])
        bonds = _numbers(molecule.GetBonds(), _BOND, lists["edge_attr"])
    except ValueError as error:  # an atom or bond outside PyG's tables
        raise ValueError(f"SMILES {smiles!r}: {error}") from error
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    both = [((i, j), row) for (i, j), row in zip(ends, bonds, strict=True)]
    both = sorted([*both, *(((j, i), row) for (i, j), row in both)])
    index = [list(side) for side in zip(*(pair for pair, _ in both), strict=True)]
    return {"x": atoms, "edge_index": index or [[], []], "edge_attr": [row for _, row in both]}


def _numbers(
    parts: Iterable[Any],
    columns: Mapping[str, Callable[[Any], Any]],
    values: Mapping[str, list[Any]],
) -> list[list[int]]:
    return [[values[name].index(of(part)) for name, of in columns.items()] for part in parts]


def draw(smiles: str, width: int = 240, height: int = 160) -> str:
    """A molecule as an SVG picture.

    Example:
        >>> "<svg" in draw("CCO")
        True
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem.Draw import rdMolDraw2D

    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise InputError("a SMILES text", "another one")
    if molecule.GetNumAtoms() > _MOST:
        raise InputError(f"at most {_MOST} atoms to draw", molecule.GetNumAtoms())
    canvas = rdMolDraw2D.MolDraw2DSVG(width, height)
    options: Any = canvas.drawOptions()
    options.clearBackground = False
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    return str(canvas.GetDrawingText())


def _work() -> None:
    with suppress(ImportError):  # before the clock runs
        import rdkit.Chem.Draw.rdMolDraw2D  # noqa: F401
    lists = json.loads(sys.stdin.readline())
    works: dict[str, Callable[[str], Any]] = {"read": lambda text: read(text, lists), "draw": draw}
    with open(os.devnull, "w") as nowhere:
        for line in sys.stdin:
            what, seconds, texts = json.loads(line)
            # this clock ends the process whatever RDKit does
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            for text in texts:
                sys.stdout.write(json.dumps(_tried(works[what], text)) + "\n")
                sys.stdout.flush()
            faulthandler.cancel_dump_traceback_later()


def _tried(work: Callable[[str], Any], text: str) -> tuple[Any, str | None]:
    try:
        return work(text), None
    except ImportError:
        return None, "RDKit, which reads SMILES, is not installed: pip install 'gduq[molecules]'"
    except (RuntimeError, ValueError) as error:
        return None, one_line(error)


if __name__ == "__main__":
    _work()
