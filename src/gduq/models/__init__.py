"""Models beside the anchored one, with the same face: plain networks and other methods."""

from gduq.models.ensemble import Ensemble, Stack
from gduq.models.head_ensemble import HeadEnsemble
from gduq.models.laplace import LastLayerLaplace
from gduq.models.mc_dropout import MCDropout
from gduq.models.neighbours import Neighbours
from gduq.models.network import Network, as_predictor

__all__ = [
    "Ensemble",
    "HeadEnsemble",
    "LastLayerLaplace",
    "MCDropout",
    "Neighbours",
    "Network",
    "Stack",
    "as_predictor",
]
