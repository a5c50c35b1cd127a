"""The Gaussians that node feature anchors are drawn from, against the features themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gduq.data import View
from gduq.runs import build
from gduq_reproduction.specs import PaperTable, ScaleName, Setting

__all__ = ["cells", "draw", "make", "statistics", "title"]

Cell = tuple[Setting, ScaleName]
_SHOWN = 4  # dimensions with a histogram
_BINS = 40


def cells(table: PaperTable, scale: ScaleName) -> Sequence[Cell]:
    """One per dataset and shift."""
    return [(setting, scale) for setting in table.settings_at(scale)]


def title(cell: Cell) -> str:
    return cell[0].data


def make(cell: Cell) -> dict[str, Any]:
    """Statistics of means and deviations over dimensions, and histograms of the first few."""
    setting, scale = cell
    splits = build.splits_of(setting.config("vanilla", 0, scale))
    rows = _rows(splits.train)
    mean, std = rows.mean(dim=0), rows.std(dim=0)
    key = {"dataset": setting.dataset, "shift": setting.shift}
    found = {"mu": statistics(mean), "std": statistics(std)}
    numbers = [
        ({**key, "metric": f"{name}_{of}"}, value)
        for of, values in found.items()
        for name, value in values.items()
    ]
    histograms = [_histogram(rows[:, i], mean[i], std[i]) for i in range(min(_SHOWN, len(mean)))]
    return {"numbers": numbers, "data": {"name": setting.data, "dimensions": histograms}}


def statistics(values: Tensor) -> dict[str, float]:
    """Smallest, largest, mean and deviation over dimensions.

    Example:
        >>> statistics(torch.tensor([0.0, 1.0, 2.0]))
        {'min': 0.0, 'max': 2.0, 'mean': 1.0, 'std': 1.0}
    """
    spread = values.std().item() if len(values) > 1 else 0.0
    return {
        "min": values.min().item(),
        "max": values.max().item(),
        "mean": values.mean().item(),
        "std": spread,
    }


def _rows(view: View) -> Tensor:
    """Features ``[n, d]`` of training nodes, or their means over training graphs."""
    parts = []
    for graph in view.batches():
        x = graph.x if graph.get("x") is not None else graph.pe
        x = x.to_dense() if x.layout != torch.strided else x
        if view.rows is not None:
            parts.append(x[graph.row_mask])
            continue
        owner = graph.batch if graph.get("batch") is not None else x.new_zeros(len(x)).long()
        sums = x.new_zeros(int(owner.max()) + 1, x.size(1)).index_add_(0, owner, x)
        parts.append(sums / torch.bincount(owner)[:, None])
    return torch.cat(parts).double()


def _histogram(values: Tensor, mean: Tensor, std: Tensor) -> dict[str, Any]:
    """Density of the values, and of the fitted Gaussian at the bins' middles."""
    low, high = float(values.min()), float(values.max())
    high = high if high > low else low + 1.0
    counts = torch.histc(values, bins=_BINS, min=low, max=high)
    width = (high - low) / _BINS
    middles = low + width * (torch.arange(_BINS) + 0.5)
    z = (middles - mean) / std.clamp_min(1e-3)
    fitted = torch.exp(-0.5 * z * z) / (std.clamp_min(1e-3) * (2 * torch.pi) ** 0.5)
    return {
        "x": middles.tolist(),
        "density": (counts / (counts.sum() * width)).tolist(),
        "fitted": fitted.tolist(),
    }


def draw(root: Path, name: str, scale: str, data: Sequence[Any]) -> tuple[str, ...]:
    """One picture, a line of histograms a dataset."""
    if not data:
        return ()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * _SHOWN, 2.2 * len(data)), layout="constrained")
    axes = figure.subplots(len(data), _SHOWN, squeeze=False)
    for line, content in zip(axes, data, strict=True):
        for i, axis in enumerate(line):
            axis.set_visible(i < len(content["dimensions"]))
            if i < len(content["dimensions"]):
                _draw_one(axis, content["dimensions"][i], f"{content['name']}, {i + 1}")
    axes[0][0].legend(fontsize=7)
    path = root / "tables" / f"{name}-{scale}.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    return (path.name,)


def _draw_one(axis: Any, content: dict[str, Any], heading: str) -> None:
    width = content["x"][1] - content["x"][0]
    axis.bar(content["x"], content["density"], width, color="#9db4c8", label="features")
    axis.plot(content["x"], content["fitted"], color="#b33", label="fitted Gaussian")
    axis.set_title(heading, fontsize=7)
    axis.tick_params(labelsize=6)
