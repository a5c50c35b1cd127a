"""``gduq export``: a saved model as one file that runs without gduq."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from gduq.cli.base import AsJson, Force, Output, app, print_json, status, takes
from gduq.cli.request import Request, check_sources, source_of
from gduq.data.outputs import check_new

__all__ = ["export"]

_ENOUGH = 20  # graphs of a file that are looked at


@app.command()
@takes(Request, "bundle", "smiles", "net", "call")
def export(
    request: Request,
    output: Output,
    like: Annotated[
        Path,
        typer.Option(help="Graphs to answer for: a table, .safetensors, a TU folder."),
    ],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as one file that answers on its own: .pt2 or .onnx.

    A .pt2 file is read by torch.export.load, an .onnx file by onnxruntime; neither needs gduq.
    Hypotheses, calibration and novelty are in it, for graphs of any size. What it takes and gives,
    and how SMILES become inputs, it says itself.
    """
    request.check()
    check_sources([like])
    reads = [request.bundle, like, source_of(request.bundle)]
    check_new(output, force, (".pt2", ".onnx"), reads)
    from gduq.bundle import export as export_model
    from gduq.cli.answering import load_model, readable_graphs

    with status("Exporting", as_json):
        model, calibrator, info = load_model(request)
        graphs = list(islice(readable_graphs(like, request.smiles, request.bundle), _ENOUGH))
        export_model(model, output, graphs, calibrator, info.preprocessing)
    if as_json:
        print_json({"path": output, "bytes": output.stat().st_size})
    else:
        typer.echo(f"{output} written, {output.stat().st_size / 1e6:.2f} MB")
