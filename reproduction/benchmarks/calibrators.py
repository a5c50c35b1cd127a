"""Speed of fitting every calibrator on 20 000 rows of 70 classes, against the usual ways.

``python reproduction/benchmarks/calibrators.py --rows 500 --classes 5`` tries a small size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data

from calibrator_rivals import AdamTask, Rival, libraries, plain, published, same_problem
from gduq.calibration import GATS, Calibrator
from gduq.metrics import nll
from gduq.prediction import Prediction
from timing import Row, medians, peak_memory, row

ADAM_STEPS = 2000
ADAM_BAR = 5.0
PATIENCE = 5.0  # seconds that Adam gets, where not all of its steps are taken
_SINGLE = 1e-5  # Adam works in single precision


def rows(
    rows: int = 20_000, classes: int = 70, repeats: int = 5, steps: int = ADAM_STEPS
) -> Iterator[Row]:
    """All rows; fitting times only, with one thread."""
    torch.set_num_threads(1)
    p = crooked_logits(rows, classes)
    graph, train = random_graph(rows), torch.arange(rows) < rows // 10
    for task in published(p):
        yield _against_adam(task, steps)
    yield from _races(lambda: libraries(p, max(rows // 10, 50)), repeats)
    yield from _races(lambda: plain(p, with_features(rows // 2, seed=1)), repeats)
    for task in same_problem(p, hypotheses(p), graph, train):
        yield _against_some_adam(task)
    yield from _memory(rows, classes)


# -- data --------------------------------------------------------------------------------------


def crooked_logits(rows: int, classes: int, seed: int = 0) -> Prediction:
    """Overconfident logits with favourite classes, and features of width 64."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(rows, classes, generator=generator)
    likely = torch.randint(classes, (rows, 1), generator=generator)
    truth.scatter_add_(1, likely, torch.full((rows, 1), 3.0))
    target = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
    bias = 0.5 * torch.randn(classes, generator=generator)
    features = with_features(rows, seed).features
    return Prediction(2.5 * truth + bias, target=target, features=features)


def with_features(rows: int, seed: int, width: int = 64) -> Prediction:
    """Rows of which only the representation matters."""
    generator = torch.Generator().manual_seed(100 + seed)
    return Prediction(torch.zeros(rows, 2), features=torch.randn(rows, width, generator=generator))


def hypotheses(p: Prediction, count: int = 10, seed: int = 0) -> Prediction:
    """Several hypotheses about each row, which differ more about some rows than about others."""
    generator = torch.Generator().manual_seed(seed)
    doubt = torch.rand(len(p), 1, generator=generator)
    noise = torch.randn(count, len(p), p.num_classes, generator=generator)
    return p.with_samples(p.logits + doubt * noise)


