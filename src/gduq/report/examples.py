"""Single molecules worth a look: what the model says of each, drawn, and what they resemble."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import Tensor

from gduq.graphs.view import View
from gduq.report.kinds import SplitResult, result_of
from gduq.report.plots import inline
from gduq.report.subject import Subject

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["Example", "Near", "draw_molecule", "examples", "examples_of", "nearest"]

Kind = Literal["novel", "uncertain", "wrong"]
_DRAWN = 3  # subjects whose molecules are drawn
_ATOMS = 120  # of one picture; more are a tangle, and take long to lay out
_SIZE = 240, 180
_COMPARED = 5000  # training compounds, evenly chosen where there are more
_NOISE = re.compile(r"^.*?<svg[^>]*>|</svg>.*|<!--.*?-->|\sclass='[^']*'|\n", re.DOTALL)


class Near(NamedTuple):
    """A training compound like a drawn one: its row, its SMILES, how alike, picture and words."""

    row: int
    smiles: str
    similarity: float
    svg: str = ""
    words: str = ""


@dataclass(frozen=True)
class Example:
    """A row: its picture, what the model says of it, and what is true."""

    title: str
    svg: str | None
    answer: str
    truth: str
    wrong: bool
    figures: str
    smiles: str
    nearest: tuple[Near, ...]


def examples_of(subjects: Sequence[Subject], split: str | None) -> list[dict[str, Any]]:
    """Rows of the first few subjects: the most novel, the least sure, the confident errors."""
    kinds: tuple[Kind, ...] = ("novel", "uncertain", "wrong")
    found: list[dict[str, Any]] = [
        {"name": s.name, **{kind: examples(s, split, kind) for kind in kinds}}
        for s in subjects[:_DRAWN] if split is not None and split in s.predictions
    ]  # fmt: skip
    return [shown for shown in found if shown["uncertain"]]


def examples(subject: Subject, split: str, kind: Kind, count: int = 4) -> list[Example]:
    """Rows of one kind, the most extreme first; empty where rows are no molecules.

    The most novel ones come with the training compounds that are most like them.
    """
    result = result_of(subject, split)
    view = getattr(subject.splits, split, None) if subject.splits is not None else None
    if not isinstance(view, View) or view.rows is not None or len(view) != len(result.p):
        return []
    wanted: Tensor | None = result.p.novelty if kind == "novel" else result.uncertainty
    if kind == "wrong":
        wanted = None if result.p.target is None else result.errors
    if wanted is None:
        return []
    order = wanted.argsort(descending=True, stable=True).tolist()
    rows = [row for row in order if _smiles(view.graphs[row])
            and (kind != "wrong" or wanted[row] > 0)]  # fmt: skip
    return [_example(result, view.graphs[row], row, kind == "novel") for row in rows[:count]]


def _example(result: SplitResult, graph: Data, row: int, novel: bool) -> Example:
    p, smiles, known = result.p, _smiles(graph), graph.get("id")
    title = known if isinstance(known, str) and known else smiles
    truth = "unknown" if p.target is None else result.name(p.target[row].flatten())
    answer, figures = result.answer(row), result.certainty(row)
    if p.novelty is not None:
        figures = f"novelty {float(p.novelty[row]):.2f}, {figures}"
    wrong = p.target is not None and bool(result.errors[row] > 0)
    about = f"{result.subject.name} says {answer}, true is {truth}, {figures}"
    picture = draw_molecule(smiles, f"{title} of {result.split}: {about}")
    alike = tuple(_relatives(result, smiles)) if novel else ()
    return Example(title, picture, answer, truth, wrong, figures, smiles, alike)


def _relatives(result: SplitResult, smiles: str) -> list[Near]:
    """The training compounds most like a molecule, drawn; none where they are not known."""
    splits, found = result.subject.splits, []
    if splits is None or splits.train.rows is not None:
        return []
    for near in nearest(smiles, splits.train):
        graph, words = splits.train.graphs[near.row], f"similarity {near.similarity:.2f}"
        if isinstance(y := graph.get("y"), Tensor) and y.numel():
            words += f", true {result.name(result.encode(y).flatten())}"
        words = f"{known}: {words}" if (known := graph.get("id")) else words
        if (svg := draw_molecule(near.smiles, f"Training compound {words}")) is not None:
            found.append(near._replace(svg=svg, words=words))
    return found


def _smiles(graph: Data) -> str:
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

    canvas = rdMolDraw2D.MolDraw2DSVG(*_SIZE)
    try:
        rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    except (RuntimeError, ValueError):  # valences that RDKit can read but not draw
        return None
    canvas.FinishDrawing()
    return inline(_NOISE.sub("", str(canvas.GetDrawingText())), *_SIZE, label)


def nearest(smiles: str, train: View, count: int = 3) -> list[Near]:
    """The training compounds most like one: by shared fragments, as chemists compare them.

    Tanimoto similarity of Morgan fingerprints (radius 2, 2048 bits): 1 for the same fragments,
    below about 0.3 for unrelated compounds. Empty where the training data has no SMILES.
    """
    rows = range(0, len(train.graphs), max(1, -(-len(train.graphs) // _COMPARED)))
    texts = tuple(_smiles(train.graphs[row]) for row in rows)
    (own,), known = _fingerprints((smiles,)), _fingerprints(texts)
    if own is None:
        return []
    from rdkit.DataStructs import TanimotoSimilarity

    alike = [(TanimotoSimilarity(own, other), i) for i, other in enumerate(known) if other]
    alike.sort(key=lambda pair: (-pair[0], pair[1]))
    return [Near(rows[i], texts[i], float(value)) for value, i in alike[:count]]


@lru_cache(maxsize=2)
def _fingerprints(texts: tuple[str, ...]) -> list[Any]:
    molecules = [_molecule(text) for text in texts]
    if not any(molecules):
        return [None] * len(texts)
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    return [None if m is None else generator.GetFingerprint(m) for m in molecules]


def _molecule(smiles: str) -> Any:
    """As RDKit reads it; ``None`` where it cannot, there is none, or RDKit is missing."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        return None
    with rdBase.BlockLogs():
        return Chem.MolFromSmiles(smiles) if smiles else None
