"""Backbones with a cut, and the default network for molecules."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gduq.nn.bond_gnn import BondGNN
    from gduq.nn.gnn import GNN

# Imported on first use: settings can be checked without torch.
_HOME = {"BondGNN": "bond_gnn", "GNN": "gnn"}

__all__ = ["GNN", "BondGNN"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gduq.nn' has no attribute {name!r}")
    value = getattr(import_module(f"gduq.nn.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