def random_graph(nodes: int, degree: int = 6, seed: int = 0) -> Data:
    """An undirected random graph."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(nodes, (2, nodes * degree // 2), generator=generator)
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=nodes)


# -- against Adam ------------------------------------------------------------------------------


def _against_adam(task: AdamTask, steps: int) -> Row:
    """The published way: full-batch Adam at learning rate 0.01, in single precision."""
    slow = _adam(task, steps)
    fast = medians({"fit": lambda: task.calibrator.fit(task.p)}, repeats=3)["fit"]
    ours = nll(task.calibrator(task.p))
    with torch.no_grad():
        theirs = float(task.nll())
    note = f"{fast:.2f} s; NLL {ours:.5f} against {theirs:.5f}"
    return _adam_row(f"{task.name}: faster than {steps} Adam steps, NLL no higher", slow / fast,
                     ours <= theirs + _SINGLE, note)  # fmt: skip


def _against_some_adam(task: AdamTask) -> Row:
    """The same problem, prior and all. Adam goes on for five times our time, or a few seconds."""
    start = time.perf_counter()
    task.calibrator.fit(task.p)
    fast = time.perf_counter() - start
    step = _adam(task, 3) / 3
    taken = max(10, min(ADAM_STEPS, int(min(ADAM_BAR * fast, PATIENCE) / step)))
    slow = _adam(task, taken) / taken * ADAM_STEPS
    with torch.no_grad():
        theirs, their_nll = float(task.objective()), float(task.nll())
        task.take(task.calibrator.state())
        ours, our_nll = float(task.objective()), float(task.nll())
    note = (
        f"{fast:.2f} s; {ours:.5f} against {theirs:.5f} after {taken} steps, whose time was "
        f"multiplied; NLL alone {our_nll:.5f} against {their_nll:.5f}"
    )
    title = f"{task.name}: faster than {ADAM_STEPS} Adam steps, NLL and prior no higher"
    return _adam_row(title, slow / fast, ours <= theirs + _SINGLE, note)


def _adam(task: AdamTask, steps: int) -> float:
    """Seconds of so many steps."""
    optimiser = torch.optim.Adam(task.parameters, lr=0.01)
    start = time.perf_counter()
    for _ in range(steps):
        optimiser.zero_grad()
        task.objective().backward()
        optimiser.step()
    return time.perf_counter() - start


def _adam_row(title: str, ratio: float, no_higher: bool, note: str) -> Row:
    return row(
        f"fitting {title}", ratio, f">= {ADAM_BAR:g}x", ratio >= ADAM_BAR and no_higher, note
    )


# -- against others ----------------------------------------------------------------------------


def _races(rivals: Callable[[], Iterator[Rival]], repeats: int) -> Iterator[Row]:
    try:
        for rival in rivals():
            yield _race(rival, repeats)
    except ImportError as error:
        yield row(f"fitting: {error.name}", float("nan"), "<= 1x", False, "not installed")


def _race(rival: Rival, repeats: int) -> Row:
    """Our time over theirs; those that take seconds are timed once."""
    start = time.perf_counter()
    found = rival.fit()
    first = time.perf_counter() - start
    if first > 2.0:
        fast = medians({"ours": _fit(rival.calibrator, rival.p)}, repeats=3)["ours"]
        seconds = {"ours": fast, "theirs": first}
    else:
        tasks = {"ours": _fit(rival.calibrator, rival.p), "theirs": rival.fit}
        seconds = medians(tasks, repeats)
    ours, theirs = nll(rival.calibrator(rival.p)), rival.nll(found)
    ratio = seconds["ours"] / seconds["theirs"]
    note = f"{seconds['ours']:.2f} s against {seconds['theirs']:.2f} s; NLL {ours:.5f} against "
    title = f"fitting {rival.method}: time of {rival.name}, NLL no higher"
    met = ratio <= 1 and ours <= theirs + 1e-4  # solvers stop where they please
    return row(title, ratio, "<= 1x", met, f"{note}{theirs:.5f}")


def _fit(calibrator: Calibrator, p: Prediction) -> Callable[[], object]:
    return lambda: calibrator.fit(p)


# -- memory ------------------------------------------------------------------------------------


def _memory(nodes: int, classes: int) -> Iterator[Row]:
    """Peaks in a process of its own, where nothing that was freed can be used again."""
    command = [
        sys.executable,
        __file__,
        "--memory",
        "--rows",
        str(nodes),
        "--classes",
        str(classes),
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peaks, square = json.loads(printed), nodes**2 / 2**30
    for name, bar in (("distances of GATS to training nodes", 0.1), ("fitting gats", 1.0)):
        used = peaks[name]
        title = f"{name}, {nodes} nodes: peak memory over that of an N x N matrix of bytes"
        if used is None:
            yield row(title, float("nan"), f"<= {bar:g}x", False, "unknown on this system")
        else:
            note = f"{used * 1024:.0f} MB against {square * 1024:.0f} MB"
            yield row(title, used / square, f"<= {bar:g}x", used <= bar * square, note)


def _peaks(nodes: int, classes: int) -> dict[str, float | None]:
    p, graph = crooked_logits(nodes, classes), random_graph(nodes)
    train = torch.arange(nodes) < nodes // 100
    gats = GATS(graph, train_rows=train)
    GATS(random_graph(50), train_rows=[0]).fit(crooked_logits(50, classes)[:50])  # libraries load
    edges: Tensor = graph.edge_index
    return {
        "distances of GATS to training nodes": peak_memory(lambda: gats._closeness(edges, nodes)),
        "fitting gats": peak_memory(lambda: gats.fit(p)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=70)
    parser.add_argument("--memory", action="store_true", help="print the peaks of GATS and end")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if chosen.memory:
        print(json.dumps(_peaks(chosen.rows, chosen.classes)))
        return
    for found in rows(chosen.rows, chosen.classes):
        mark = "ok " if found["met"] else "NOT"
        print(f"{mark} {found['ratio']:7.2f} {found['bar']:8} {found['row']} ({found['note']})")


if __name__ == "__main__":
    main()
