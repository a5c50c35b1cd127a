"""A network in two parts around one linear map: `Point`, and that of gduq's own backbones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gduq.graph import Rows
from gduq.graph.sparse import linear
from gduq.nn.gnn import GNN
from gduq.nn.gnn_parts import message_size
from gduq.nn.gnn_settings import ChainPoint
from gduq.nn.layers import PropagationLayer, affine
from gduq.nn.neighbourhoods import Structure

__all__ = ["GNNPoint", "Point", "Read", "State", "identity_map"]

Read = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class State:
    """What a network has come to at a point."""

    h: Tensor  # the representation [n, d]
    rest: tuple[Any, ...] = ()  # what else the part behind the point needs; the point's own

    def detached(self) -> State:
        """The same without gradients."""
        found: tuple[Any, ...] = tree_map(
            lambda value: value.detach() if isinstance(value, Tensor) else value, self.rest
        )
        return State(self.h.detach(), found)


class Point(nn.Module, ABC):
    """A network cut in front of one linear map, which somebody else provides.

    ``prefix`` gives the representation ``h`` there, ``suffix`` goes on from what the map made of
    it. Between the two, the map may be followed by a linear operator on rows (`mix`).

    Args:
        plain: The network's own map, or an identity map where a new layer is put in.
        rows: What the rows of ``h`` are.
        answers: What the rows of the output are.
    """

    net: nn.Module
    plain: nn.Linear
    holds_copies = False  # whether several versions of z can pass through `run` together
    frozen = False  # whether what runs before the point stays in evaluation mode
    moves = True  # whether the representation changes as the network learns
    has_prefix = True  # whether something that learns comes before the point

    def __init__(self, plain: nn.Linear, rows: Rows, answers: Rows) -> None:
        super().__init__()
        self.__dict__["plain"] = plain  # not a submodule: its parameters are not the model's
        self.channels = plain.in_features  # d, the width of h
        self.rows: Rows = rows
        self.answers: Rows = answers

    @abstractmethod
    def prefix(self, graph: Any) -> State:
        """The representation at the point, and what else `suffix` needs."""

    @abstractmethod
    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        """Outputs ``[D, rows, O]`` from ``z`` ``[D, n, m]``."""

    def run(self, graph: Any, read: Read) -> Tensor:
        """Outputs ``[D, rows, O]`` of one pass; ``read`` turns ``h`` into ``z`` ``[D, n, m]``."""
        state = self.prefix(graph)
        return self.suffix(read(state.h), state, graph)

    @property
    def layer(self) -> PropagationLayer | None:
        """The layer whose linear operator on rows follows the map, if there is one."""
        return None

    def read(self, h: Tensor, weight: Tensor, graph: Any) -> Tensor:
        """``mix(h W^T)``, in the cheaper order."""
        layer = self.layer
        return linear(h, weight) if layer is None else layer.read(h, weight, Structure.of(graph))

    def mix(self, z: Tensor, graph: Any) -> Tensor:
        """The operator that follows the map: ``[D, n, m]`` in and out."""
        if self.layer is None:
            return z
        return self.layer.mix(z.flatten(0, 1), Structure.of(graph).repeat(z.size(0))).view_as(z)

    def gain(self, graph: Any, like: Tensor) -> Tensor | None:
        """What `mix` does to a vector that all rows share, ``[n, 1]``; ``None`` means 1."""
        return None if self.layer is None else self.layer.gain(Structure.of(graph), like.dtype)

    def affine(self) -> tuple[Tensor, Tensor] | None:
        """Scale and offset that `suffix` starts with in evaluation mode, if it does."""
        layer = self.layer
        return None if layer is None or layer.training else affine(layer.inner_norm)

    def cost(self, z: Tensor, graph: Any) -> int:
        """About how many numbers `suffix` holds at once for one copy of ``z`` ``[n, m]``."""
        return z.numel()

    def prefix_modules(self) -> list[nn.Module]:
        """The modules known to run before the point only."""
        return []

    @property
    @abstractmethod
    def description(self) -> str:
        """Where it is, for people."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """What was found in the network, as JSON holds it."""


class GNNPoint(Point):
    """A point of a `GNN`, whose chain can be entered there."""

    holds_copies = True
    net: GNN

    def __init__(self, net: GNN, point: ChainPoint, keep: bool) -> None:
        taken = net.release(point, keep)
        plain = identity_map(net.hidden_channels, net) if taken is None else taken
        super().__init__(plain, net.task if point == "readout" else "node", net.task)
        self.net, self.point, self.keep = net, point, keep
        self.moves = point != "input"
        self.has_prefix = self.moves or len(net.embeddings) > 0

    def prefix(self, graph: Any) -> State:
        h, virtual = self.net.prefix(graph, self.point)
        return State(h, () if virtual is None else (virtual,))

    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        copies = z.size(0)
        structure = None if self.point == "readout" else Structure.of(graph).repeat(copies)
        virtual = state.rest[0] if state.rest else None
        logits = self.net.suffix(z.flatten(0, 1), virtual, structure, self.point, normed)
        return logits.view(copies, -1, logits.size(-1))

    @property
    def layer(self) -> PropagationLayer | None:
        return self.net.propagation_layer(self.point)

    def cost(self, z: Tensor, graph: Any) -> int:
        return (
            z.numel() if self.point == "readout" else max(z.numel(), message_size(self.net, graph))
        )

    def prefix_modules(self) -> list[nn.Module]:
        return self.net.prefix_modules(self.point)

    @property
    def description(self) -> str:
        where = f"layer {self.point}" if isinstance(self.point, int) else f"the {self.point}"
        return f"{where}, one row per {self.rows}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "chain", "at": self.point, "keep": self.keep}


def identity_map(width: int, like: nn.Module) -> nn.Linear:
    """A linear map that changes nothing, on the device and in the precision of a network."""
    reference = next(like.parameters(), torch.empty(0))
    plain = nn.Linear(width, width)
    nn.init.eye_(plain.weight)
    nn.init.zeros_(plain.bias)
    return plain.to(reference.device, reference.dtype)
