"""Tables of numbers that are not from training: parameters, Gaussians of anchors, spectra, times.

Each function makes the rows of one job, as `gduq_reproduction.scoring.work_rows` does for methods.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import norm
from torch import Tensor, nn
from torch.func import jacrev

import gduq
from gduq import InputError
from gduq.calibration import TemperatureScaling
from gduq_reproduction.cells import Cell
from gduq_reproduction.methods import Work

__all__ = ["SHIFTED", "count", "draw_gaussians", "draw_spectra", "gaussian_rows", "gin",
           "grid", "kernel", "ntk_rows", "parameter_rows", "runtime_rows", "spectrum"]  # fmt: skip

Row = dict[str, Any]


# -- parameters ----------------------------------------------------------------------------------

# Width of the features and number of outputs; SST2 has one logit.
_WIDTHS = {
    "cmnist": (3, 10),
    "motif-lpe": (4, 3),
    "sst2": (768, 1),
    "cora": (8710, 70),
    "webkb": (1703, 5),
    "cbas": (4, 4),
}


def count(model: nn.Module) -> int:
    """Parameters that are trained.

    Example:
        >>> count(nn.Linear(3, 2))
        8
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def parameter_rows(work: Work, job: str) -> Iterator[Row]:
    """Counts of all variants, without any data; hidden layers of networks with a virtual node are
    counted without it too, as the paper does."""
    cell = work.cell
    channels, outputs = _WIDTHS[cell.data.split("/")[0]]
    options: dict[str, Any] = {"positional": None, "dropout": 0.0, "degree": None}
    net = cell.network_of(channels, outputs, **options)
    counts = {"plain": count(net), "NFA": _anchored(net, "input")}
    if cell.task == "graph":
        bare = cell.network_of(channels, outputs, **options, virtual_node=False)
        for layer in range(1, cell.num_layers):
            counts[f"L{layer}"] = _anchored(bare, layer)
            if cell.virtual_node:
                counts[f"L{layer}, with the virtual node"] = _anchored(net, layer)
        counts["readout"] = _anchored(net, "readout")
    for method, number in counts.items():
        yield {"method": method, "calibration": "none", "split": "", "parameters": number}


def _anchored(net: gduq.nn.GNN, at: int | str) -> int:
    return count(gduq.anchor(net, at=at, recipe="paper"))


# -- the Gaussians that input anchors are drawn from -----------------------------------------------


def gaussian_rows(work: Work, job: str) -> Iterator[Row]:
    """Smallest, largest, mean and deviation over dimensions of the means and of the deviations."""
    rows = feature_rows(work)
    numbers = {
        f"{name}_{of}": value
        for of, values in (("mu", rows.mean(dim=0)), ("std", rows.std(dim=0)))
        for name, value in (
            ("min", float(values.min())),
            ("max", float(values.max())),
            ("mean", float(values.mean())),
            ("std", float(values.std()) if len(values) > 1 else 0.0),
        )
    }
    yield {"method": "plain", "calibration": "none", "split": "train", **numbers}


def feature_rows(work: Work) -> Tensor:
    """Features ``[n, d]`` of training nodes, or their means over training graphs, as the paper's
    figures have them; anchors of graph tasks are drawn from rows of nodes."""
    view, parts = work.splits.train, []
    for graph in view.batches():
        x = graph.x if graph.get("x") is not None else graph.pe
        x = x.to_dense() if x.layout != torch.strided else x
        if view.rows is not None:
            parts.append(x[view.rows])
            continue
        sums = x.new_zeros(graph.num_graphs, x.size(1)).index_add_(0, graph.batch, x)
        parts.append(sums / torch.bincount(graph.batch)[:, None])
    return torch.cat(parts).double()


# -- the empirical neural tangent kernel -----------------------------------------------------------

