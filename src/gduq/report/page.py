"""The page with its charts and molecules, and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gduq._io import to_json, write_text
from gduq.errors import InputError
from gduq.graphs.view import View
from gduq.prediction import Prediction
from gduq.report import plots
from gduq.report.results import apart, label_table, result_of, scorecards, templates
from gduq.report.subject import Subject, as_subjects, main_split, split_names
from gduq.report.verdict import verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Example", "build", "draw_molecule", "examples", "write"]

Chart = tuple[str, str]  # a title and its picture
Kind = Literal["novel", "uncertain", "wrong"]
_KINDS: tuple[Kind, ...] = ("novel", "uncertain", "wrong")
_MODELS, _BLOCKS = 6, 4  # lines a reader can still tell apart; labels or values with charts
_NAME = 40  # letters of a name in a legend
_DRAWN, _EACH = 3, 4  # subjects whose molecules are drawn, and how many of a kind
_ATOMS = 120  # of one picture; more are a tangle, and take long to lay out
_SIZE = 240, 180


def build(
    subjects: Subject | Iterable[Subject], title: str | None = None, reproduce: str = ""
) -> str:
    """One self-contained HTML page: no network, no script, for screens, phones and paper.

    The first subject is what the others are compared with. The title is by default the target and
    the file it is learned from; ``reproduce`` is the command that makes the same again.
    """
    found = as_subjects(subjects)
    first, split = found[0], main_split(found)
    results = [result_of(s, split) for s in found[:_MODELS] if split and s.labelled(split)]
    drawn = [s.each_run[0] for s in found]  # a picture is of one run, as its name says
    cases = [
        {"name": s.name, **{kind: [*islice(examples(s, split, kind), _EACH)] for kind in _KINDS}}
        for s in drawn[:_DRAWN] if split is not None and split in s.predictions
    ]  # fmt: skip
    return templates().get_template("page.html.j2").render(
        about=_about(found, title, reproduce),
        kind=first.example.kind,
        configs=[(s.name, to_json(s.config, default=str)) for s in found if s.config],
        subjects=found,
        split=split,
        verdict=verdict(found),
        gaps=[(r.subject.name, *(100 * v for v in r.promise)) for r in results],
        scorecards=scorecards(found),
        classes=first.example.names if first.names == ("",) else (),
        labels=label_table(found),
        drawn=[shown for shown in cases if shown["uncertain"]],
        targets_left_out=first.names[_BLOCKS:],
        models_left_out=[s.name for s in found[_MODELS:]],
        histograms=list(_histograms(drawn[:_MODELS])),
        **_charts(drawn[:_MODELS]),
    )  # fmt: skip


def write(
    subjects: Subject | Iterable[Subject],
    path: str | Path,
    title: str | None = None,
    reproduce: str = "",
) -> Path:
    """Write a report as a page (``.html``; see `build`) or as JSON (``.json``), by the ending of
    the file, which is there whole or not at all."""
    path, found = Path(path), as_subjects(subjects)
    if path.suffix == ".html":
        text = build(found, title, reproduce)
    elif path.suffix == ".json":
        content = _about(found, title, reproduce) | {
            "verdict": asdict(verdict(found)),
            "subjects": [{"name": s.name, "config": s.config} for s in found],
            "table": [{"subject": s.name, **row} for s in found
                      for row in s.result.table.to_dict(orient="records")],
        }  # fmt: skip
        text = to_json(content, default=str) + "\n"
    else:
        raise InputError("a file called .html or .json", repr(path.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def _about(subjects: Sequence[Subject], title: str | None, reproduce: str) -> dict[str, object]:
    """Title, facts of the first subject (what was trained of all of them), command, versions."""
    facts = dict(subjects[0].facts)
    if len(subjects) > 1 and "Model" in facts:
        facts["Model"] = "; ".join(s.facts.get("Model", s.name) for s in subjects)
    about = ", from ".join(filter(None, (facts.get("Target"), facts.get("Data"))))
    default = f"{about}: how far to trust it" if about else "How far to trust it"
    versions = next((s.info for s in subjects if s.info), {})
    return {"title": title or default, "facts": facts, "reproduce": reproduce,
            "versions": versions}  # fmt: skip


# -- charts --------------------------------------------------------------------------------------


def _charts(subjects: Sequence[Subject]) -> dict[str, list[Chart]]:
    """Charts of what is known, by section of the page; a label is two classes."""
    panels = list(_panels(subjects))
    risk = _draw(panels, plots.risk_coverage, "Risk and coverage")
    if subjects[0].example.mean_of_parts:
        diagram = partial(plots.reliability_diagram, bins=subjects[0].settings.bins)
        return {"reliability": _draw(panels, diagram, "Reliability"), "parity": [], "risk": risk}
    single = [(f"{title}: {name}" if len(named) > 1 else title, p)
              for title, named in panels for name, p in named.items()]  # fmt: skip
    return {
        "reliability": _draw(panels, plots.calibration_curve, "Levels of intervals"),
        "parity": _draw(single, plots.parity, "Truth and prediction"),
        "risk": risk,
    }


def _panels(subjects: Sequence[Subject]) -> Iterator[tuple[str, dict[str, Prediction]]]:
    """The ID test, and the split the verdict is about; of several labels or values the latter."""
    for part in subjects[0].names[:_BLOCKS]:
        main = main_split(subjects, part)
        for split in filter(None, dict.fromkeys([main] if part else ["id_test", main])):
            known: dict[str, Prediction] = {}
            for subject in subjects:
                if (p := subject.labelled(split, part)) is not None:
                    known[_short(subject.name, known)] = p
            if known:
                yield f"{part}, {split}" if part else split, known


def _short(name: str, taken: Iterable[str]) -> str:
    """A name for a legend; Matplotlib leaves out those that begin with an underscore."""
    name = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    name = f"\u200b{name}" if name.startswith("_") else name
    return f"{name} ({len(list(taken)) + 1})" if name in taken else name


def _draw(panels: Sequence[tuple[str, Any]], draw: Callable[..., Figure], what: str) -> list[Chart]:
    """One picture per panel; its description holds its legend, and so the numbers."""
    found = []
    for title, known in panels:
        figure = draw(known)
        legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        found.append((title, plots.to_svg(figure, f"{what}, {title}: {'; '.join(legend)}")))
    return found


def _histograms(subjects: Sequence[Subject]) -> Iterator[Chart]:
    """The usual uncertainty of known and shifted rows and, where it was measured, their novelty."""
    names, main = split_names(subjects), main_split(subjects)
    known = next((s for s in ("id_test", "id_val") if s in names), "")
    shifted = main or next((s for s in ("ood_test", "ood_val") if s in names), "")
    both = [s for s in subjects if {known, shifted} <= set(s.predictions) and known != shifted]
    for part, s in product(apart(subjects[0])[:_BLOCKS], both):
        p, q = (result_of(s, split, part).p for split in (known, shifted))
        novel = p.novelty is not None and q.novelty is not None
        for score in (None, "novelty") if novel else (None,):
            draw = partial(plots.score_histograms, p, score=score, names=(known, shifted))
            panel = (f"{s.name}: {part}" if part else s.name, q)
            yield from _draw([panel], draw, "Uncertainty of known and shifted rows")


# -- molecules -------------------------------------------------------------------------------------


class Example(NamedTuple):
    """A row: its picture, what the model says of it, and what is true."""

    title: str
    svg: str | None
    answer: str
    truth: str
    wrong: bool
    figures: str
    smiles: str


def examples(subject: Subject, split: str, kind: Kind) -> Iterator[Example]:
    """Rows of one kind, the most extreme first; none where rows are no molecules."""
    result = result_of(subject, split)
    p, view = result.p, getattr(subject.splits, split, None)
    errors = None if p.target is None else result.errors
    wanted = {"novel": p.novelty, "uncertain": result.uncertainty, "wrong": errors}[kind]
    if not isinstance(view, View) or view.rows is not None or len(view) != len(p) or wanted is None:
        return
    for row in wanted.argsort(descending=True, stable=True).tolist():
        graph = view.graphs[row]
        smiles, known = graph.get("smiles"), graph.get("id")
        if not isinstance(smiles, str) or not smiles or (kind == "wrong" and not wanted[row] > 0):
            continue
        title = known if isinstance(known, str) and known else smiles
        answer = result.name(getattr(p, result.answers)[row].flatten())
        truth = "unknown" if p.target is None else result.name(p.target[row].flatten())
        novelty = "" if p.novelty is None else f"novelty {float(p.novelty[row]):.2f}, "
        figures = f"{novelty}{result.certainty(row)}"
        about = f"{subject.name} says {answer}, true is {truth}, {figures}"
        picture = draw_molecule(smiles, f"{title} of {split}: {about}")
        wrong = errors is not None and bool(errors[row] > 0)
        yield Example(title, picture, answer, truth, wrong, figures, smiles)


def draw_molecule(smiles: str, label: str) -> str | None:
    """A molecule as SVG on white, or ``None`` where RDKit is missing or cannot draw it."""
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
    return plots.inline(canvas.GetDrawingText(), *_SIZE, label)
