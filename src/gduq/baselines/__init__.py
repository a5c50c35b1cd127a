"""Models beside the anchored one, with the same face: plain networks and other methods."""

from gduq.baselines.ensemble import Ensemble
from gduq.baselines.head_ensemble import HeadEnsemble
from gduq.baselines.laplace import LastLayerLaplace
from gduq.baselines.mc_dropout import MCDropout
from gduq.baselines.neighbours import Neighbours
from gduq.baselines.network import Network, as_predictor
from gduq.baselines.stack import Stack

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
