"""What a `GNN` can be made of, and which choices do not go together."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from gduq.errors import InputError, check_int, one_of

__all__ = ["ChainPoint", "Config", "Conv", "HeadKind", "Positional", "Readout", "Task",
           "check_settings", "check_sizes"]  # fmt: skip

Conv = Literal["gcn", "gin", "pna", "gated_gcn", "gps"]
Task = Literal["node", "graph"]
Readout = Literal["mean", "sum", "max", "attention"]
HeadKind = Literal["linear", "mlp"]
Positional = Literal["laplacian"]
ChainPoint = int | Literal["input", "readout"]
Config: TypeAlias = dict[str, Any]  # the arguments of a network

_CHOICES = {"conv": Conv, "task": Task, "readout": Readout, "head": HeadKind}


def check_sizes(config: Config) -> None:
    """Raise for widths below 1 and for a dropout that leaves nothing."""
    for name in ("hidden_channels", "out_channels", "num_layers"):
        check_int(name, config[name], 1)
    if not 0.0 <= config["dropout"] < 1.0:
        raise InputError("dropout in [0, 1)", config["dropout"])


def check_settings(config: Config) -> None:
    """Raise `InputError` for constructor arguments that make no network."""
    conv, virtual = config["conv"], config["virtual_node"]
    for name, kinds in _CHOICES.items():
        one_of(name, config[name], get_args(kinds))
    if config["positional"] is not None:
        one_of("positional", config["positional"], get_args(Positional))
    check_sizes(config)
    if config["in_channels"] < (config["positional"] is None):
        raise InputError("in_channels >= 1 (0 only with positional='laplacian')", 0)
    if conv == "pna" and config["degree"] is None:
        do = "Compute it with torch_geometric.nn.PNAConv.get_degree_histogram(loader)."
        raise InputError("degree= for conv='pna', the histogram of training degrees", "none", do)
    if virtual and (config["task"] == "node" or config["num_layers"] < 3):
        got = f"task={config['task']!r}, num_layers={config['num_layers']}"
        raise InputError("a virtual node with task='graph' and num_layers >= 3", got)
    if conv == "gps" and config["hidden_channels"] % config["heads"]:
        wanted = f"hidden_channels divisible by heads={config['heads']}"
        raise InputError(wanted, config["hidden_channels"])
