"""Backbones with a cut, and the default network for molecules."""

from typing import TYPE_CHECKING

from gduq import lazy_names

if TYPE_CHECKING:
    from gduq.nn.bond_gnn import BondGNN
    from gduq.nn.gnn import GNN

__all__ = ["GNN", "BondGNN"]

# settings can be checked without torch
__getattr__, __dir__ = lazy_names(__name__, {"gduq.nn.bond_gnn": "BondGNN", "gduq.nn.gnn": "GNN"})
