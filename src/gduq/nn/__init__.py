"""Backbones with a cut."""

from gduq.nn.gnn import GNN

__all__ = ["GNN"]
