"""Rows worth a look: which they are, what the model says of each, and their pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gduq.data.view import View
from gduq.evaluation.gap import PROMISED
from gduq.report.graphs import CLASS_COLOURS, draw
from gduq.report.molecules import draw_molecule, nearest, smiles_of
from gduq.report.subject import Subject
from gduq.targets import Target, infer_target

__all__ = ["Example", "Kind", "colour_legend", "drawn", "examples"]

Kind = Literal["novel", "uncertain", "wrong"]
_DRAWN = 3  # subjects whose graphs are drawn


class Relative(NamedTuple):
    """A training compound like a drawn one: the picture, which it is, how alike, and its truth."""

    svg: str
    smiles: str
    figures: str


@dataclass(frozen=True)
class Example:
    """A drawn row: the picture, what the model said, and what is true."""

    title: str
    svg: str
    said: str
    truth: str
    wrong: bool
    figures: str
    note: str
    smiles: str
    relatives: tuple[Relative, ...]


def drawn(subjects: Sequence[Subject], split: str | None) -> list[dict[str, Any]]:
    """Drawn rows of the first few subjects, by kind."""
    found = []
    for subject in subjects[:_DRAWN]:
        if split is not None and split in subject.predictions:
            kinds: tuple[Kind, ...] = ("novel", "uncertain", "wrong")
            shown: dict[str, Any] = {kind: examples(subject, split, kind) for kind in kinds}
            if shown["uncertain"]:
                score = _Answers(subject, split).score
                found.append({"name": subject.name, "score": score, **shown})
    return found


def examples(subject: Subject, split: str, kind: Kind, count: int = 4) -> list[Example]:
    """The most novel rows, those a model is least sure of, or its most confident errors, drawn.

    Empty where the graphs, or their novelty, are not known. Molecules are drawn as such, the most
    novel ones with the training compounds that are most like them.
    """
    view, answers = _view(subject, split), _Answers(subject, split)
    if view is None:
        return []
    return [_example(answers, view, row, kind == "novel") for row in answers.rows(kind)[:count]]


def colour_legend(subjects: Sequence[Subject], split: str) -> tuple[tuple[str, str], ...]:
    """Class names and their colours, for node tasks."""
    for subject in subjects:
        view = _view(subject, split)
        if subject.kind == "classes" and view is not None and view.rows is not None:
            classes = range(subject.predictions[split].num_classes)
            names = (subject.class_name(c, split) for c in classes)
            return tuple(zip(names, CLASS_COLOURS, strict=False))
    return ()


def _view(subject: Subject, split: str) -> View | None:
    if subject.splits is None:
        return None
    view = getattr(subject.splits, split, None) or subject.splits.severities.get(split)
    fits = isinstance(view, View) and len(view) == len(subject.predictions[split])
    return view if fits else None


def _example(answers: _Answers, view: View, row: int, novel: bool) -> Example:
    graph, node = _place(view, row)
    smiles = smiles_of(graph) if node is None else ""
    known = graph.get("id")  # of the table
    title = (known if isinstance(known, str) else "") or smiles or f"Graph {row}"
    title = title if node is None else f"Node {node}"
    said, truth, figures = answers.said(row), answers.truth(row), answers.figures(row)
    name = answers.subject.name
    words = f"{title} of {answers.split}: {name} says {said}, true is {truth}, {figures}"
    svg, note = draw_molecule(smiles, words) if smiles else None, ""
    if svg is None:
        svg, note = draw(graph, node, words)
    relatives = _relatives(answers, smiles) if novel and smiles else ()
    wrong = answers.is_wrong(row)
    return Example(title, svg, said, truth, wrong, figures, note, smiles, relatives)


def _relatives(answers: _Answers, smiles: str) -> tuple[Relative, ...]:
    """The training compounds most like a molecule, drawn; none where they are not known."""
    splits, found = answers.subject.splits, []
    if splits is None or splits.train.rows is not None:
        return ()
    target: Target | None = None
    if answers.kind == "classes" and splits.train.graphs[0].get("y") is not None:
        y = torch.cat([view.target for _, view in splits])  # train may lack a class
        target = infer_target(y, answers.p.num_classes, "classes")
    for near in nearest(smiles, splits.train):
        graph, words = splits.train.graphs[near.row], f"similarity {near.similarity:.2f}"
        if isinstance(y := graph.get("y"), Tensor) and y.numel():
            y = y if target is None else target.encode(y)
            words += f", true {answers.told(y.flatten())}"
        words = f"{known}: {words}" if (known := graph.get("id")) else words
        svg = draw_molecule(near.smiles, f"Training compound {words}")
        if svg is not None:
            found.append(Relative(svg, near.smiles, words))
    return tuple(found)


def _place(view: View, row: int) -> tuple[Any, int | None]:
    """The graph of a row and, in a node task, the number of its node there."""
    if view.rows is None:
        return view.graphs[row], None
    number = int(view.numbers[row])
    for graph in view.graphs:
        if number < int(graph.num_nodes or 0):
            return graph, number
        number -= int(graph.num_nodes or 0)
    raise IndexError(row)  # a View has as many mask entries as nodes


class _Answers:
    """What a subject says of the rows of a split, in words, and how sure of it it is."""

    def __init__(self, subject: Subject, split: str) -> None:
        self.subject, self.split, self.kind = subject, split, subject.kind
        self.p: Any = subject.predictions[split]

    @property
    def score(self) -> str:
        """What uncertainty means: disagreement if there is any, else entropy, or deviation."""
        if self.kind == "values":
            return "deviation" if len(self.subject.names) == 1 else "mean deviation"
        return "epistemic" if self.p.num_samples > 1 else "entropy"

    @cached_property
    def uncertainty(self) -> Tensor:
        """Per row ``[m]``; of several values in units of their typical deviation."""
        values, p = self.kind == "values", self.p
        found: Tensor = p.std / p.std.mean(dim=0) if values else getattr(p, self.score)
        return found.reshape(len(p), -1).mean(dim=1)

    @cached_property
    def missed(self) -> Tensor:
        """Which answers are wrong ``[m, T]``: of values, those outside the 90 % interval."""
        p = self.p
        if self.kind == "values":
            low, high = p.interval(PROMISED)
            missed = (p.target < low) | (p.target > high)
        elif self.kind == "labels":
            missed = (p.label != (p.target == 1)) & p.known
        else:
            missed = ~p.correct
        return missed.reshape(len(p), -1)  # type: ignore[no-any-return]

    @property
    def _surprise(self) -> Tensor | None:
        """How sure it was of what is wrong ``[m]``; of values the error over the deviation."""
        p = self.p
        if p.target is None:
            return None
        sure: Tensor = p.confidence if self.kind != "values" else (p.target - p.mean).abs() / p.std
        return (sure.nan_to_num(0.0).reshape(len(p), -1) * self.missed).amax(dim=1)

    def rows(self, kind: Kind) -> list[int]:
        """Rows of a kind, the most extreme first."""
        if kind == "wrong":
            wanted = self._surprise
        else:
            wanted = self.uncertainty if kind == "uncertain" else self.p.novelty
        if wanted is None:
            return []
        order = wanted.argsort(descending=True, stable=True)
        return [int(i) for i in order if kind != "wrong" or wanted[i] > 0]

    def is_wrong(self, row: int) -> bool:
        """Whether any answer to a row is known to be wrong."""
        return self.p.target is not None and bool(self.missed[row].any())

    def said(self, row: int) -> str:
        """The answer."""
        if self.kind == "values":
            both = zip(self.p.mean[row].flatten(), self.p.std[row].flatten(), strict=True)
            return self._listed([f"{float(m):.3g} ± {float(s):.2g}" for m, s in both])
        return self.told(self.p.label[row].flatten())

    def truth(self, row: int) -> str:
        """The truth, as far as it is known."""
        return "unknown" if self.p.target is None else self.told(self.p.target[row].flatten())

    def told(self, y: Tensor) -> str:
        """A truth in words."""
        if self.kind == "values":
            return self._listed([f"{value:.3g}" for value in y.tolist()])
        if self.kind == "classes":
            return self.subject.class_name(int(y[0]), self.split)
        if len(y) == 1:
            return {1.0: "yes", 0.0: "no"}.get(float(y[0]), "unknown")
        told = list(zip(self.subject.names, y.tolist(), strict=True))
        gaps = [name for name, value in told if value not in (0, 1)]
        said = ", ".join(name for name, value in told if value == 1) or "none"
        if len(gaps) == len(told):
            return "unknown"
        return f"{said} (unknown: {', '.join(gaps)})" if gaps else said

    def _listed(self, words: list[str]) -> str:
        named = zip(self.subject.names, words, strict=True)  # one alone has an empty name
        return ", ".join(f"{name} {word}".strip() for name, word in named)

    def figures(self, row: int) -> str:
        """How sure it is, and how novel the row."""
        number = f"{self.score} {float(self.uncertainty[row]):.2f}"
        if self.kind != "values":
            said = f"{100 * float(self.p.confidence[row].mean()):.0f} % sure, {number}"
        elif len(self.subject.names) > 1:
            said = f"{number} of the usual"
        else:
            low, high = self.p[row].interval(PROMISED)
            said = f"90 % interval {float(low):.3g} to {float(high):.3g}"
        novelty = self.p.novelty
        return said if novelty is None else f"novelty {float(novelty[row]):.2f}, {said}"
