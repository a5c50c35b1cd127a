"""Where a network is cut: `CutPoint`, that of gduq's own backbones, and that of any module."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import Graph, Rows, check_graph, device_of, num_rows
from gduq.graphs.sparse import linear
from gduq.nn.forced_dropout import ForcedDropout
from gduq.nn.gnn import GNN
from gduq.nn.gnn_settings import ChainPoint
from gduq.nn.layers import PropagationLayer, Structure
from gduq.tracing.call import (
    Call,
    Ending,
    as_logits,
    call_network,
    cut_names,
    evaluating,
    input_width,
    removed_activation_note,
)
from gduq.tracing.trunk import arriving, run_through, take_linear

__all__ = ["CutPoint", "GNNCut", "ModuleCut", "Read", "Uncut", "identity_map"]

Read = Callable[[Tensor, slice], Tensor]  # of h [n, d] and a part of D copies: z [len, n, m]

_CHUNK = 2**22  # most numbers of a layer held at once while copies pass through a `GNN`
_WIDE = 2**25  # the same for a module, whose prefix runs once more for each chunk
_MOST = 4096  # channels of an input that a new map is put before


class CutPoint(nn.Module, ABC):
    """A network cut in front of one linear map, which somebody else provides.

    Between that map and the rest a layer may mix rows by a linear operator (`layer`).

    Args:
        plain: The network's own map, or an identity map where a new layer is put in.
        rows: What the rows of ``h`` are.
        row_kind: What the rows of the output are.
    """

    net: nn.Module
    plain: nn.Linear
    holds_copies = False  # whether several copies pass through `run` as in one batch
    frozen = False  # whether what runs before the point stays in evaluation mode
    moves = True  # whether the representation changes as the network learns
    has_prefix = True  # whether something that learns comes before the point

    def __init__(self, plain: nn.Linear, rows: Rows, row_kind: Rows) -> None:
        super().__init__()
        self.__dict__["plain"] = plain  # not a submodule: its parameters are not the model's
        self.channels = plain.in_features  # d, the width of h
        self.rows: Rows = rows
        self.row_kind: Rows = row_kind

    @abstractmethod
    def prefix(self, graph: Graph) -> Tensor:
        """The representation ``h`` ``[n, d]`` at the point."""

    @abstractmethod
    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        """Outputs ``[D, rows, O]`` where ``read`` turns ``h`` into what D copies go on with."""

    @property
    def layer(self) -> PropagationLayer | None:
        """The layer whose linear operator on rows follows the map, if there is one."""
        return None

    def read(self, h: Tensor, weight: Tensor, graph: Graph) -> Tensor:
        """``mix(h W^T)``, in the cheaper order."""
        layer = self.layer
        return linear(h, weight) if layer is None else layer.read(h, weight, Structure.of(graph))

    def mix(self, z: Tensor, graph: Graph) -> Tensor:
        """The operator that follows the map: ``[D, n, m]`` in and out."""
        if self.layer is None:
            return z
        return self.layer.mix(z.flatten(0, 1), Structure.of(graph).repeat(z.size(0))).view_as(z)

    def gain(self, graph: Graph, like: Tensor) -> Tensor | None:
        """What `mix` does to a vector that all rows share, ``[n, 1]``; ``None`` means 1."""
        return None if self.layer is None else self.layer.gain(Structure.of(graph), like.dtype)

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


class Uncut(CutPoint):
    """A network before a graph has shown where it is cut."""

    row_kind: Rows | None  # type: ignore[assignment]

    def __init__(self, net: nn.Module, at: int | str) -> None:
        nn.Module.__init__(self)
        self.net, self.at, self.channels, self.row_kind = net, at, 0, None

    def prefix(self, graph: Graph) -> Tensor:
        raise InputError("a model that has met a graph", "none", "Call model.locate(graph).")

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        return self.prefix(graph)

    @property
    def description(self) -> str:
        return f"at={self.at!r}, found at the first graph"

    def spec(self) -> dict[str, Any]:
        raise InputError("a model that has met a graph", "none", "Train it before it is saved.")


class GNNCut(CutPoint):
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

    def prefix(self, graph: Graph) -> Tensor:
        return self.net.prefix(graph, self.point)[0]

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        with evaluating(self) if self.frozen else nullcontext():
            h, virtual = self.net.prefix(graph, self.point)
        at_once = copies
        if not (self.training or exporting()):  # BatchNorm sees all copies; a program has no chunks
            at_once = _CHUNK // max(
                1, self.net.message_size(graph, self.point), h.size(0) * h.size(1)
            )
        parts = []
        for part in _parts(copies, at_once):
            z = read(h, part)
            structure = None
            if self.point != "readout":
                structure = Structure.of(graph).repeat(z.size(0))
            logits = self.net.suffix(z.flatten(0, 1), virtual, structure, self.point)
            parts.append(logits.view(z.size(0), -1, logits.size(-1)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def layer(self) -> PropagationLayer | None:
        return self.net.propagation_layer(self.point)

    def prefix_modules(self) -> list[nn.Module]:
        return self.net.prefix_modules(self.point)

    @property
    def description(self) -> str:
        where = f"layer {self.point}" if isinstance(self.point, int) else f"the {self.point}"
        return f"{where}, one row per {self.rows}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "chain", "at": self.point, "keep": self.keep}


class ModuleCut(CutPoint):
    """Any module, cut in front of one of its submodules, or at its input (``path`` ``""``).

    A plain ``Linear`` is read for; before anything else a map of width d is put in. All copies go
    through one pass: what comes before the cut is computed once, what follows for each of them.

    Args:
        before: Paths of the submodules that run before the cut.
    """

    def __init__(
        self,
        net: nn.Module,
        path: str,
        call: Call | None,
        rows: Rows,
        row_kind: Rows,
        ending: Ending | None = None,
        before: Sequence[str] = (),
    ) -> None:
        part = net.get_submodule(path)
        width = input_width(part)
        if width is None:
            raise InputError(
                f"a submodule whose input width can be told, to anchor at '{path or 'input'}'",
                type(part).__name__,
                "Set its in_channels, or choose one of: " + ", ".join(cut_names(net)),
            )
        if width > _MOST and not path:
            raise InputError(
                f"an input of at most {_MOST} channels for a map put before the network",
                f"{width}, which would add {2 * width**2:,} weights",
                "Anchor at the linear layer that reads the input: see gduq.cut_points.",
            )
        taken = take_linear(net, path) if path else None
        super().__init__(taken or identity_map(width, net), rows, row_kind)
        self.net, self.path, self.call, self.ending = net, path, call, ending
        self.moves = self.has_prefix = bool(path)
        self.before = list(before)
        self._note = "" if taken is not None else f", the input of a {type(part).__name__}"
        self._together = True  # whether copies can pass at once

    def prefix(self, graph: Graph) -> Tensor:
        check_graph(graph)
        if not self.path:
            return self._checked(graph.get("x"), graph)
        return self._checked(arriving(self.net, self.path, graph, self.call), graph)

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        check_graph(graph)
        at_once = 1
        if self._together and not (exporting() or ForcedDropout.active()):
            rows = max(1, int(graph.num_nodes or 0), int(graph.num_edges))
            at_once = _WIDE // (rows * self.channels)
        parts = [self._copies(graph, read, part) for part in _parts(copies, at_once)]
        return as_logits(torch.cat(parts), self.ending)

    def _copies(self, graph: Graph, read: Read, part: slice) -> Tensor:
        """Outputs of some copies, which `torch.func.vmap` runs together behind the cut."""
        made: list[Tensor] = []

        def one(which: Tensor) -> Tensor:
            def go_on(h: Tensor) -> Tensor:
                if not made:
                    made.append(read(self._checked(h, graph), part))
                return made[0].index_select(0, which.view(1)).squeeze(0)

            return self._pass(graph, go_on)

        training = self.net.training
        if training and self.frozen:  # what is random is drawn once, outside of the copies
            with torch.no_grad(), evaluating(self.net):
                h = self.prefix(graph)
            made.append(read(h, part))
        numbers = torch.arange(part.stop - part.start, device=device_of(graph))
        if len(numbers) > 1:
            try:
                with _attributes_kept(self.net):
                    random = "different" if training else "error"
                    out: Tensor = torch.func.vmap(one, randomness=random)(numbers)
                return out
            except Exception:  # what a network does with numbers may allow no copies of them
                self._together = False
                made = made if training else []
        return torch.stack([one(which) for which in numbers])

    def _pass(self, graph: Graph, go_on: Callable[[Tensor], Tensor]) -> Tensor:
        """The output of a pass that goes on with other numbers at the cut."""
        if not self.path:
            graph = copy.copy(graph)
            graph.x = go_on(graph.get("x"))
            return call_network(self.net, graph, self.call)
        with self._resting() as wake:

            def awake(h: Tensor) -> Tensor:
                z = go_on(h)
                wake()
                return z

            return run_through(self.net, self.path, graph, self.call, awake)

    @contextmanager
    def _resting(self) -> Iterator[Callable[[], None]]:
        """Frozen: the modules around the cut are in evaluation mode until it is reached.

        Functional dropout looks at the mode of the module it stands in.
        """
        parts = self.path.split(".")
        around = [self.net.get_submodule(".".join(parts[:i])) for i in range(len(parts))]
        modes = [(module, module.training) for module in around if self.frozen]

        def wake() -> None:
            for module, mode in modes:
                module.training = mode

        for module, _ in modes:
            module.training = False
        try:
            yield wake
        finally:
            wake()

    def prefix_modules(self) -> list[nn.Module]:
        return [self.net.get_submodule(path) for path in self.before]

    def _checked(self, h: object, graph: Graph) -> Tensor:
        where = f"'{self.path}'" if self.path else "the network's first layer"
        if not isinstance(h, Tensor) or h.dim() != 2 or (self.path and not h.is_floating_point()):
            got = f"a tensor of shape {list(h.shape)}" if isinstance(h, Tensor) else type(h)
            raise InputError(f"{where} to read a float matrix [rows, d]", got)
        if h.size(1) != self.channels:
            do = "" if self.path else "Set net.in_channels if that is another layer's width."
            raise InputError(f"{where} to read {self.channels} channels", h.size(1), do)
        if not self.path:
            return h.to(next(self.net.parameters()).dtype)
        expected = None if torch.compiler.is_compiling() else num_rows(graph, self.rows)
        if expected is not None and h.size(0) != expected:
            raise InputError(
                f"{expected} rows, one per {self.rows}, at {where}",
                h.size(0),
                "See gduq.cut_points(net, graph) for the places one can anchor at.",
            )
        return h

    @property
    def description(self) -> str:
        where = f"'{self.path}'{self._note}" if self.path else "the input"
        return f"{where}, one row per {self.rows}{removed_activation_note(self.ending)}"

    def spec(self) -> dict[str, Any]:
        names = ("path", "rows", "row_kind", "ending", "before")
        return {"kind": "module", **{name: getattr(self, name) for name in names}}


def _parts(copies: int, at_once: int) -> list[slice]:
    at_once = max(1, at_once)
    return [slice(i, min(i + at_once, copies)) for i in range(0, copies, at_once)]


@contextmanager
def _attributes_kept(net: nn.Module) -> Iterator[None]:
    """What a network notes on itself (``self.h = ...``) is gone afterwards, as it was of copies."""
    before = [(module.__dict__, dict(module.__dict__)) for module in net.modules()]
    try:
        yield
    finally:
        for now, known in before:
            for name in [name for name in now if name not in known]:
                del now[name]
            now.update((k, v) for k, v in known.items() if now.get(k) is not v)


def identity_map(width: int, like: nn.Module) -> nn.Linear:
    """A linear map that changes nothing, on the device and in the precision of a network."""
    reference = next(like.parameters(), torch.empty(0))
    plain = nn.Linear(width, width)
    nn.init.eye_(plain.weight)
    nn.init.zeros_(plain.bias)
    return plain.to(reference.device, reference.dtype)
