"""Corrupted copies of rows, for calibrators that learn from them too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from gduq.calibration import METHODS
from gduq.data.view import View
from gduq.prediction import Prediction, predict
from gduq.shifts import edge_drop, edge_rewire, feature_mask, feature_noise

__all__ = ["VARIANTS", "changes_of", "corrupted_predictions", "corrupted_views"]

VARIANTS = {f"{name}+corrupted": name for name, cls in METHODS.items() if cls.takes_copies}
_SEVERITIES = (3, 5)


def changes_of(view: View) -> list[Callable[..., View]]:
    """The corruptions of `gduq.shifts` that fit the graphs: only floats can be noised or masked."""
    x = view.graphs[0].get("x")
    on_features = isinstance(x, Tensor) and x.is_floating_point()
    return [edge_drop, edge_rewire, *([feature_noise, feature_mask] if on_features else [])]


def corrupted_views(view: View, seed: int = 0) -> Iterator[View]:
    """The rows of a view, spoilt in every way of `gduq.shifts`, at severities 3 and 5.

    Features are noised and masked (where the graphs have any), edges dropped and rewired. Rows and
    labels stay; positional encodings stay what they were.

    Args:
        view: The rows; of a node task the whole graph is spoilt.
        seed: Of the first copy; each has its own.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> ring = torch.arange(20)
        >>> graph = Data(x=torch.ones(20, 3), edge_index=torch.stack([ring, ring.roll(1)]), y=ring)
        >>> [len(copy) for copy in corrupted_views(View(graph, rows=ring < 7))]
        [7, 7, 7, 7, 7, 7, 7, 7]
    """
    for change in changes_of(view):
        for severity in _SEVERITIES:
            yield change(view, severity, seed)
            seed += 1


def corrupted_predictions(
    model: nn.Module,
    view: View,
    batch_size: int | None = None,
    seed: int = 0,
    features: bool = False,
) -> list[Prediction]:
    """What a model says of every copy of `corrupted_views`, row by row as of the view itself."""
    copies = corrupted_views(view, seed)
    return [predict(model, c, batch_size=batch_size, features=features).to("cpu") for c in copies]
