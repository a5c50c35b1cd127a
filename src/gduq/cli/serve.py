"""``gduq serve``: a saved model behind HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gduq.cli.base import app, echo, status, takes
from gduq.cli.request import Request, bundle_file
from gduq.serve.server import check_installed, listen, own_hosts, run
from gduq.serve.settings import Limits

__all__ = ["serve"]


@app.command()
@takes(Request)
def serve(
    request: Request,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines ask.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    max_graphs: Annotated[
        int, typer.Option(min=1, help="Graphs a request may hold.")
    ] = Limits.graphs,
    max_megabytes: Annotated[
        float, typer.Option(min=0.001, help="Megabytes a request may hold.")
    ] = Limits.body / 2**20,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Requests at a time; more are sent away.")
    ] = Limits.queue,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time for a request.")
    ] = Limits.seconds,
) -> None:
    """Answer over HTTP: POST /predict takes SMILES or graphs, the page at / takes SMILES.

    Answers have the columns of `gduq predict`. Graphs that cannot be read are named with the
    reason, the others are answered. /model is the model card, /health says how it goes, /docs
    describes all routes. Nothing in a request is ever run. There is no password: listen on other
    addresses than this machine's own behind something that has one.
    """
    request.check()
    check_installed("fastapi", "uvicorn")
    limits = Limits(
        body=int(max_megabytes * 2**20),
        graphs=max_graphs,
        batch=request.batch_size,
        queue=max_waiting,
        seconds=max_seconds,
    )
    with listen(host, port) as place:
        with status("Loading"):
            address = place.getsockname()[0]  # a name may stand for loopback
            hosts = own_hosts(address, host)
            served = _application(request, limits, hosts)
        if hosts is None:
            echo(f"Note: any machine that can reach {host} may ask.", err=True)
        run(served, place, limits, lambda address: echo(f"{address} answers; Ctrl-C ends it."))
    echo("Stopped.", err=True)


def _application(request: Request, limits: Limits, hosts: list[str] | None) -> Any:
    """Torch is imported from here on, which takes seconds."""
    from gduq.bundle import describe
    from gduq.cli.answering import make_service
    from gduq.serve.http import make_app, make_card

    service = make_service(request)
    for note in service.decisions.notes:
        echo(f"Note: {note}", err=True)
    info = describe(bundle_file(request.bundle))
    card = make_card(service, limits, info, request.bundle.resolve().name)
    return make_app(service, card, limits, hosts)
