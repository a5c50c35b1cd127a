"""``gduq export``: a saved model as one file that runs without gduq."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from gduq.cli.base import AsJson, app, print_json, status
from gduq.cli.predict import Bundle, Call, Network, SmilesColumn
from gduq.cli.replacing import check_replaced, source_of
from gduq.cli.request import Request, Told, bundle_of, check_bundle, check_sources, smiles_in
from gduq.errors import InputError

__all__ = ["export"]

_ENOUGH = 20  # graphs of a file that are looked at

Output = Annotated[Path, typer.Argument(help="The file to write, ending in .pt2 or .onnx.")]
Like = Annotated[
    Path,
    typer.Option(help="Graphs it is to answer for: a TU folder, a table of SMILES, .safetensors."),
]


@app.command()
def export(
    bundle: Bundle,
    output: Output,
    like: Like,
    smiles: SmilesColumn = None,
    net: Network = None,
    call: Call = None,
    as_json: AsJson = False,
) -> None:
    """Write a model as one file that answers on its own.

    A .pt2 file is read by torch.export.load, an .onnx file by onnxruntime; neither needs gduq.
    Hypotheses, calibration and novelty are in it, for graphs of any size. What it takes and gives,
    and how SMILES become inputs, it says itself.
    """
    from gduq.data.outputs import check_output, check_outputs

    check_bundle(bundle)
    check_outputs({"OUTPUT": output}, [bundle, like])
    check_output(output, (".pt2", ".onnx"))
    check_replaced(output, "export", reads=[source_of(bundle)])
    check_sources([like])
    from gduq.bundle import describe
    from gduq.bundle import export as export_model
    from gduq.cli.loading import load_model

    with status("Exporting", as_json):
        request = Request(bundle=bundle, smiles=smiles, net=net, call=call)
        notes = describe(bundle_of(bundle)[0]).preprocessing
        model, calibrator = load_model(request)
        if calibrator is not None:  # nothing of it would be in the file
            raise InputError(
                "a model that is calibrated by its own temperature",
                f"{bundle} with the calibrator {type(calibrator).__name__}",
                "Export the run it was made from; the temperature that `gduq train` fits is in it.",
            )
        export_model(model, output, _graphs(like, request, notes), notes)
    if as_json:
        print_json({"path": output, "bytes": output.stat().st_size})
    else:
        typer.echo(f"{output} written, {output.stat().st_size / 1e6:.2f} MB")


def _graphs(path: Path, request: Request, notes: Any) -> list[Any]:
    """A few graphs of a file, read as ``gduq predict`` reads it."""
    from gduq.data.files import Reject
    from gduq.deploy.places import Places

    smiles = smiles_in([path], request.smiles, Told.by(request.bundle))
    parts = Places.of([path], smiles, (), notes).read(path, 1)
    found = (item.graph for part in parts for item in part)
    return list(islice((graph for graph in found if not isinstance(graph, Reject)), _ENOUGH))