# T copies of a grid graph differ in a phase θ_t = 2πt/T: node v of graph t has the features
# (cos(θ_t + φ_v), sin(θ_t + φ_v)) with a φ_v of its position. With the gradient J_t of a GIN's
# answer to graph t, the kernel is K_st = <J_s, J_t>. A constant shift c at a layer turns its input
# h into h - c, as an anchor does.
LAYERS = 4
SHIFTS = (0.0, 0.5, 1.0, 2.0)
SHIFTED = ("input", "layer 1", "layer 2", "layer 3")
_LOW = 2  # frequencies up to this one count as low
Params = list[tuple[Tensor, Tensor]]


def ntk_rows(work: Work, job: str) -> Iterator[Row]:
    """How low-frequent spectra are under shifts at a layer, and how far from the unshifted one."""
    every = spectra(work, SHIFTED.index(job))
    for c, found in zip(SHIFTS, every, strict=True):
        row: Row = {"method": f"shift at {job}", "calibration": f"shift {c:g}", "split": ""}
        row["low_share"] = float(found[: _LOW + 1].sum())
        yield {**row, "distance": 0.5 * float((found - every[0]).abs().sum())}


def spectra(work: Work, layer: int) -> list[Tensor]:
    """One per shift."""
    small = work.cell.hidden <= 64
    adjacency, x = grid(6 if small else 8, 64)
    generator = torch.Generator().manual_seed(work.seed)

    def draw(rows: int, columns: int) -> Tensor:
        drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        return drawn.mul((2.0 / rows) ** 0.5)

    widths = [2, *[work.cell.hidden] * LAYERS]
    params = [(draw(a, b), draw(b, b)) for a, b in pairwise(widths)]
    params.append((draw(widths[-1], 1), torch.zeros(1, dtype=torch.float64)))
    return [spectrum(kernel(params, x, adjacency, layer, c)) for c in SHIFTS]


def grid(side: int, count: int) -> tuple[Tensor, Tensor]:
    """Adjacency ``[n, n]`` of a grid of ``side`` by ``side`` nodes, features ``[count, n, 2]``.

    Example:
        >>> adjacency, x = grid(3, 8)
        >>> adjacency.sum(dim=1).tolist(), x.shape
        ([2.0, 3.0, 2.0, 3.0, 4.0, 3.0, 2.0, 3.0, 2.0], torch.Size([8, 9, 2]))
    """
    position = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    adjacency = (torch.cdist(position, position, p=1) == 1).double()
    own = torch.pi * position.sum(dim=1) / (2 * side)
    angle = 2 * torch.pi * torch.arange(count)[:, None] / count + own
    return adjacency, torch.stack([angle.cos(), angle.sin()], dim=-1)


def gin(params: Params, x: Tensor, adjacency: Tensor, layer: int, shift: float) -> Tensor:
    """Answers ``[T]`` of a GIN (sum of neighbours and self, two-layer maps, mean readout)."""
    h = x
    for i, (first, second) in enumerate(params[:-1]):
        h = h - shift if i == layer else h
        h = torch.relu(torch.relu((h + adjacency @ h) @ first) @ second)
    head, bias = params[-1]
    return (h.mean(dim=1) @ head + bias).squeeze(1)


def kernel(params: Params, x: Tensor, adjacency: Tensor, layer: int, shift: float) -> Tensor:
    """The empirical NTK ``[T, T]``."""
    jacobian = jacrev(gin)(params, x, adjacency, layer, shift)
    flat: Tensor = torch.cat([part.flatten(1) for pair in jacobian for part in pair], dim=1)
    return flat @ flat.T


