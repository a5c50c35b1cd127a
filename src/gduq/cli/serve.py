"""``gduq serve``: a saved model behind HTTP."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import app, status
from gduq.cli.predict import (
    Accuracy,
    Alpha,
    Bundle,
    Calibrator,
    Call,
    Coverage,
    Device,
    Known,
    MaxEpistemic,
    MaxNovelty,
    Network,
    PerClass,
    Score,
    SmilesColumn,
    Targets,
)
from gduq.cli.request import Request, bundle_of
from gduq.data.cells import printable
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.deploy.running import Limits

__all__ = ["serve"]

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines ask.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Batch = Annotated[int, typer.Option(min=1, help="Graphs in one pass of the model.")]
Graphs = Annotated[int, typer.Option(min=1, help="Graphs a request may hold.")]
Body = Annotated[float, typer.Option(min=0.001, help="Megabytes a request may hold.")]
Queue = Annotated[int, typer.Option(min=1, help="Requests that may wait; more are sent away.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Time for a request.")]


@app.command()
def serve(
    bundle: Bundle,
    host: Host = "127.0.0.1",
    port: Port = 8000,
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
    batch_size: Batch = 256,
    max_graphs: Graphs = 1000,
    max_megabytes: Body = 8.0,
    max_waiting: Queue = 256,
    max_seconds: Seconds = 30.0,
    device: Device = "cpu",
    net: Network = None,
    call: Call = None,
) -> None:
    """Answer over HTTP: POST /predict takes SMILES or graphs, the page at / takes SMILES.

    Answers have the columns of `gduq predict`. Graphs that cannot be read are named with the
    reason, the others are answered. /model is the model card, /health says how it goes, /docs
    describes all routes. Nothing in a request is ever run. There is no password: listen on other
    addresses than this machine's own behind something that has one.
    """
    from gduq.deploy.running import Limits, is_loopback, listen, own_hosts, run

    request = Request.of(locals()).check()
    _check_installed()
    limits = Limits(
        body=int(max_megabytes * 2**20),
        graphs=max_graphs,
        batch=batch_size,
        queue=max_waiting,
        seconds=max_seconds,
    )
    with listen(host, port) as place:
        with status("Loading"):
            served = _application(request, limits, own_hosts(host))
        if not is_loopback(host):
            typer.echo(f"Note: any machine that can reach {host} may ask.", err=True)
        run(served, place, limits, _say)
    typer.echo("Stopped.", err=True)


def _application(request: Request, limits: Limits, hosts: list[str] | None) -> Any:
    """Torch is imported from here on, which takes seconds."""
    from gduq.bundle import describe
    from gduq.cli.answering import make_service
    from gduq.deploy.http import make_app
    from gduq.deploy.pages import make_card

    service = make_service(request)
    for note in service.notes:
        typer.echo(printable(f"Note: {note}"), err=True)
    info = describe(bundle_of(request.bundle)[0])
    told = make_card(service, limits, info, request.bundle.resolve().name)
    return make_app(service, told, limits, hosts)


def _check_installed() -> None:
    for name in ("fastapi", "uvicorn"):
        if find_spec(name) is None:
            raise InputError(f"{name} to serve", "none", 'Install it: pip install "gduq[serve]"')


def _say(address: str) -> None:
    typer.echo(f"{address} answers; Ctrl-C ends it.")
