"""Training: `fit` for any model, `choose` for the best mixture of several."""

from gduq.training.choosing import choose
from gduq.training.fitting import fit
from gduq.training.loop import History

__all__ = ["History", "choose", "fit"]
