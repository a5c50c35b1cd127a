"""Single molecules worth a look: what the model says of each, drawn, and what they resemble."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from torch import Tensor

from gduq.graphs.view import View
from gduq.report.kinds import SplitResult, result_of
from gduq.report.plots import inline
from gduq.report.subject import Subject

__all__ = ["Example", "Near", "draw_molecule", "examples", "examples_of", "nearest"]

Kind = Literal["novel", "uncertain", "wrong"]
_DRAWN = 3  # subjects whose molecules are drawn
_ATOMS = 120  # of one picture; more are a tangle, and take long to lay out
_WIDTH, _HEIGHT = 240, 180
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
    found = []
    for subject in subjects[:_DRAWN]:
        if split is not None and split in subject.predictions:
            kinds: tuple[Kind, ...] = ("novel", "uncertain", "wrong")
            shown: dict[str, Any] = {kind: examples(subject, split, kind) for kind in kinds}
            if shown["uncertain"]:
                score = result_of(subject, split).score
                found.append({"name": subject.name, "score": score, **shown})
    return found


def examples(subject: Subject, split: str, kind: Kind, count: int = 4) -> list[Example]:
    """Rows of one kind, the most extreme first; empty where rows are no molecules.

    The most novel ones come with the training compounds that are most like them.
    """
    result = result_of(subject, split)
    view = getattr(subject.splits, split, None) if subject.splits is not None else None
    if not isinstance(view, View) or view.rows is not None or len(view) != len(result.p):
        return []
    rows = [row for row in _rows(result, kind) if smiles_of(view.graphs[row])]
    return [_example(result, view, row, kind == "novel") for row in rows[:count]]


def _rows(result: SplitResult, kind: Kind) -> list[int]:
    wanted: Tensor | None = result.p.novelty if kind == "novel" else result.uncertainty
    if kind == "wrong":
        known = result.p.target is not None
        wanted = (result.sureness.nan_to_num(0.0) * result.missed).amax(1) if known else None
    if wanted is None:
        return []
    order = wanted.argsort(descending=True, stable=True).tolist()
    return [i for i in order if kind != "wrong" or wanted[i] > 0]


def _example(result: SplitResult, view: View, row: int, novel: bool) -> Example:
    graph, p = view.graphs[row], result.p
    smiles, known = smiles_of(graph), graph.get("id")
    title = known if isinstance(known, str) and known else smiles
    truth = "unknown" if p.target is None else result.in_words(p.target[row].flatten())
    answer, figures = result.answer(row), result.certainty(row)
    if p.novelty is not None:
        figures = f"novelty {float(p.novelty[row]):.2f}, {figures}"
    wrong = p.target is not None and bool(result.missed[row].any())
    name = result.subject.name
    words = f"{title} of {result.split}: {name} says {answer}, true is {truth}, {figures}"
    alike = tuple(_relatives(result, smiles)) if novel else ()
    return Example(
        title, draw_molecule(smiles, words), answer, truth, wrong, figures, smiles, alike
    )


def _relatives(result: SplitResult, smiles: str) -> list[Near]:
    """The training compounds most like a molecule, drawn; none where they are not known."""
    splits, found = result.subject.splits, []
    if splits is None or splits.train.rows is not None:
        return []
    target = result.target
    for near in nearest(smiles, splits.train):
        graph, words = splits.train.graphs[near.row], f"similarity {near.similarity:.2f}"
        if isinstance(y := graph.get("y"), Tensor) and y.numel():
            y = y if target is None else target.encode(y)
            words += f", true {result.in_words(y.flatten())}"
        words = f"{known}: {words}" if (known := graph.get("id")) else words
        if (svg := draw_molecule(near.smiles, f"Training compound {words}")) is not None:
            found.append(near._replace(svg=svg, words=words))
    return found


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


def nearest(smiles: str, train: View, count: int = 3) -> list[Near]:
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
