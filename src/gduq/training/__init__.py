"""Training: one call for every model, with crash-safe checkpoints."""

from gduq.training.fitting import fit
from gduq.training.history import Epoch, History

__all__ = ["Epoch", "History", "fit"]
