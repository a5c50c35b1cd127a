"""``gduq train`` of a user's own data: what is learned, how far to trust it, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gduq.cli.base import print_json, print_rows, say, status
from gduq.cli.score_rows import ranked_class, told_of

if TYPE_CHECKING:
    from gduq.report.verdict import Verdict
    from gduq.runs.config import RunConfig
    from gduq.runs.folder import RunFolder

__all__ = ["train_own"]

_SHOWN = 6  # names of targets and of classes
_ALONE = (
    "It has one hypothesis: epistemic is 0 in every row, and hypotheses never disagree. Novelty "
    "says what is unlike the training data; --set method.budget=1.5, or --method ensemble, lets "
    "more hypotheses compete."
)


def train_own(wanted: RunConfig, root: Path, logger: str | None, as_json: bool) -> None:
    """Read, train, judge, report, and say how far to trust it."""
    from gduq.runs.build import own_of
    from gduq.runs.run import prepare, run

    with status(f"Reading {wanted.data.name}", as_json):
        own = own_of(wanted)
    assert own is not None
    path = prepare(wanted, root)
    if not as_json:
        _describe(wanted, own, path)
    folder = run(wanted, root, progress=not as_json, logger=logger)
    with status("Writing the report", as_json):
        said, page = _report(folder)
    p = folder.predictions()["id_val"]
    scores, alone = told_of(folder.evaluation()), p.num_samples == 1 and not p.epistemic.any()
    if as_json:
        content = {"run": folder.path, "hash": wanted.hash, "kind": own.kind, "report": page}
        content |= {"rejected": len(own.rejects), "verdict": said.headline}
        print_json(content | {"one_hypothesis": bool(alone), "scores": scores})
    else:
        print_rows(scores)
        if ranked := ranked_class(own.splits.class_names):
            say(ranked)
        say("")
        say(said.headline)
        if said.advice is not None:
            say(f"What to do: {said.advice.text}")
        if alone:
            say(_ALONE)
        say(f"Report: {page}\nNext:")
        for command in _next(folder, said, own.splits.train.task):
            say(f"  {command}")
    if own.rejects:
        raise typer.Exit(3)


def _describe(wanted: RunConfig, own: Any, path: Path) -> None:
    """What is learned, what was left out, and how the rows are cut."""
    splits, names = own.splits, own.splits.target_names or ("y",)
    units = splits.units or ("",) * len(names)
    learned = [f"{n} [{u}]" if u else n for n, u in zip(names, units, strict=True)]
    classes = f" ({_first(splits.class_names)})" if splits.class_names else ""
    say(f"{splits.description} To learn: {_first(learned)}, as {own.kind}{classes}.")
    if own.rejects:
        listed = path / "rejects.csv"
        say(f"Note: left out, see {listed}; the first: {own.rejects[0][1]}", err=True)
    for line in own.cut:
        say(f"  {line}")


def _first(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _report(folder: RunFolder) -> tuple[Verdict, Path]:
    """The verdict, and the page in the run's folder."""
    from gduq.report import subjects_from_runs, write
    from gduq.report.verdict import verdict

    subjects = subjects_from_runs([folder])
    page = folder.path / "report.html"
    metrics = folder.path / "metrics.json"
    if not page.is_file() or page.stat().st_mtime < metrics.stat().st_mtime:
        command = shlex.join(["gduq", "report", str(folder.path), "-o", "report.html"])
        write(subjects, page, "html", reproduce=command)
    return verdict(subjects), page


def _next(folder: RunFolder, said: Verdict, rows: str) -> Iterable[str]:
    """What to type next."""
    run = shlex.quote(str(folder.path))
    new = "new.csv" if folder.config.data.smiles is not None else "new.safetensors"
    advised = said.advice.command if said.advice is not None else ""
    predict = f"gduq predict {run} {new} -o answers.csv" if rows == "graph" else ""
    report = f"gduq report {run} -o report.html"
    return dict.fromkeys(command for command in (advised, predict, report) if command)
