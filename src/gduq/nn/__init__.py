"""Backbones with a cut, and the default network for molecules."""

from gduq.nn.gnn import GNN
from gduq.nn.molecules import BondGNN

__all__ = ["GNN", "BondGNN"]
