"""Molecules as pictures."""

from __future__ import annotations

from typing import Any

from gduq.deploy.limits import Refused

__all__ = ["draw"]

_MOST = 200  # atoms: drawing takes more than linear time


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
        raise Refused(422, "expected a SMILES text, got another one")
    if molecule.GetNumAtoms() > _MOST:
        raise Refused(413, f"expected at most {_MOST} atoms to draw, got {molecule.GetNumAtoms()}")
    canvas = rdMolDraw2D.MolDraw2DSVG(width, height)
    options: Any = canvas.drawOptions()
    options.clearBackground = False
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    return str(canvas.GetDrawingText())
