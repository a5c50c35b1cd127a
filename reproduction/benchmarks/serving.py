"""Load on the HTTP service: its answers, errors, memory, and throughput against `gduq.predict`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch
from torch_geometric.data import Data
from torch_geometric.utils import from_smiles

import gduq
from gduq.bundle import load
from timing import Row, at_least, at_most, row

REQUESTS, AT_A_TIME, TURNS = 20_000, 64, 5
_ENDS = ("C", "CC", "CCC", "C(C)C", "C(=O)O", "C#N", "N", "OC", "SC", "F", "Cl", "Br", "C(F)(F)F")
_MIDDLES = ("CC", "CCO", "C(=O)N", "c1ccc(cc1)", "CN(C)", "C1CCN(CC1)", "S(=O)(=O)", "C=C")


def molecules() -> list[str]:
    """Some ten thousand different molecules of 5 to 25 heavy atoms."""
    parts = product(_MIDDLES, _MIDDLES, _ENDS, _ENDS)
    return [f"C{a}{b}C({left}){right}" for a, b, left, right in parts]


def rows(requests: int = REQUESTS) -> Iterator[Row]:
    """What all answers, errors, memory and time come to, for requests of one and of 8 molecules."""
    texts = molecules()
    with tempfile.TemporaryDirectory() as folder:
        bundle = make_bundle(Path(folder), texts)
        truth = expected(bundle, texts)
        yield from _loaded(bundle, truth, requests, each=1)
        yield from _loaded(bundle, truth, requests // 8, each=8)


def _loaded(bundle: Path, truth: dict[str, float], requests: int, each: int) -> Iterator[Row]:
    """The service and `gduq.predict` in turns, so that a busy moment hits both."""
    model, _ = load(bundle)
    ratios, speeds = [], []
    with serving(bundle) as (port, process):
        asyncio.run(Load(port, truth, each).run(0, requests // 10))  # warm up
        warm, clients = memory(process), Load(port, truth, each)
        for turn in range(TURNS):
            first, last = (requests * t // TURNS for t in (turn, turn + 1))
            passes, start = health(port)["passes"], time.perf_counter()
            asyncio.run(clients.run(first, last))
            taken = time.perf_counter() - start
            batch = round((last - first) * each / (health(port)["passes"] - passes))
            texts = [text for i in range(first, last) for text in clients.texts_of(i)]
            alone = in_one_process(model, texts, batch)
            ratios.append(alone / taken)
            speeds.append((len(texts) / taken, len(texts) / alone))
        grown = memory(process) / warm
    what = f"{requests} requests of {each}, {AT_A_TIME} at a time"
    yield at_most(f"service, {what}: largest difference to predict", clients.apart, 1e-4)
    yield row(f"service, {what}: errors", clients.errors, "= 0", clients.errors == 0)
    yield at_most(f"service, {what}: memory at the end / at the start", grown, 1.05)
    middle = sorted(range(TURNS), key=ratios.__getitem__)[TURNS // 2]
    note = "{:.0f} molecules per second, predict {:.0f}".format(*speeds[middle])
    yield at_least(f"service, {what}: throughput / gduq.predict", ratios[middle], 0.7, note)


# -- the model -----------------------------------------------------------------------------------


def molecule(text: str) -> Data:
    """A graph made in this process by PyG, as the service makes it."""
    graph = from_smiles(text)
    graph.x, graph.edge_attr = graph.x.float(), graph.edge_attr.float()
    return graph


def make_bundle(folder: Path, texts: Sequence[str]) -> Path:
    """A network for molecules with an anchored head, trained on a few of them."""
    torch.manual_seed(0)
    graphs = [molecule(text) for text in texts[:: len(texts) // 300]]
    for graph in graphs:
        graph.y = torch.tensor([int(graph.num_nodes > 12)])
    train, val = graphs[::2], graphs[1::2]
    net = gduq.nn.BondGNN(2)
    gduq.fit(net, train, val, epochs=2, progress=False)
    model = gduq.anchor(net)
    gduq.fit(model, train, val, progress=False)
    return gduq.save(model, folder / "model")


def expected(bundle: Path, texts: Sequence[str]) -> dict[str, float]:
    """What `gduq.predict` says of every molecule."""
    model, _ = load(bundle)
    p = gduq.predict(model, [molecule(text) for text in texts])
    return dict(zip(texts, p.probs[:, 1].tolist(), strict=True))


def in_one_process(model: torch.nn.Module, texts: Sequence[str], batch: int) -> float:
    """Seconds from SMILES to predictions in batches as large as those of the service."""
    start = time.perf_counter()
    for first in range(0, len(texts), batch):
        gduq.predict(model, [molecule(text) for text in texts[first : first + batch]])
    return time.perf_counter() - start


# -- the service ---------------------------------------------------------------------------------


@contextmanager
def serving(bundle: Path) -> Iterator[tuple[int, int]]:
    """Port and process of a service that runs by itself."""
    start = "from gduq.cli import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", start, "serve", str(bundle), "--port", "0"]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    environment = {**os.environ, **threads}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+) answers", process.stdout.readline())
        assert found, "the service did not start"
        try:
            yield int(found[1]), process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def memory(process: int) -> float:
    """Megabytes that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def health(port: int) -> dict[str, Any]:
    """What the service has done so far."""
    with urlopen(f"http://127.0.0.1:{port}/health") as reply:
        found: dict[str, Any] = json.load(reply)
    return found


class Load:
    """Clients that ask one request after the other, each on a connection of its own.

    Attributes:
        apart: The largest difference of a probability to that of `gduq.predict`.
        errors: Requests that were not answered, or not in full.
    """

    def __init__(self, port: int, truth: dict[str, float], each: int) -> None:
        self.port, self.truth, self.each, self._texts = port, truth, each, list(truth)
        self.apart, self.errors = 0.0, 0

    def texts_of(self, i: int) -> list[str]:
        """The molecules of request ``i``."""
        return [self._texts[(i * self.each + j) % len(self._texts)] for j in range(self.each)]

    async def run(self, first: int, last: int) -> None:
        """Send the requests ``first`` to ``last``."""
        numbers = iter(range(first, last))
        await asyncio.gather(*(self._client(numbers) for _ in range(AT_A_TIME)))

    async def _client(self, numbers: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for i in numbers:
            texts = self.texts_of(i)
            body = json.dumps({"smiles": texts}).encode()
            head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            self._note(texts, *await _reply(reader))
        writer.close()
        await writer.wait_closed()

    def _note(self, texts: Sequence[str], status: int, content: bytes) -> None:
        answers = json.loads(content).get("answers", []) if status == 200 else []
        if [answer["smiles"] for answer in answers] != texts:
            self.errors += 1
            return
        for answer in answers:
            self.apart = max(self.apart, abs(answer["prob_1"] - self.truth[answer["smiles"]]))


async def _reply(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of an answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    assert length
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))
