"""`Trunk`: a network up to the place where its representation is read."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from gduq.errors import InputError
from gduq.graph import Rows, label_rows, num_graphs, row_batch
from gduq.nn.call import Call, Ending, as_logits, undone
from gduq.nn.gnn import GNN
from gduq.nn.noise import ends_linear
from gduq.nn.replay import Cut
from gduq.nn.steps import Step, build_tail
from gduq.nn.tracing import Trace, trace
from gduq.nn.widths import as_linear

__all__ = ["Trunk", "answer_features", "as_chain", "no_place"]

_CHAIN = ("forward", "prefix", "suffix", "release")  # what makes a GNN a chain


def as_chain(net: nn.Module) -> GNN | None:
    """The network as the chain of layers that it is, if it is one of gduq's own.

    A subclass with a pass of its own is like any other network.
    """
    if not isinstance(net, GNN):
        return None
    own = (name for name in _CHAIN if getattr(type(net), name) is not getattr(GNN, name))
    return net if next(own, None) is None else None


def no_place(net: nn.Module) -> InputError:
    """For a network in which nothing shows where its representation is."""
    return InputError(
        "a network with a head of linear layers, or with layers of message passing",
        f"{type(net).__name__}, in which neither was found",
        "Name a place with at=; gduq.cut_points(net, graph) lists them.",
    )


class Trunk(nn.Module):
    """A network, and the representation that its last part reads.

    The submodule at ``path`` reads it (``None``: the head of a `GNN`), and ``steps`` follow where
    both are a head. ``rows`` are those of the representation, ``answers`` those of the output,
    which is no logits where the network has an ``ending``.
    """

    def __init__(
        self,
        net: nn.Module,
        path: str | None,
        rows: Rows,
        answers: Rows,
        call: Call | None = None,
        ending: Ending | None = None,
        steps: Sequence[Step] | None = None,
    ) -> None:
        super().__init__()
        self.net, self.path, self.call, self.ending = net, path, call, ending
        self.rows: Rows = rows
        self.answers: Rows = answers
        self.steps = None if steps is None else tuple(steps)
        self._cut = None if path is None else Cut(path)

    @classmethod
    def of(cls, net: nn.Module, graph: Any = None, call: Call | None = None) -> Trunk:
        """The trunk of a network: before its head or, without one, before its last layer.

        The network is not copied. The graph is one that it takes; a `GNN` needs none.
        """
        chain = as_chain(net)
        if chain is not None:
            return cls(net, None, chain.task, chain.task, steps=())
        found = cls.seen(net, trace(net, graph, call), call)
        if found is None:
            raise no_place(net)
        return found

    @classmethod
    def seen(cls, net: nn.Module, found: Trace, call: Call | None = None) -> Trunk | None:
        """The trunk that a trace of the network shows, or ``None`` where it shows none."""
        head, rows = found.head, found.rows
        if head is not None:
            return cls(net, head.path, rows, rows, call, found.ending, head.steps)
        last = found.layers[-1:]
        return cls(net, last[0], "node", rows, call, found.ending) if last else None

    @property
    def has_head(self) -> bool:
        """Whether what follows is a head that reads every row by itself."""
        return self.steps is not None

    def head(self) -> tuple[nn.Linear, nn.Module]:
        """Copies of the head: its first linear map, and what follows."""
        if self.path is None:
            copied = copy.deepcopy(self.net.head)
            return copied.first, copied.rest  # type: ignore[return-value, union-attr]
        first = as_linear(self.net, self.path)
        assert first is not None
        assert self.steps is not None
        return first, build_tail(self.net, self.steps)

    @property
    def bounded(self) -> bool:
        """Whether something bounds what the head gives, such as a ReLU at its end."""
        alone = self.path is not None and self.has_head
        return alone and not ends_linear(nn.Sequential(*self.head()))

    def forward(self, graph: Any) -> Tensor:
        """The representation ``[n, d]``; what follows does not run."""
        if self._cut is None:
            return self.net.prefix(graph, "readout")[0]  # type: ignore[operator, no-any-return]
        return self._cut.arriving(self.net, graph, self.call)  # type: ignore[no-any-return]

    def run(self, graph: Any) -> tuple[Tensor, Tensor]:
        """The representation ``[n, d]`` and the network's logits ``[rows, O]``, in one pass."""
        if self._cut is None:
            h = self(graph)
            return h, self.net.head(h)  # type: ignore[operator]
        seen: list[Tensor] = []

        def note(h: Tensor) -> Tensor:
            seen.append(h)
            return h

        outputs = self._cut.run(self.net, graph, self.call, note)
        return seen[0], as_logits(outputs, self.ending)

    def labelled(self, values: Tensor, graph: Any) -> Tensor:
        """The rows that count, of representations or outputs of all rows of a head."""
        return values[label_rows(graph, values.size(0))]

    def features(self, h: Tensor, graph: Any) -> Tensor:
        """The representation as one row per answer that counts ``[m, d]``."""
        return answer_features(h, graph, self.rows, self.answers)

    def spec(self) -> dict[str, Any]:
        """What was found, as JSON holds it."""
        names = ("path", "rows", "answers", "ending")
        steps = None if self.steps is None else [step.to_json() for step in self.steps]
        return {**{name: getattr(self, name) for name in names}, "steps": steps}

    @classmethod
    def from_spec(cls, spec: dict[str, Any], net: nn.Module, call: Call | None) -> Trunk:
        """The trunk that `spec` described, around the same network."""
        steps = spec["steps"]
        known = None if steps is None else [Step.from_json(step) for step in steps]
        if spec["path"] is not None and spec["path"] not in dict(net.named_modules()):
            raise InputError(f"a network with a submodule '{spec['path']}'", type(net).__name__)
        chain, places = as_chain(net), (spec["rows"], spec["answers"])
        fits = all(place in get_args(Rows) for place in places)
        if chain is not None or spec["path"] is None:
            own = chain is not None and places == (chain.task, chain.task)
            fits = own and spec["path"] is None
        if not fits:
            got = ", ".join(f"{spec[name]!r:.30}" for name in ("path", "rows", "answers"))
            raise InputError(f"a place where {type(net).__name__} is cut", got)
        return cls(net, spec["path"], *places, call, spec["ending"], known)

    @property
    def description(self) -> str:
        """Where the representation is read, in few words."""
        where = "the head" if self.path is None else f"'{self.path}'"
        return f"{where}, one row per {self.answers}{undone(self.ending)}"


def answer_features(h: Tensor, graph: Any, rows: Rows, answers: Rows) -> Tensor:
    """A representation of rows ``[n, d]`` as one row per answer that counts ``[m, d]``.

    Nodes are averaged where graphs are answered for, and the ends of an edge are joined.
    """
    if h.layout != torch.strided:
        h = h.to_dense()
    if rows == answers:
        return h[label_rows(graph, h.size(0))]
    if answers == "graph":
        batch, graphs = row_batch(graph, "node", h.size(0)), num_graphs(graph)
        total = h.new_zeros(graphs, h.size(1)).index_add_(0, batch, h)
        return total / h.new_zeros(graphs).index_add_(0, batch, h.new_ones(h.size(0))).unsqueeze(1)
    ends = graph.edge_label_index
    return (h[ends[0]] * h[ends[1]])[label_rows(graph, ends.size(1))]
