"""``gduq predict`` and ``gduq points``: a saved model and graphs of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import AsJson, app, counted, print_json, print_rows, status
from gduq.cli.completion import ALL_CALIBRATORS, among
from gduq.cli.replacing import check_replaced, source_of
from gduq.cli.request import Request
from gduq.data.cells import printable
from gduq.data.outputs import check_output, check_outputs, rejects_path
from gduq.data.rejected_rows import RejectList
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.deploy.service import Service
    from gduq.deploy.stream import Served

__all__ = ["points", "predict"]

Network = Annotated[
    str | None,
    typer.Option(
        "--net",
        help="package.module:Name of a function that builds the network, for a bundle of a network "
        "that is not gduq's own.",
    ),
]
Call = Annotated[
    str | None,
    typer.Option(help="package.module:name of the function the model is called with, if any."),
]
SmilesColumn = Annotated[
    str | None,
    typer.Option("--smiles", help="Tables: the column of SMILES (default: as in training)."),
]


Bundle = Annotated[Path, typer.Argument(help="A bundle, or a run folder of `gduq train`.")]
Graphs = Annotated[
    list[Path], typer.Argument(help="TU folders, .csv or .tsv with SMILES, .safetensors.")
]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="File ending in .parquet, .csv or .jsonl.")
]
Known = Annotated[
    Path | None, typer.Option(help="Labelled graphs like those of training; sets the thresholds.")
]
Calibrator = Annotated[
    str | None,
    typer.Option(
        help="Fit this calibrator first, on one half of the calibration data.",
        autocompletion=among(ALL_CALIBRATORS),
    ),
]


def _inner(param: typer.CallbackParam, value: float) -> float:
    """A share that is neither none nor all."""
    if not 0 < value < 1:
        raise InputError(f"--{param.name} between 0 and 1", value)
    return value


def _share(param: typer.CallbackParam, value: float | None) -> float | None:
    """A share, or no wish."""
    if value is not None and not 0 < value <= 1:
        raise InputError(f"--{param.name} above 0 and at most 1", value)
    return value


def _limit(param: typer.CallbackParam, value: float) -> float:
    """A limit of what lies between 0 and 1."""
    if not 0 <= value <= 1:
        raise InputError(f"--{(param.name or '').replace('_', '-')} from 0 to 1", value)
    return value


Alpha = Annotated[
    float, typer.Option(callback=_inner, help="Accepted misses of conformal sets and intervals.")
]
Coverage = Annotated[
    float,
    typer.Option(callback=_share, help="Share of rows like the calibration data to be answered."),
]
Accuracy = Annotated[
    float | None,
    typer.Option(callback=_share, help="Accuracy of the answers, instead of --coverage."),
]
PerClass = Annotated[
    bool,
    typer.Option(
        "--per-class",
        help="Conformal sets hold every class, or yes and no of every label, that often: for rare "
        "ones.",
    ),
]
MaxNovelty = Annotated[
    float,
    typer.Option(callback=_limit, help="Rows above it are unlike training data; 1 for no limit."),
]
MaxEpistemic = Annotated[
    float,
    typer.Option(
        callback=_limit,
        help="Hypotheses disagree above this quantile of the calibration data; 1 for no limit.",
    ),
]
Score = Annotated[
    str | None,
    typer.Option(
        help="novelty, epistemic, mahalanobis or knn; for classes also msp, entropy, energy, "
        "spread, for labels entropy, for values std (default: novelty where the model has it)."
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="Tables: the columns of labels in the labelled data (default: as in training); repeat "
        "it, or give a pattern such as 'NR-*'.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="Tables: a column to copy into the answers. Repeat as needed."),
]
Rejects = Annotated[
    Path | None, typer.Option(help="File for graphs left out (default: OUTPUT.rejects.csv).")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Graphs in memory at a time.")]
Workers = Annotated[int, typer.Option(min=1, help="Files at a time, each in its own process.")]
Engine = Annotated[str, typer.Option(help="Of the workers: local or ray.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")]


@app.command()
def predict(
    bundle: Bundle,
    graphs: Graphs,
    output: Output,
    calibration_data: Known = None,
    calibrator: Calibrator = None,
    alpha: Alpha = 0.1,
    coverage: Coverage = 0.9,
    accuracy: Accuracy = None,
    per_class: PerClass = False,
    max_novelty: MaxNovelty = 0.99,
    max_epistemic: MaxEpistemic = 0.99,
    ood_score: Score = None,
    smiles: SmilesColumn = None,
    target: Targets = None,
    keep: Keep = None,
    rejects: Rejects = None,
    batch_size: BatchSize = 256,
    workers: Workers = 1,
    engine: Engine = "local",
    device: Device = "cpu",
    net: Network = None,
    call: Call = None,
    as_json: AsJson = False,
) -> None:
    """Answer for graphs in files, with uncertainty.

    Writes one row per graph (or node): SMILES, the columns of --keep, the answer with its
    uncertainty, novelty (how unlike the training data it is), and why to abstain, if so. With
    --calibration-data, or a run folder, also conformal sets or intervals, the rank of the OOD
    score among the calibration data, and all reasons to abstain: unlike training data,
    hypotheses disagree, ambiguous.

    Memory does not grow with the number of graphs. Graphs that cannot be read are listed with the
    reason and left out; the exit code is then 3.
    """
    request = Request.of(locals()).check(graphs)
    check_output(output)
    listed = rejects_path(output, rejects)
    reads = [bundle, calibration_data, *graphs, source_of(bundle)]
    check_outputs({"--output": output, "--rejects": listed}, reads)
    check_replaced(output, "predict")
    RejectList(listed)  # refuses a file that is none
    from gduq.cli.answering import serve

    with status("Loading", as_json) as line:
        done, service = serve(
            request, graphs, output, rejects, workers=workers, engine=engine, line=line
        )
    _report(done, service, as_json)


def _report(done: Served, service: Service, as_json: bool) -> None:
    notes = service.notes if service.reference is not None else [_NO_REFERENCE]
    if done.shift_pvalue is not None and done.shift_pvalue < 0.01:
        notes.append(_SHIFTED.format(done.shift_pvalue))
    if done.rejected:
        left = counted(done.rejected, "graph")
        notes.append(f"{left} left out, listed in {done.rejects}; the first: {done.first}")
    if as_json:
        print_json({**vars(done), "notes": notes})
    else:
        rows, graphs = counted(done.rows, "row"), counted(done.graphs, "graph")
        typer.echo(f"{rows} for {graphs} in {done.path}{_abstained(done)}")
        if done.units:
            units = [f"{name} in {unit}" for name, unit in done.units.items()]
            typer.echo(printable(f"Units: {', '.join(units)}"))
        for note in notes:
            typer.echo(printable(f"Note: {note}"), err=True)
    if done.rejected:
        raise typer.Exit(3)


def _abstained(done: Served) -> str:
    if done.abstained is None:
        return ""
    counted = ", ".join(f"{count} {reason}" for reason, count in done.reasons.items())
    return f", {done.abstained} of them to abstain from" + (f" ({counted})" if counted else "")


_NO_REFERENCE = (
    "no conformal sets or intervals and no ood_rank, and abstain at most where a row is unlike the "
    "training data: the rest needs labelled graphs. Pass --calibration-data, or a run folder "
    "instead of a bundle."
)
_SHIFTED = (
    "these graphs differ from the calibration data (two-sample test, p = {:.1g}): conformal sets "
    "and intervals carry no guarantee here, and the share of rows that is answered need not be "
    "that of --coverage."
)


@app.command()
def points(
    bundle: Annotated[
        Path | None, typer.Argument(help="A bundle or run folder; or pass --net.")
    ] = None,
    net: Network = None,
    call: Call = None,
    graph: Annotated[
        Path | None, typer.Option(help="A file or TU folder; its first graph is run once.")
    ] = None,
    smiles: SmilesColumn = None,
    as_json: AsJson = False,
) -> None:
    """Show where a network can be anchored: names for `at`, and the shape there."""
    if graph is None:
        raise InputError("--graph, a file with a graph the network takes", "none")
    from gduq.anchoring import cut_points
    from gduq.cli.answering import first_graph
    from gduq.cli.loading import load_network

    network, function = load_network(bundle, net, call)
    found = cut_points(network, first_graph(graph, smiles), function)
    rows: list[dict[str, Any]] = [
        {"at": at, "rows": rows, "width": width} for at, (rows, width) in found
    ]
    print_rows(rows, as_json)
