"""`Trunk`: a network up to the place where its representation is read.

A network is cut by a hook in front of a submodule that lives as long as one pass, and minds passes
of its own thread only: threads share a network, and nothing of it changes.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch_geometric.nn import global_mean_pool

from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import Graph, Rows, label_rows, num_graphs, row_batch
from gduq.nn.gnn import as_chain
from gduq.tracing.call import LINEAR, Call, as_linear, as_logits, call_network, first_input
from gduq.tracing.trace import ADVICE, Location, Step, Trace, trace

__all__ = ["Trunk", "answer_features", "no_place", "run_through", "take_linear"]


class _Reached(Exception):
    """The cut was reached; nothing more of this pass is needed."""


def run_through(
    net: nn.Module,
    path: str,
    graph: Graph,
    call: Call | None,
    reader: Callable[[Any], object] | None = None,
) -> tuple[Any, Tensor]:
    """What a submodule (empty: the network as a whole) reads in a pass, and the output where it
    reads what ``reader`` makes of that; without a reader the pass goes no further."""
    thread, arrived, out = threading.get_ident(), list[Any](), torch.empty(0)

    def read(h: object) -> object:
        arrived.append(h)
        if reader is None and not exporting():  # there, what nobody reads is not in the program
            raise _Reached
        return h if reader is None else reader(h)

    def hook(_: nn.Module, args: Any, kwargs: Any = None) -> tuple[Any, Any] | None:
        if threading.get_ident() != thread or kwargs is None:  # a hook that goes just now
            return None  # belongs to a pass of another thread
        z = read(first_input(args, kwargs))
        return (z, *args[1:]), {k: v for k, v in kwargs.items() if args or k not in ("x", "input")}

    with suppress(_Reached), ExitStack() as stack:
        if path:
            part = net.get_submodule(path)
            stack.callback(part.register_forward_pre_hook(hook, with_kwargs=True).remove)
        else:
            graph = copy.copy(graph)
            graph.x = read(graph.get("x"))
        out = call_network(net, graph, call)
    if len(arrived) != 1:
        raise InputError(f"'{path}' to be called once in a pass", f"{len(arrived)} calls", ADVICE)
    return arrived[0], out


class _ReadBefore(nn.Linear):
    """Stands for a linear layer whose map others apply: it gives what it is handed."""

    def forward(self, input: Tensor) -> Tensor:
        return input


def take_linear(net: nn.Module, path: str) -> nn.Linear | None:
    """`as_linear`; in the network another layer takes its place, for which others read."""
    plain = as_linear(net, path)
    if plain is not None:
        place = _ReadBefore(plain.in_features, plain.out_features, device="meta")
        place.weight = place.bias = None  # type: ignore[assignment]
        net.set_submodule(path, place)
    return plain


def no_place(net: nn.Module) -> InputError:
    """For a network in which nothing shows where its representation is."""
    return InputError(
        "a network with a head of linear layers, or with layers of message passing",
        f"{type(net).__name__}, in which neither was found",
        "Name a place with at=; gduq.cut_points(net, graph) lists them.",
    )


class Trunk(nn.Module):
    """A network, and the representation that its last part reads.

    See `Location` for what is known of it; ``steps`` are there where the last part is a head.
    """

    def __init__(self, net: nn.Module, location: Location, call: Call | None = None) -> None:
        super().__init__()
        self.net, self.location, self.call = net, location, call
        (
            self.path,
            self.channels,
            self.rows,
            self.row_kind,
            self.ending,
            self.steps,
            self.outputs,
        ) = location

    @classmethod
    def of(cls, net: nn.Module, graph: Graph | None = None, call: Call | None = None) -> Trunk:
        """The trunk of a network: before its head or, without one, its outputs beside what its last
        layer reads.

        The network is not copied. The graph is one that it takes; a `GNN` needs none.
        """
        chain = as_chain(net)
        if chain is not None:
            dropout = Step("function", "dropout", [chain.config["dropout"]])
            steps = Step("function", "relu"), dropout, Step("module", "head.rest.2")
            found = Location("head.first", chain.hidden_channels, chain.task, chain.task, None)
            return cls(net, found._replace(steps=steps if chain.config["head"] == "mlp" else ()))
        assert graph is not None
        shown = cls.from_trace(net, trace(net, graph, call), call)
        if shown is None:
            raise no_place(net)
        return shown

    @classmethod
    def from_trace(cls, net: nn.Module, seen: Trace, call: Call | None = None) -> Trunk | None:
        """The trunk that a trace of the network shows, or ``None`` where it shows none."""
        found = seen.head or seen.beside() or next(map(seen.location, seen.layers[::-1]), None)
        return None if found is None else cls(net, found, call)

    @property
    def has_head(self) -> bool:
        """Whether what follows is a head that reads every row by itself."""
        return self.steps is not None

    def head(self) -> tuple[nn.Linear, nn.Module]:
        """Copies of the head: its first linear map, and what follows."""
        if self.outputs:
            picks = nn.Linear(self.channels, self.outputs).requires_grad_(False)
            nn.init.zeros_(picks.bias)
            nn.init.zeros_(picks.weight)[:, -self.outputs :].fill_diagonal_(1.0)
            return picks.to(next(self.net.parameters(), torch.empty(0))), nn.Sequential()
        first = as_linear(self.net, self.path)
        assert first is not None
        assert self.steps is not None
        rest = nn.Sequential(*(step.build(self.net) for step in self.steps))
        return first, rest.train(self.net.training)

    @property
    def bounded(self) -> bool:
        """Whether something bounds what the head gives, such as a ReLU at its end."""
        steps = [step for step in self.steps or () if step.name != "dropout"]
        return bool(steps) and not isinstance(steps[-1].build(self.net), LINEAR)

    def forward(self, graph: Graph) -> Tensor:
        """The representation ``[n, d]``; what follows does not run, unless its outputs are read."""
        if self.outputs:
            return self.run(graph)[0]
        return run_through(self.net, self.path, graph, self.call)[0]  # type: ignore[no-any-return]

    def run(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The representation ``[n, d]`` and the network's logits ``[rows, O]``, in one pass."""
        h, outputs = run_through(self.net, self.path, graph, self.call, lambda h: h)
        outputs = as_logits(outputs, self.ending)
        if self.outputs:
            if self.row_kind == "graph":
                h = answer_features(h, graph, "node", "graph")
            h = torch.cat([h, outputs], dim=1)
        return h, outputs

    def labelled(self, values: Tensor, graph: Graph) -> Tensor:
        """The rows that count, of representations or outputs of all rows of a head."""
        return values[label_rows(graph, values.size(0))]

    def spec(self) -> dict[str, object]:
        """What was found, as JSON holds it."""
        steps = None if self.steps is None else [step._asdict() for step in self.steps]
        return {**self.location._asdict(), "steps": steps}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], net: nn.Module, call: Call | None) -> Trunk:
        """The trunk that `spec` described, around the same network."""
        found, steps = Location(**spec), [Step(**step) for step in spec["steps"] or ()]
        paths = {found.path, *(step.name for step in steps if step.kind == "module")}
        known = paths <= dict(net.named_modules()).keys()
        if not known or not {found.rows, found.row_kind} <= {*get_args(Rows)}:
            raise InputError(f"a place where {type(net).__name__} is cut", f"{spec!r:.100}")
        _ = [step.build(net) for step in steps if step.kind != "module"]  # is there such a function
        return cls(net, found if found.steps is None else found._replace(steps=tuple(steps)), call)

    @property
    def ending_note(self) -> str:
        """What to say of a network that makes probabilities of its logits itself."""
        return f"; it ends in {self.ending}, which is undone" if self.ending else ""

    @property
    def description(self) -> str:
        """Where the representation is read, in few words."""
        beside = " and the outputs" if self.outputs else ""
        return f"'{self.path}'{beside}, one row per {self.row_kind}{self.ending_note}"


def answer_features(h: Tensor, graph: Graph, rows: Rows, row_kind: Rows) -> Tensor:
    """A representation of rows ``[n, d]`` as one row per answer that counts ``[m, d]``.

    Nodes are averaged where graphs are answered for, and the ends of an edge are joined.
    """
    h = h if h.layout == torch.strided else h.to_dense()
    if rows == row_kind:
        return h[label_rows(graph, h.size(0))]
    if row_kind == "graph":
        batch = row_batch(graph, "node", h.size(0))
        return global_mean_pool(h, batch, num_graphs(graph))  # type: ignore[no-any-return]
    ends = graph.edge_label_index
    return (h[ends[0]] * h[ends[1]])[label_rows(graph, ends.size(1))]
