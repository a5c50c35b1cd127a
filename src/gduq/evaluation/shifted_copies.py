"""Predictions of shifted copies of rows, for calibrators that also learn from them."""

from __future__ import annotations

from torch import nn

from gduq.calibration import METHODS
from gduq.data.view import View
from gduq.prediction import Hypotheses, predict
from gduq.shifts.copies import shifted_copies

__all__ = ["VARIANTS", "corrupted_predictions"]

VARIANTS = {f"{name}+corrupted": name for name, cls in METHODS.items() if cls.takes_copies}


def corrupted_predictions(
    model: nn.Module,
    view: View,
    batch_size: int | None = None,
    seed: int = 0,
    features: bool = False,
) -> list[Hypotheses]:
    """What a model says of every copy of `gduq.shifts.copies.shifted_copies`.

    Args:
        model: As in `gduq.predict`.
        view: The rows; each prediction has them in the same order.
        batch_size: Graphs at a time.
        seed: Of the copies.
        features: Also keep representations.

    Example:
        >>> import torch
        >>> from gduq.nn import GNN
        >>> from torch_geometric.data import Data
        >>> ring = torch.arange(6)
        >>> graph = Data(x=torch.ones(6, 3), edge_index=torch.stack([ring, ring.roll(1)]), y=0)
        >>> said = corrupted_predictions(GNN(3, 4, 2, num_layers=2), View([graph] * 5))
        >>> len(said), len(said[0])
        (8, 5)
    """
    copies = shifted_copies(view, seed)
    return [predict(model, c, batch_size=batch_size, features=features).to("cpu") for c in copies]
