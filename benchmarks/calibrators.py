"""Speed of fitting calibrators on 20 000 rows of 70 classes, against the usual ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data

from gduq.calibration import (
    GATS,
    CaGCN,
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    OrderInvariantCalibration,
    TemperatureScaling,
    VectorScaling,
)
from gduq.calibration.base import Calibrator, mean_logits
from gduq.calibration.order_invariant import _sort, _stretch
from gduq.metrics import distance, nll
from gduq.prediction import Prediction
from timing import Row, at_least, at_most, medians, peak_memory, row

ADAM_STEPS = 2000
ODIR = 5e-4


def rows(rows: int = 20_000, classes: int = 70, repeats: int = 5) -> Iterator[Row]:
    """All rows; fitting times only, with one thread."""
    torch.set_num_threads(1)
    p = crooked_logits(rows, classes)
    yield from _against_adam(p)
    yield from _against_libraries(p, repeats)
    yield from _networks(p)
    yield from _distances(rows, repeats)


def crooked_logits(rows: int, classes: int, seed: int = 0) -> Prediction:
    """Overconfident logits with favourite classes."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(rows, classes, generator=generator)
    likely = torch.randint(classes, (rows, 1), generator=generator)
    truth.scatter_add_(1, likely, torch.full((rows, 1), 3.0))
    target = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
    bias = 0.5 * torch.randn(classes, generator=generator)
    return Prediction(2.5 * truth + bias, target=target)


# -- against 2 000 Adam steps ----------------------------------------------------------------------


def _against_adam(p: Prediction) -> Iterator[Row]:
    """The published way: full-batch Adam at learning rate 0.01, in float32."""
    classes, logs = p.num_classes, p.logits.log_softmax(dim=1)
    heat = torch.ones(1)
    yield _adam_row(
        "temperature", TemperatureScaling(), p, [heat], lambda: p.logits / heat, lambda: 0.0
    )
    weight, bias = torch.ones(classes), torch.zeros(classes)
    yield _adam_row(
        "vector",
        VectorScaling(penalty=0.0),
        p,
        [weight, bias],
        lambda: p.logits * weight + bias,
        lambda: 0.0,
    )
    full, shift, off = torch.eye(classes), torch.zeros(classes), 1.0 - torch.eye(classes)
    yield _adam_row(
        "Dirichlet with ODIR",
        DirichletCalibration(penalty=ODIR),
        p,
        [full, shift],
        lambda: torch.addmm(shift, logs, full.T),
        lambda: (
            ODIR * ((full * off) ** 2).sum() / (classes * (classes - 1)) + ODIR * (shift**2).mean()
        ),
    )


def _adam_row(
    name: str,
    calibrator: Calibrator,
    p: Prediction,
    parameters: list[Tensor],
    forward: Callable[[], Tensor],
    penalty: Callable[[], Tensor | float],
) -> Row:
    for parameter in parameters:
        parameter.requires_grad_()

    def loss() -> Tensor:
        return F.cross_entropy(forward(), p.target) + penalty()

    slow = _adam(parameters, loss, ADAM_STEPS)
    with torch.no_grad():
        theirs = float(F.cross_entropy(forward().double(), p.target))
    fast = medians({"fit": lambda: calibrator.fit(p)}, repeats=3)["fit"]
    ours = nll(calibrator(p))
    note = f"{fast:.2f} s; NLL {ours:.5f} against Adam's {theirs:.5f}"
    met = slow / fast >= 5 and ours <= theirs + 1e-6
    title = f"fitting {name}: faster than {ADAM_STEPS} Adam steps, NLL no higher"
    return row(title, slow / fast, ">= 5x", met, note)


def _adam(parameters: list[Tensor], loss: Callable[[], Tensor], steps: int) -> float:
    """Seconds of so many steps."""
    optimiser = torch.optim.Adam(parameters, lr=0.01)
    start = time.perf_counter()
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    return time.perf_counter() - start


# -- against netcal and scikit-learn ---------------------------------------------------------------


