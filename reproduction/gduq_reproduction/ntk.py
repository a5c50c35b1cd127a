r"""The empirical neural tangent kernel of a GIN on grid graphs, and its Fourier spectrum.

T copies of a grid graph differ in a phase :math:`\theta_t = 2\pi t/T`: node v of graph t has the
features :math:`(\cos(\theta_t + \phi_v), \sin(\theta_t + \phi_v))` with a :math:`\phi_v` of its
position. With the gradient :math:`J_t` of the network's answer to graph t, the kernel is
:math:`K_{st} = \langle J_s, J_t\rangle`, and its spectrum over the frequencies k of the phase

.. math:: \hat K_k = \tfrac{1}{T^2} \sum_{s,t} e^{-2\pi i k (s-t)/T} K_{st}.

A constant shift c at a layer turns its input h into h - c, as an anchor does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import jacrev

from gduq_reproduction.specs import PaperTable, ScaleName

__all__ = ["cells", "draw", "gin", "grid", "kernel", "make", "spectrum", "title"]

LAYERS = 4
SHIFTS = (0.0, 0.5, 1.0, 2.0)
_SIZES = {"smoke": (16, 3, 16), "small": (64, 6, 64), "paper": (64, 8, 256)}  # T, side, width
_SEEDS = {"smoke": 2, "small": 5, "paper": 10}
_LOW = 2  # frequencies up to this one count as low
Cell = tuple[int, int, int, int, int]  # layer, seed, T, side, width
Params = list[tuple[Tensor, Tensor]]


def cells(table: PaperTable, scale: ScaleName) -> Sequence[Cell]:
    """One a layer and seed; layer 0 is the input."""
    size = _SIZES[scale]
    return [(layer, seed, *size) for layer in range(LAYERS) for seed in range(_SEEDS[scale])]


def title(cell: Cell) -> str:
    return f"shift at {_place(cell[0])}, seed {cell[1]}"


def _place(layer: int) -> str:
    return "input" if layer == 0 else f"layer {layer}"


def make(cell: Cell) -> dict[str, Any]:
    """Spectra for every shift; how low-frequent they are, and how far from the unshifted one."""
    layer, seed, count, side, width = cell
    adjacency, x = grid(side, count)
    params = _params(seed, width)
    spectra = [spectrum(kernel(params, x, adjacency, layer, c)) for c in SHIFTS]
    numbers: list[tuple[dict[str, str], float]] = []
    for c, found in zip(SHIFTS, spectra, strict=True):
        key = {"dataset": "grid", "model": "gin", "variant": f"shift at {_place(layer)}"}
        key["calibrator"] = f"shift {c:g}"
        numbers.append(({**key, "metric": "low_share"}, float(found[: _LOW + 1].sum())))
        distance = 0.5 * float((found - spectra[0]).abs().sum())
        numbers.append(({**key, "metric": "distance"}, distance))
    data = {"layer": layer, "seed": seed, "spectra": [s.tolist() for s in spectra]}
    return {"numbers": numbers, "data": data}


def grid(side: int, count: int) -> tuple[Tensor, Tensor]:
    """Adjacency ``[n, n]`` of a grid of ``side`` by ``side`` nodes, features ``[count, n, 2]``.

    Example:
        >>> adjacency, x = grid(3, 8)
        >>> adjacency.sum(dim=1).tolist(), x.shape
        ([2.0, 3.0, 2.0, 3.0, 4.0, 3.0, 2.0, 3.0, 2.0], torch.Size([8, 9, 2]))
    """
    place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1)
    place = place.reshape(-1, 2).double()
    adjacency = (torch.cdist(place, place, p=1) == 1).double()
    own = torch.pi * place.sum(dim=1) / (2 * side)
    angle = 2 * torch.pi * torch.arange(count)[:, None] / count + own
    return adjacency, torch.stack([angle.cos(), angle.sin()], dim=-1)


def _params(seed: int, width: int) -> Params:
    """Weights of `LAYERS` two-layer maps and of the head, N(0, 2 / inputs)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int) -> Tensor:
        drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        return drawn.mul((2.0 / rows) ** 0.5)

    widths = [2, *[width] * LAYERS]
    layers = [(draw(a, b), draw(b, b)) for a, b in pairwise(widths)]
    return [*layers, (draw(width, 1), torch.zeros(1, dtype=torch.float64))]


def gin(params: Params, x: Tensor, adjacency: Tensor, layer: int, shift: float) -> Tensor:
    """Answers ``[T]`` of a GIN (sum of neighbours and self, two-layer maps, mean readout)."""
    h = x
    for i, (first, second) in enumerate(params[:-1]):
        h = h - shift if i == layer else h
        h = torch.relu((h + adjacency @ h) @ first) @ second
        h = torch.relu(h)
    head, bias = params[-1]
    return (h.mean(dim=1) @ head + bias).squeeze(1)


def kernel(params: Params, x: Tensor, adjacency: Tensor, layer: int, shift: float) -> Tensor:
    """The empirical NTK ``[T, T]``."""
    jacobian = jacrev(gin)(params, x, adjacency, layer, shift)
    flat: Tensor = torch.cat([part.flatten(1) for pair in jacobian for part in pair], dim=1)
    return flat @ flat.T


def spectrum(k: Tensor) -> Tensor:
    """Shares of the kernel's energy at frequencies 0 to T/2 of the phase.

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


def draw(root: Path, name: str, scale: str, data: Sequence[Any]) -> tuple[str, ...]:
    """Spectra of the first seed, one plot a layer, the unshifted one in black."""
    first = [content for content in data if content["seed"] == 0]
    if not first:
        return ()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(first), 2.8), layout="constrained")
    for axis, content in zip(figure.subplots(1, len(first), squeeze=False)[0], first, strict=True):
        for c, values in zip(SHIFTS, content["spectra"], strict=True):
            colour = {"color": "black"} if c == 0 else {}
            axis.semilogy([max(v, 1e-12) for v in values], label=f"shift {c:g}", **colour)
        axis.set_title(f"shift at {_place(content['layer'])}", fontsize=9)
        axis.set_xlabel("frequency", fontsize=8)
    figure.axes[0].legend(fontsize=7)
    path = root / "tables" / f"{name}-{scale}.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    return (path.name,)
