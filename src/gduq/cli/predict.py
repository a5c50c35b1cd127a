"""``gduq predict`` and ``gduq points``: a saved model and graphs of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gduq.cli.base import (
    AsJson,
    Force,
    Output,
    app,
    counted,
    echo,
    print_json,
    print_rows,
    status,
    takes,
)
from gduq.cli.request import Call, Network, Request, SmilesColumn, source_of
from gduq.data.outputs import TABLES, RejectList, check_new, check_outputs, rejects_path
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.serve.files import Served
    from gduq.serve.service import Service

__all__ = ["points", "predict"]

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
@takes(Request)
def predict(
    request: Request,
    graphs: Annotated[
        list[Path], typer.Argument(help=".csv or .tsv with SMILES, .safetensors, TU folders.")
    ],
    output: Output,
    keep: Annotated[
        list[str] | None, typer.Option(help="Tables: a column to copy into the answers; repeat.")
    ] = None,
    rejects: Annotated[
        Path | None, typer.Option(help="File for graphs left out (default: OUTPUT.rejects.csv).")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Answer for graphs in files, with uncertainty: .parquet, .csv or .jsonl.

    Writes one row per graph (or node): SMILES, the columns of --keep, the answer with its
    uncertainty, novelty (how unlike the training data it is), and why to abstain, if so. With
    --calibration-data, or a run folder, also conformal sets or intervals, the rank of the OOD
    score among the calibration data, and all reasons to abstain: unlike training data,
    hypotheses disagree, ambiguous.

    Memory does not grow with the number of graphs. Graphs that cannot be read are listed with the
    reason and left out; the exit code is then 3.
    """
    request.check(graphs, keep or ())
    listed = rejects_path(output, rejects)
    reads = [request.bundle, request.calibration_data, *graphs, source_of(request.bundle)]
    check_outputs({"--output": output, "--rejects": listed}, reads)
    check_new(output, force, TABLES)
    check_new(rejects, force)
    RejectList(listed)  # refuses a file that is none
    from gduq.cli.answering import predict_all

    with status("Loading", as_json) as line:
        done, service = predict_all(request, graphs, output, rejects, keep or (), line)
    _report(done, service, as_json)


def _report(done: Served, service: Service, as_json: bool) -> None:
    notes = service.decisions.notes if service.reference is not None else [_NO_REFERENCE]
    if done.shift_pvalue is not None and done.shift_pvalue < 0.01:
        notes.append(_SHIFTED.format(done.shift_pvalue))
    if done.rejected:
        left = counted(done.rejected, "graph")
        notes.append(f"{left} left out, listed in {done.rejects}; the first: {done.first}")
    if as_json:
        print_json({**vars(done), "notes": notes})
    else:
        rows, graphs = counted(done.rows, "row"), counted(done.graphs, "graph")
        reasons = ", ".join(f"{count} {reason}" for reason, count in done.reasons.items())
        why = f" ({reasons})" if reasons else ""
        abstained = "" if done.abstained is None else f", {done.abstained} of them to abstain from"
        echo(f"{rows} for {graphs} in {done.path}{abstained}{why}")
        if done.units:
            echo(f"Units: {', '.join(f'{name} in {unit}' for name, unit in done.units.items())}")
        for note in notes:
            echo(f"Note: {note}", err=True)
    if done.rejected:
        raise typer.Exit(3)


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
    from gduq.cli.answering import load_network, readable_graphs

    network, function = load_network(bundle, net, call)
    first = next(readable_graphs(graph, smiles), None)
    if first is None:
        raise InputError(f"at least one graph in {graph}", "none")
    found = cut_points(network, first, function)
    print_rows([{"at": at, "rows": rows, "width": width} for at, (rows, width) in found], as_json)
