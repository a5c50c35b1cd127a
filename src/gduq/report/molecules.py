"""Single molecules worth a look: what the model says of each, drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from gduq.graphs.view import View
from gduq.report.plots import inline
from gduq.report.results import result_of
from gduq.report.subject import Subject

__all__ = ["Example", "draw_molecule", "examples", "examples_of"]

Kind = Literal["novel", "uncertain", "wrong"]
_DRAWN = 3  # subjects whose molecules are drawn
_ATOMS = 120  # of one picture; more are a tangle, and take long to lay out
_SIZE = 240, 180
_NOISE = re.compile(r"^.*?<svg[^>]*>|</svg>.*|<!--.*?-->|\sclass='[^']*'|\n", re.DOTALL)


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


def examples_of(subjects: Sequence[Subject], split: str | None) -> list[dict[str, Any]]:
    """Rows of the first few subjects: the most novel, the least sure, the confident errors."""
    found: list[dict[str, Any]] = [
        {"name": s.name, **{kind: examples(s, split, kind) for kind in get_args(Kind)}}
        for s in subjects[:_DRAWN] if split is not None and split in s.predictions
    ]  # fmt: skip
    return [shown for shown in found if shown["uncertain"]]


def examples(subject: Subject, split: str, kind: Kind, count: int = 4) -> list[Example]:
    """Rows of one kind, the most extreme first; empty where rows are no molecules."""
    result = result_of(subject, split)
    p, view = result.p, getattr(subject.splits, split, None)
    if not isinstance(view, View) or view.rows is not None or len(view) != len(p):
        return []
    errors = None if p.target is None else result.errors
    wanted = {"novel": p.novelty, "uncertain": result.uncertainty, "wrong": errors}[kind]
    if not isinstance(wanted, Tensor):
        return []
    found: list[Example] = []
    for row in wanted.argsort(descending=True, stable=True).tolist():
        graph = view.graphs[row]
        smiles, known = graph.get("smiles"), graph.get("id")
        if not isinstance(smiles, str) or not smiles or (kind == "wrong" and not wanted[row] > 0):
            continue
        title = known if isinstance(known, str) and known else smiles
        answer = result.name(getattr(p, result.answers)[row].flatten())
        figures = result.certainty(row)
        truth = "unknown" if p.target is None else result.name(p.target[row].flatten())
        if p.novelty is not None:
            figures = f"novelty {float(p.novelty[row]):.2f}, {figures}"
        wrong = errors is not None and bool(errors[row] > 0)
        about = f"{subject.name} says {answer}, true is {truth}, {figures}"
        picture = draw_molecule(smiles, f"{title} of {split}: {about}")
        found.append(Example(title, picture, answer, truth, wrong, figures, smiles))
        if len(found) == count:
            break
    return found


def draw_molecule(smiles: str, label: str) -> str | None:
    """A molecule as SVG on white, or ``None`` where RDKit is missing or cannot draw it.

    Example:
        >>> svg = draw_molecule("CCO", "Ethanol")
        >>> svg[:9], 'aria-label="Ethanol"' in svg, draw_molecule("no molecule", "")
        ('<svg view', True, None)
    """
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError:
        return None
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not 0 < molecule.GetNumAtoms() <= _ATOMS:
        return None
    canvas = rdMolDraw2D.MolDraw2DSVG(*_SIZE)
    try:
        rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    except (RuntimeError, ValueError):  # valences that RDKit can read but not draw
        return None
    canvas.FinishDrawing()
    return inline(_NOISE.sub("", str(canvas.GetDrawingText())), *_SIZE, label)
