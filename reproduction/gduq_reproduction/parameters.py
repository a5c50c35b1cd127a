"""Parameter counts: networks of the published widths, built and counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from gduq.anchoring import anchor
from gduq.nn import GNN
from gduq_reproduction.specs import PaperTable, ScaleName, Setting

__all__ = ["cells", "count", "make", "title"]

# Width of the features and number of outputs; SST2 has one logit.
_WIDTHS = {
    "cmnist": (3, 10),
    "motif-lpe": (4, 3),
    "sst2": (768, 1),
    "cora": (8710, 70),
    "webkb": (1703, 5),
    "cbas": (4, 4),
}


def cells(table: PaperTable, scale: ScaleName) -> Sequence[Setting]:
    """One per dataset: the published ones at every scale, counted without any data."""
    return table.settings


def title(setting: Setting) -> str:
    return _family(setting)


def make(setting: Setting) -> dict[str, Any]:
    """Counts of all variants of a dataset."""
    family = _family(setting)
    numbers = [
        ({"dataset": family, "model": model, "variant": variant, "metric": "parameters"}, n)
        for model, variant, n in _counts(setting, *_WIDTHS[family])
    ]
    return {"numbers": numbers, "data": None}


def count(model: nn.Module) -> int:
    """Parameters that are trained.

    Example:
        >>> count(nn.Linear(3, 2))
        8
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _counts(setting: Setting, channels: int, classes: int) -> Iterator[tuple[str, str, int]]:
    """Model, variant and count; hidden layers of networks with and without a virtual node."""
    net = _network(setting, channels, classes, setting.virtual_node)
    yield setting.model, "vanilla", count(net)
    yield setting.model, "nfa", count(_anchored(net, "input"))
    if setting.on_nodes:
        return
    plain = _network(setting, channels, classes, False)
    for layer in range(1, setting.num_layers):
        yield setting.conv, f"L{layer}", count(_anchored(plain, layer))
        if setting.virtual_node:
            yield f"{setting.model} (with it)", f"L{layer}*", count(_anchored(net, layer))
    yield setting.model, "readout", count(_anchored(net, "readout"))


def _anchored(net: GNN, at: int | str) -> nn.Module:
    return anchor(net, at=at, recipe="paper")


def _network(setting: Setting, channels: int, classes: int, virtual_node: bool) -> GNN:
    return GNN(
        channels,
        setting.hidden,
        classes,
        setting.num_layers,
        conv=setting.conv,  # type: ignore[arg-type]
        task="node" if setting.on_nodes else "graph",
        virtual_node=virtual_node,
    )


def _family(setting: Setting) -> str:
    return setting.data.split("/")[0]
