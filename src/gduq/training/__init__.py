"""Training: `fit` for any model, `choose` for the best mixture of several."""

from gduq.training.choosing import choose
from gduq.training.fitting import fit
from gduq.training.history import Epoch, History

__all__ = ["Epoch", "History", "choose", "fit"]
