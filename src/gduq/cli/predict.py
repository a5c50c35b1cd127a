"""``gduq predict``, ``serve`` and ``export``: a saved model and graphs of one's own."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from gduq.cli.base import AsJson, Force, Output, Texts, app, echo, option, print_json, status, takes
from gduq.cli.request import Request, source_of
from gduq.data.outputs import TABLES, check_new, check_outputs, rejects_path
from gduq.serve.server import Limits

__all__ = ["export", "predict", "serve"]

_NO_REFERENCE = (
    "no conformal sets or intervals and no ood_rank, and abstain at most where a row is unlike the "
    "training data: the rest needs --calibration-data, or a run folder instead of a bundle."
)
_SHIFTED = (
    "these graphs differ from the calibration data (two-sample test, p = {:.1g}): conformal sets "
    "and intervals, and the share of rows that is answered, carry no guarantee here."
)
LogLevel: TypeAlias = Literal["critical", "error", "warning", "info", "debug"]
_ENOUGH = 20  # graphs that are looked at before an export


@app.command()
@takes(Request)
def predict(
    request: Request,
    graphs: Annotated[list[Path], typer.Argument(help="Tables or .safetensors.")],
    output: Output,
    keep: Annotated[Texts, option("Tables: a column to copy into the answers; repeat.")] = None,
    rejects: Annotated[Path | None, option("File of the graphs left out.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Answer for graphs in files, with uncertainty: .parquet, .csv or .jsonl.

    Writes one row per graph (or node): SMILES, the columns of --keep, the answer with its
    uncertainty, novelty (how unlike the training data it is), and why to abstain, if so. With
    --calibration-data, or a run folder, also conformal sets or intervals, the rank of the OOD
    score among the calibration data, and all reasons to abstain: unlike training data,
    hypotheses disagree, not sure enough.

    Memory does not grow with the number of graphs. Graphs that cannot be read are listed with the
    reason and left out; the exit code is then 3.
    """
    reads = [request.bundle, request.calibration_data, *graphs, source_of(request.bundle)]
    written = {"--output": output, "--rejects": rejects_path(output, rejects)}
    check_outputs(written, reads)
    check_new(output, force, TABLES)
    check_new(rejects, force)
    from gduq.serve.files import predict_files

    with status("Loading", as_json) as line:
        smiles = request.smiles_column(graphs)
        service = request.service()
        done = predict_files(
            service, graphs, output, rejects=rejects, smiles=smiles, keep=keep or (),
            ids=request.notes("ids"), batch_size=request.batch_size,
            notify=lambda count: line.update(f"Predicting: {count} graphs"),
        )  # fmt: skip
    notes = [_NO_REFERENCE] if service.reference is None else []
    if done.shift_pvalue is not None and done.shift_pvalue < 0.01:
        notes.append(_SHIFTED.format(done.shift_pvalue))
    if done.rejected:
        left = f"{done.rejected} graph(s) left out, listed in {done.rejects}"
        notes.append(f"{left}; the first: {done.first}")
    if as_json:
        print_json({**vars(done), "notes": notes})
    else:
        echo(f"{done.rows} row(s) for {done.graphs} graph(s) in {done.path}")
        if done.abstained is not None:
            reasons = [f"{count} {reason}" for reason, count in done.reasons.items()]
            echo(f"{done.abstained} row(s) to abstain from: {', '.join(reasons) or 'none'}")
        if units := service.target.get("units"):
            named = zip(service.target.get("names") or units, units, strict=False)
            echo(f"Units: {', '.join(f'{name} in {unit}' for name, unit in named if unit)}")
        for note in notes:
            echo(f"Note: {note}", err=True)
    if done.rejected:
        raise typer.Exit(3)


@app.command()
@takes(Request)
def serve(
    request: Request,
    host: Annotated[str, option("Address; 0.0.0.0 lets other machines ask.")] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 takes a free one.", min=0, max=65535)] = 8000,
    max_graphs: Annotated[int, option("Graphs in a request.", min=1)] = Limits.graphs,
    max_megabytes: Annotated[float, option("Of a request.", min=0.001)] = Limits.body / 2**20,
    max_waiting: Annotated[int, option("Requests at a time.", min=1)] = Limits.queue,
    max_seconds: Annotated[float, option("Time for a request.", min=0.1)] = Limits.seconds,
    api_key_file: Annotated[Path | None, option("A key per line; requests need one.")] = None,
    log_level: Annotated[LogLevel, option("What is logged on standard error.")] = "info",
    access_log: Annotated[bool, option("Whether each request has a line of log.")] = True,
) -> None:
    """Answer over HTTP: POST /predict takes SMILES or graphs, the page at / takes SMILES.

    Answers have the columns of `gduq predict`. Graphs that cannot be read are named with the
    reason, the others are answered. /model is the model card, /health and /ready say how it goes
    and whether rows are still like the training data, /metrics has numbers for Prometheus,
    /openapi.json describes all routes. Nothing in a request is ever run. Without --api-key-file
    anybody who reaches the address may ask.
    """
    from gduq.serve.server import listen, own_hosts, read_keys, run

    body, batch = int(max_megabytes * 2**20), request.batch_size
    limits = Limits(body=body, graphs=max_graphs, batch=batch, queue=max_waiting,
                    seconds=max_seconds)  # fmt: skip
    keys = [] if api_key_file is None else read_keys(api_key_file)
    with listen(host, port) as place:
        with status("Loading"):
            from gduq.serve.http import make_app, make_card

            service, name = request.service(), request.bundle.resolve().name
            digest = hashlib.sha256(request.file.read_bytes()).hexdigest()[:16]
            card = make_card(service, limits, request.info, name=name, digest=digest)
            hosts = own_hosts(place.getsockname()[0], host)  # a name may stand for loopback
            served = make_app(service, card, limits, hosts, keys)
        if hosts is None and not keys:
            echo(f"Note: any machine that can reach {host} may ask.", err=True)
        number = place.getsockname()[1]
        echo(f"http://{f'[{host}]' if ':' in host else host}:{number} answers; Ctrl-C ends it.")
        run(served, place, limits, log_level if access_log else "warning")
    echo("Stopped.", err=True)


@app.command()
@takes(Request, "bundle", "smiles", "net", "call")
def export(
    request: Request,
    output: Output,
    like: Annotated[Path, option("Graphs to answer for: a table or .safetensors.")],
    force: Force = False,
) -> None:
    """Write a model as one file that answers on its own: .pt2 or .onnx.

    A .pt2 file is read by torch.export.load, an .onnx file by onnxruntime; neither needs gduq.
    Hypotheses, calibration and novelty are in it, for graphs of any size. What it takes and gives,
    and how SMILES become inputs, it says itself.
    """
    reads = [request.bundle, like, source_of(request.bundle)]
    check_new(output, force, (".pt2", ".onnx"), reads)
    from gduq.bundle import export as export_model
    from gduq.data.files import stream
    from gduq.data.outputs import Reject

    with status("Exporting"):
        model, calibrator = request.load()
        rows = stream(like, smiles=request.smiles_column([like]))
        graphs = list(islice((row for _, row in rows if not isinstance(row, Reject)), _ENOUGH))
        export_model(model, output, graphs, calibrator, request.info.preprocessing)
    echo(f"{output} written, {output.stat().st_size / 1e6:.2f} MB")
