"""Load on the HTTP service: its answers, errors and throughput against `gduq.predict`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from urllib.request import Request, urlopen

import torch
from torch_geometric.data import Data
from torch_geometric.utils import from_smiles

import gduq
from timing import Row, seconds

AT_A_TIME = 16
_ENDS = ("C", "CC", "CCC", "C(C)C", "C(=O)O", "C#N", "N", "OC", "SC", "F", "Cl", "Br", "C(F)(F)F")
_MIDDLES = ("CC", "CCO", "C(=O)N", "c1ccc(cc1)", "CN(C)", "C1CCN(CC1)", "S(=O)(=O)", "C=C")


def service(requests: int = 2000) -> Iterator[Row]:
    """For requests of one and of eight molecules: largest difference to predict, errors, and
    throughput of the service over that of `gduq.predict` one request at a time."""
    parts = product(_MIDDLES, _MIDDLES, _ENDS, _ENDS)  # some ten thousand different molecules
    texts = [f"C{a}{b}C({left}){right}" for a, b, left, right in parts]
    with tempfile.TemporaryDirectory() as folder:
        bundle = _bundle(Path(folder), texts)
        model, _ = gduq.load(bundle)
        for each in (1, 8):
            asked = [texts[i : i + each] for i in range(0, requests, each)]
            truth: list[torch.Tensor] = []
            alone = seconds(lambda asked=asked, truth=truth: truth.extend(
                gduq.predict(model, [_molecule(t) for t in few]).probs[:, 1] for few in asked
            ))  # fmt: skip
            found: list[torch.Tensor] = []
            with _serving(bundle) as port, ThreadPoolExecutor(AT_A_TIME) as pool:
                ask = lambda few, port=port: _ask(port, few)  # noqa: E731
                list(pool.map(ask, asked[: len(asked) // 10]))  # it is warm now
                taken = seconds(lambda: found.extend(pool.map(ask, asked)))  # noqa: B023
            apart = [(got - want).abs().max() for got, want in zip(found, truth, strict=True)
                     if len(got) == len(want)]  # fmt: skip
            what = f"{len(asked)} requests of {each}, {AT_A_TIME} at a time"
            yield f"{what}: largest difference to predict", float(max(apart)), ""
            yield f"{what}: errors", len(asked) - len(apart), ""
            note = f"{len(asked) * each / taken:.0f} molecules per second"
            yield f"{what}: throughput, service / predict", alone / taken, note


def _molecule(text: str) -> Data:
    """A graph made in this process by PyG, as the service makes it."""
    graph = from_smiles(text)
    graph.x, graph.edge_attr = graph.x.float(), graph.edge_attr.float()
    graph.y = torch.tensor([int(graph.num_nodes > 12)])
    return graph


def _bundle(folder: Path, texts: Sequence[str]) -> Path:
    """A network for molecules with an anchored head, trained on a few of them."""
    torch.manual_seed(0)
    graphs = [_molecule(text) for text in texts[:: len(texts) // 300]]
    net = gduq.nn.BondGNN(2)
    gduq.fit(net, graphs[::2], graphs[1::2], epochs=2, progress=False)
    model = gduq.anchor(net)
    gduq.fit(model, graphs[::2], graphs[1::2], progress=False)
    return gduq.save(model, folder / "model")


def _ask(port: int, texts: Sequence[str]) -> torch.Tensor:
    """Probabilities that the service answers; none where it does not."""
    body = json.dumps({"smiles": texts}).encode()
    request = Request(
        f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"}
    )
    try:
        with urlopen(request) as reply:
            return torch.tensor([answer["prob_1"] for answer in json.load(reply)["answers"]])
    except (OSError, KeyError, ValueError):
        return torch.empty(0)


@contextmanager
def _serving(bundle: Path) -> Iterator[int]:
    """Port of a service that runs by itself."""
    start = "from gduq.cli import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", start, "serve", str(bundle), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield int(re.search(r":(\d+) answers", process.stdout.readline())[1])  # type: ignore[index]
        finally:
            process.terminate()
