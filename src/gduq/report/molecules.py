"""Molecules in a report: drawn by RDKit, and those of the training data most like them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from gduq.data.view import View
from gduq.plots.svg import inline

__all__ = ["Near", "draw_molecule", "nearest", "smiles_of"]

_ATOMS = 120  # of one picture; more are a tangle, and take long to lay out
_WIDTH, _HEIGHT = 240, 180
_COMPARED = 5000  # training compounds, evenly chosen where there are more
_NOISE = re.compile(r"^.*?<svg[^>]*>|</svg>.*|<!--.*?-->|\sclass='[^']*'|\n", re.DOTALL)


class Near(NamedTuple):
    """A compound of the training data: its place there, its SMILES, and how alike it is."""

    row: int
    smiles: str
    similarity: float


def smiles_of(graph: Any) -> str:
    """Which molecule a graph is, if it says so; otherwise empty."""
    found = graph.get("smiles")
    return found if isinstance(found, str) else ""


def draw_molecule(smiles: str, label: str) -> str | None:
    """A molecule as SVG on white, or ``None`` where RDKit is missing or cannot draw it.

    Example:
        >>> svg = draw_molecule("CCO", "Ethanol")
        >>> svg[:9], 'aria-label="Ethanol"' in svg, draw_molecule("no molecule", "")
        ('<svg view', True, None)
    """
    molecule = _molecule(smiles)
    if molecule is None or not 0 < molecule.GetNumAtoms() <= _ATOMS:
        return None
    from rdkit.Chem.Draw import rdMolDraw2D

    canvas = rdMolDraw2D.MolDraw2DSVG(_WIDTH, _HEIGHT)
    try:
        rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    except (RuntimeError, ValueError):  # valences that RDKit can read but not draw
        return None
    canvas.FinishDrawing()
    return inline(_NOISE.sub("", str(canvas.GetDrawingText())), _WIDTH, _HEIGHT, label)


def nearest(smiles: str, train: View, count: int = 2) -> list[Near]:
    """The training compounds most like one: by shared fragments, as chemists compare them.

    Tanimoto similarity of Morgan fingerprints (radius 2, 2048 bits): 1 for the same fragments,
    below about 0.3 for unrelated compounds. Empty where the training data has no SMILES.
    """
    rows = range(0, len(train.graphs), max(1, -(-len(train.graphs) // _COMPARED)))
    texts = tuple(smiles_of(train.graphs[row]) for row in rows)
    known, own = _fingerprints(texts), _fingerprint(smiles)
    if own is None:
        return []
    from rdkit.DataStructs import BulkTanimotoSimilarity

    places = [place for place, found in enumerate(known) if found is not None]
    alike = BulkTanimotoSimilarity(own, [known[place] for place in places])
    order = sorted(zip(alike, places, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return [Near(rows[place], texts[place], float(value)) for value, place in order[:count]]


@lru_cache(maxsize=1)
def _fingerprints(texts: tuple[str, ...]) -> list[Any]:
    return [_fingerprint(text) for text in texts]


def _fingerprint(smiles: str) -> Any:
    molecule = _molecule(smiles)
    if molecule is None:
        return None
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    return generator.GetFingerprint(molecule)


def _molecule(smiles: str) -> Any:
    """As RDKit reads it; ``None`` where it cannot, there is none, or RDKit is missing."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        return None
    if not smiles:
        return None
    with rdBase.BlockLogs():
        return Chem.MolFromSmiles(smiles)
