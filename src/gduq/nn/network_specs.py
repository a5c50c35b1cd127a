"""A network as JSON: gduq's own by their arguments, any other by the name of its class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from gduq.errors import InputError
from gduq.nn.bond_gnn import BondGNN
from gduq.nn.gnn import GNN

__all__ = ["AnySize", "class_name", "network_from", "network_spec"]

_OWN: dict[str, type[GNN | BondGNN]] = {"GNN": GNN, "BondGNN": BondGNN}


def network_spec(net: nn.Module) -> dict[str, Any]:
    """How a network is made again; exact types only, as a subclass may do anything."""
    if isinstance(net, (GNN, BondGNN)) and type(net) in _OWN.values():
        plain = {k: v.item() if hasattr(v, "item") else v for k, v in net.config.items()}
        return {"kind": type(net).__name__, "config": plain}
    return {"kind": "other", "class": class_name(net)}


def class_name(net: nn.Module) -> str:
    """The full name of a network's class; every traced network has a class of its own."""
    kind = GraphModule if isinstance(net, GraphModule) else type(net)
    return f"{kind.__module__}.{kind.__qualname__}"


def network_from(spec: Mapping[str, Any]) -> nn.Module:
    """A fresh network of gduq's own."""
    if spec["kind"] not in _OWN:
        raise InputError("a kind of network this gduq knows", repr(spec["kind"]), "Upgrade gduq.")
    return _OWN[spec["kind"]](**spec["config"])


class AnySize(nn.Module):
    """A module whose buffers take the size of what is loaded into them."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self._buffers.items():
            found = state_dict.get(prefix + name)
            if buffer is not None and found is not None and found.dim() == buffer.dim():
                setattr(self, name, torch.empty_like(found, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
