"""What a `GNN` can be made of, and which choices do not go together."""

from __future__ import annotations

from typing import Any, Literal, get_args

from gduq.errors import InputError

__all__ = ["ChainPoint", "Conv", "HeadKind", "Positional", "Readout", "Task", "check_settings",
           "check_sizes"]  # fmt: skip

Conv = Literal["gcn", "gin", "pna", "gated_gcn", "gps"]
Task = Literal["node", "graph"]
Readout = Literal["mean", "sum", "max", "attention"]
HeadKind = Literal["linear", "mlp"]
Positional = Literal["laplacian", "peg"]
ChainPoint = int | Literal["input", "readout"]

_CHOICES = {"conv": Conv, "task": Task, "readout": Readout, "head": HeadKind}


def check_sizes(config: dict[str, Any]) -> None:
    """Raise for widths below 1 and for a dropout that leaves nothing."""
    for name in ("hidden_channels", "out_channels", "num_layers"):
        if config[name] < 1:
            raise InputError(f"{name} >= 1", config[name])
    if not 0.0 <= config["dropout"] < 1.0:
        raise InputError("dropout in [0, 1)", config["dropout"])


def check_settings(config: dict[str, Any]) -> None:
    """Raise `InputError` for constructor arguments that make no network."""
    for name, kinds in _CHOICES.items():
        if config[name] not in get_args(kinds):
            raise InputError(f"{name} one of {', '.join(get_args(kinds))}", repr(config[name]))
    if config["positional"] not in (None, *get_args(Positional)):
        raise InputError("positional None, 'laplacian' or 'peg'", repr(config["positional"]))
    check_sizes(config)
    if config["in_channels"] < (config["positional"] != "laplacian"):
        raise InputError("in_channels >= 1 (0 only with positional='laplacian')", 0)
    if config["conv"] == "pna" and config["degree"] is None:
        raise InputError(
            "degree= for conv='pna', the histogram of training degrees",
            "none",
            "Compute it with torch_geometric.nn.PNAConv.get_degree_histogram(loader).",
        )
    if config["virtual_node"] and config["task"] == "node":
        raise InputError("virtual_node=True with task='graph' only", "task='node'")
    if config["virtual_node"] and config["num_layers"] < 3:
        raise InputError("num_layers >= 3 with a virtual node", config["num_layers"])
    if config["edge_channels"] and config["conv"] in ("gcn", "gin"):
        raise InputError("edge_channels with conv pna, gated_gcn or gps", repr(config["conv"]))
    if config["conv"] == "gps" and config["hidden_channels"] % config["heads"]:
        raise InputError(
            f"hidden_channels divisible by heads={config['heads']}", config["hidden_channels"]
        )