def spectrum(k: Tensor) -> Tensor:
    r"""Shares of the kernel's energy at frequencies 0 to T/2 of the phase,
    :math:`\hat K_k = \frac{1}{T^2} \sum_{s,t} e^{-2\pi i k (s-t)/T} K_{st}`.

    Example:
        >>> spectrum(torch.ones(4, 4, dtype=torch.float64))  # constant: all at frequency 0
        tensor([1., 0., 0.], dtype=torch.float64)
    """
    size = k.size(0)
    both = torch.fft.fft(torch.fft.ifft(k.to(torch.complex128), dim=1), dim=0)
    energy = torch.diagonal(both).real.clamp_min(0.0)
    half = energy[: size // 2 + 1].clone()
    half[1 : (size + 1) // 2] *= 2  # k and -k
    return half / half.sum()


# -- running times ---------------------------------------------------------------------------------

_EPOCHS = {"graph": 4, "node": 21}  # the first is a warm-up


def runtime_rows(work: Work, job: str) -> Iterator[Row]:
    """Seconds of an epoch and of a prediction, every method beside the plain network in one
    process, and ratios to it."""
    epochs, test = _EPOCHS[work.cell.task], work.splits.ood_test
    plain = work.cell.network(work.splits, 0)
    found: dict[tuple[str, str], tuple[float, float]] = {}

    def measured(method: str, model: nn.Module, members: int = 1) -> None:
        history = gduq.fit(
            model, work.splits.train, work.views["id_val"], epochs=epochs, calibrate=None,
            lr=work.cell.lr, batch_size=work.cell.batch_size, progress=False,
        )  # fmt: skip
        seconds = [record.seconds for record in history.records[1:]]
        predicting = _fastest(lambda: gduq.predict(model, test, novelty=False))
        found[method, "none"] = statistics.median(seconds) * members, predicting * members

    measured("plain", plain)
    measured("plain", plain)  # the machine is warm now
    epoch, predicting = found["plain", "none"]
    found["ensemble of 3", "none"] = 3 * epoch, 3 * predicting
    p = gduq.predict(plain, work.views["id_val"])
    fitting = _fastest(lambda: TemperatureScaling().fit(p))
    found["plain", "validation"] = epoch, predicting + fitting
    for method, at in (("L1", 1), ("L2", 2), ("readout", "readout"), ("pretrained", "readout")):
        options: dict[str, Any] = {"freeze": method == "pretrained", "like": work.like}
        measured(method, gduq.anchor(plain, at=at, recipe="paper", **options))
    for (method, calibration), (epoch, predicting) in found.items():
        row: Row = {"method": method, "calibration": calibration, "split": ""}
        row |= {"epoch_seconds": epoch, "predict_seconds": predicting}
        first = found["plain", "none"]
        row |= {"epoch_ratio": epoch / first[0], "predict_ratio": predicting / first[1]}
        yield row


def _fastest(job: Callable[[], Any]) -> float:
    found = []
    for _ in range(5):
        start = time.perf_counter()
        job()
        found.append(time.perf_counter() - start)
    return min(found)


# -- pictures --------------------------------------------------------------------------------------


def draw_gaussians(cells: Sequence[Cell], path: Path) -> None:
    """Histograms of the first four features, a line a dataset, beside the fitted Gaussians."""
    figure = Figure(figsize=(12, 2.2 * len(cells)), layout="constrained")
    for line, cell in zip(figure.subplots(len(cells), 4, squeeze=False), cells, strict=True):
        try:
            rows = feature_rows(Work(cell, 0)).numpy()
        except InputError:  # whose raw files or extras are not there
            rows = np.zeros((0, 0))
        for i, axis in enumerate(line):
            axis.set_visible(i < rows.shape[1])
            if i < rows.shape[1]:
                _, edges, _ = axis.hist(rows[:, i], bins=40, density=True, color="#9db4c8")
                std = max(float(rows[:, i].std()), 1e-3)
                axis.plot(edges, norm.pdf(edges, rows[:, i].mean(), std), color="#b33")
                axis.set_title(f"{cell.data}, {i + 1}", fontsize=7)
    figure.savefig(path, dpi=110)


def draw_spectra(cells: Sequence[Cell], path: Path) -> None:
    """Spectra of the first seed, one plot a layer, the unshifted one in black."""
    figure = Figure(figsize=(3 * LAYERS, 2.8), layout="constrained")
    for layer, axis in enumerate(figure.subplots(1, LAYERS)):
        for c, values in zip(SHIFTS, spectra(Work(cells[0], 0), layer), strict=True):
            colour: dict[str, Any] = {"color": "black"} if c == 0 else {}
            axis.semilogy(values.clamp_min(1e-12), label=f"shift {c:g}", **colour)
        axis.set_title(f"shift at {SHIFTED[layer]}", fontsize=9)
        axis.set_xlabel("frequency", fontsize=8)
    figure.axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=110)