def _against_libraries(p: Prediction, repeats: int) -> Iterator[Row]:
    from sklearn.calibration import _TemperatureScaling
    from sklearn.isotonic import IsotonicRegression
    from sklearn.linear_model import LogisticRegression

    probs, target = p.probs.double().numpy(), p.target.numpy()
    logits, hit = mean_logits(p).numpy(), np.eye(p.num_classes)[target].ravel()
    pairs: list[tuple[str, Calibrator, Callable[[], object]]] = [
        (
            "temperature: scikit-learn's temperature scaling",
            TemperatureScaling(),
            lambda: _TemperatureScaling().fit(logits, target),
        ),
        (
            "isotonic: scikit-learn's IsotonicRegression",
            IsotonicCalibration(),
            lambda: IsotonicRegression(out_of_bounds="clip").fit(probs.ravel(), hit),
        ),
        (
            "matrix: scikit-learn's LogisticRegression, 100 steps",
            MatrixScaling(penalty=0.0),
            lambda: LogisticRegression(C=np.inf, max_iter=100).fit(logits, target),
        ),
    ]
    try:
        from netcal.binning import HistogramBinning as NetcalBinning
        from netcal.scaling import TemperatureScaling as NetcalTemperature
    except ImportError:
        yield row("temperature, histogram: netcal", float("nan"), "<= 1x", False, "no netcal")
    else:
        pairs += [
            (
                "temperature: netcal's TemperatureScaling",
                TemperatureScaling(),
                lambda: NetcalTemperature().fit(probs, target),
            ),
            (
                "histogram: netcal's HistogramBinning",
                HistogramBinning(),
                lambda: NetcalBinning(bins=10).fit(probs, target),
            ),
        ]
    for name, calibrator, theirs in pairs:
        seconds = medians({"ours": _fit(calibrator, p), "theirs": theirs}, repeats)
        note = f"{seconds['ours']:.2f} s against {seconds['theirs']:.2f} s"
        yield at_most(f"fitting {name}", seconds["ours"] / seconds["theirs"], 1.0, note)


def _fit(calibrator: Calibrator, p: Prediction) -> Callable[[], object]:
    return lambda: calibrator.fit(p)


# -- small networks --------------------------------------------------------------------------------


def _networks(p: Prediction, timed: int = 40) -> Iterator[Row]:
    """Whole fits against 2 000 Adam steps of the same network, timed over a few steps."""
    graph = random_graph(len(p))
    train = torch.arange(len(p)) < len(p) // 10
    logits = mean_logits(p)
    ordered, order = _sort(logits)
    place = (order == p.target[:, None]).int().argmax(dim=1)
    invariant = OrderInvariantCalibration()
    network = invariant._network(p.num_classes)
    tasks: list[tuple[str, Calibrator, list[Tensor], Callable[[], Tensor]]] = [
        (
            "order-invariant",
            invariant,
            list(network.parameters()),
            lambda: F.cross_entropy(_stretch(ordered, network), place),
        )
    ]
    for calibrator in (CaGCN(graph), GATS(graph, train_rows=train)):
        tasks.append(_graph_task(calibrator, graph, logits, p.target))
    for name, calibrator, parameters, loss in tasks:
        slow = _adam(parameters, loss, timed) * ADAM_STEPS / timed
        start = time.perf_counter()
        calibrator.fit(p)
        fast = time.perf_counter() - start
        note = f"{fast:.1f} s; Adam's time from {timed} steps"
        yield at_least(f"fitting {name}: faster than 2000 Adam steps", slow / fast, 5.0, note)


def _graph_task(
    calibrator: CaGCN | GATS, graph: Data, logits: Tensor, target: Tensor
) -> tuple[str, Calibrator, list[Tensor], Callable[[], Tensor]]:
    network = calibrator._network(logits.size(1), neutral=False)
    inputs = calibrator._inputs(graph, logits)

    def loss() -> Tensor:
        return F.cross_entropy(logits / network(*inputs)[:, None], target)

    return type(calibrator).__name__, calibrator, list(network.parameters()), loss


def random_graph(nodes: int, degree: int = 6, seed: int = 0) -> Data:
    """An undirected random graph."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(nodes, (2, nodes * degree // 2), generator=generator)
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=nodes)


def _distances(nodes: int, repeats: int) -> Iterator[Row]:
    """Memory of the distances to training nodes, over that of an N x N matrix of bytes."""
    graph, train = random_graph(nodes), torch.arange(nodes) < nodes // 100
    seconds = medians({"search": lambda: distance(graph, train)}, repeats)["search"]
    used = peak_memory(lambda: distance(graph, train))
    name = f"distances to training nodes, {nodes} nodes: memory of an N x N matrix"
    if used is None:
        yield row(name, float("nan"), "<= 0.1x", False, "peak memory unknown on this system")
    else:
        yield at_most(name, used / (nodes**2 / 2**30), 0.1, f"{seconds * 1e3:.0f} ms")
