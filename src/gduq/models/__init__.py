"""Models beside the anchored one, with the same face: plain networks and other methods."""

from gduq.models.ensemble import Ensemble, MCDropout, Stack
from gduq.models.laplace import LastLayerLaplace
from gduq.models.network import Network, as_predictor
from gduq.models.on_trunk import HeadEnsemble, Neighbours

__all__ = ["Ensemble", "HeadEnsemble", "LastLayerLaplace", "MCDropout", "Neighbours", "Network",
           "Stack", "as_predictor"]  # fmt: skip
