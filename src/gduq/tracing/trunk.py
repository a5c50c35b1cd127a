"""`Trunk`: a network up to the place where its representation is read.

A network is cut by a hook in front of a submodule that lives as long as one pass, and minds passes
of its own thread only: threads share a network, and nothing of it changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import Graph, Rows, label_rows, num_graphs, row_batch
from gduq.nn.gnn import GNN, as_chain
from gduq.tracing.call import (
    Call,
    Ending,
    as_linear,
    as_logits,
    call_network,
    first_input,
)
from gduq.tracing.trace import Step, Trace, build_tail, trace

__all__ = [
    *("NoiseHead", "Replay", "Trunk", "answer_features", "arriving", "no_place", "run_through"),
    *("standardised_last", "take_linear"),
]


def run_through(
    net: nn.Module, path: str, graph: Graph, call: Call | None, reader: Callable[[Any], Any]
) -> Tensor:
    """The output of a pass in which a submodule reads what ``reader`` makes of its input."""
    thread, calls = threading.get_ident(), 0

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        nonlocal calls
        if threading.get_ident() != thread or kwargs is None:  # a pass of another thread
            return None
        calls += 1
        if calls > 1:
            raise _not_called_once(path, "a second call")
        z = reader(first_input(args, kwargs))
        if args:
            return (z, *args[1:]), kwargs
        return args, {**kwargs, "x" if "x" in kwargs else "input": z}

    handle = net.get_submodule(path).register_forward_pre_hook(hook, with_kwargs=True)
    try:
        out = call_network(net, graph, call)
    finally:
        handle.remove()
    if not calls:
        raise _not_called_once(path, "no call")
    return out


def _not_called_once(path: str, got: str) -> InputError:
    do = "See gduq.cut_points(net, graph) for the places where it can be cut."
    return InputError(f"'{path}' to be called once in a pass", got, do)


class _Reached(Exception):
    """The cut was reached; nothing more of this pass is needed."""


def arriving(net: nn.Module, path: str, graph: Graph, call: Call | None) -> Any:
    """What a submodule reads in a pass, which goes no further (but in an export, where what nobody
    reads is not part of the program)."""
    arrived: list[Any] = []

    def stop(h: Any) -> Any:
        arrived.append(h)
        if not exporting():
            raise _Reached
        return h

    with suppress(_Reached):
        run_through(net, path, graph, call, stop)
    return arrived[0]


class Replay(TorchFunctionMode):
    """Passes over one graph that differ behind a cut only: functions that are called before it
    compute in the first pass, and are looked up in the others.

    Enter it once per pass, and call `reach` at the cut. A pass that changes in place what came
    before the cut leaves nothing to look up.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: list[tuple[object, Any]] = []  # functions and what they gave, before the cut
        self._versions: list[int] = []  # of the tensors among that, at the cut
        self._next: int | None = 0  # call of this pass; None behind the cut

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at, self._next = self._next, None  # nothing inside counts
        if at is None:
            return func(*args, **(kwargs or {}))
        if not self._versions and at == len(self._known):
            self._known.append((func, func(*args, **(kwargs or {}))))
        elif at >= len(self._known) or self._known[at][0] != func:
            got = "another path for another anchor"
            raise InputError("a network that does the same before a cut in every pass", got)
        self._next = at + 1
        return self._known[at][1]

    def _now(self) -> list[int]:
        leaves = tree_leaves([out for _, out in self._known])
        tensors = (leaf for leaf in leaves if isinstance(leaf, Tensor))
        return [0, *(-1 if t.is_inference() else t._version for t in tensors)]

    def reach(self) -> None:
        """The pass has come to the cut."""
        self._next, self._versions = None, self._versions or self._now()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._next, now = 0, self._now()
        if -1 in now or now != self._versions:
            self._known, self._versions = [], []


class _ReadBefore(nn.Linear):
    """Stands for a linear layer whose map others apply: it gives what it is handed."""

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight = self.bias = None  # type: ignore[assignment]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return first_input(args, kwargs)  # type: ignore[no-any-return]


def take_linear(net: nn.Module, path: str) -> nn.Linear | None:
    """`as_linear`; in the network another layer takes its place, for which others read."""
    plain = as_linear(net, path)
    if plain is not None:
        above, _, name = path.rpartition(".")
        net.get_submodule(above).register_module(name, _ReadBefore(plain))
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

    The submodule at ``path`` reads it (empty: the network's input), and ``steps`` follow where both
    are a head. ``rows`` are those of the representation, ``row_kind`` those of the output, which is
    no logits where the network has an ``ending``.
    """

    def __init__(
        self,
        net: nn.Module,
        path: str,
        rows: Rows,
        row_kind: Rows,
        call: Call | None = None,
        ending: Ending | None = None,
        steps: Sequence[Step] | None = None,
    ) -> None:
        super().__init__()
        self.net, self.path, self.call, self.ending = net, path, call, ending
        self.rows: Rows = rows
        self.row_kind: Rows = row_kind
        self.steps = None if steps is None else tuple(steps)

    @classmethod
    def of(cls, net: nn.Module, graph: Graph | None = None, call: Call | None = None) -> Trunk:
        """The trunk of a network: before its head or, without one, before its last layer.

        The network is not copied. The graph is one that it takes; a `GNN` needs none.
        """
        chain = as_chain(net)
        if chain is not None:
            return cls(net, "head.first", chain.task, chain.task, steps=_gnn_steps(chain))
        assert graph is not None
        found = cls.from_trace(net, trace(net, graph, call), call)
        if found is None:
            raise no_place(net)
        return found

    @classmethod
    def from_trace(cls, net: nn.Module, found: Trace, call: Call | None = None) -> Trunk | None:
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
        first = as_linear(self.net, self.path)
        assert first is not None
        assert self.steps is not None
        return first, build_tail(self.net, self.steps)

    @property
    def bounded(self) -> bool:
        """Whether something bounds what the head gives, such as a ReLU at its end."""
        return self.has_head and not isinstance(_last(nn.Sequential(*self.head())), nn.Linear)

    def forward(self, graph: Graph) -> Tensor:
        """The representation ``[n, d]``; what follows does not run."""
        return arriving(self.net, self.path, graph, self.call)  # type: ignore[no-any-return]

    def run(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The representation ``[n, d]`` and the network's logits ``[rows, O]``, in one pass."""
        arrived: list[Tensor] = []

        def note(h: Tensor) -> Tensor:
            arrived.append(h)
            return h

        outputs = run_through(self.net, self.path, graph, self.call, note)
        return arrived[0], as_logits(outputs, self.ending)

    def labelled(self, values: Tensor, graph: Graph) -> Tensor:
        """The rows that count, of representations or outputs of all rows of a head."""
        return values[label_rows(graph, values.size(0))]

    def features(self, h: Tensor, graph: Graph) -> Tensor:
        """The representation as one row per answer that counts ``[m, d]``."""
        return answer_features(h, graph, self.rows, self.row_kind)

    def spec(self) -> dict[str, Any]:
        """What was found, as JSON holds it."""
        names = ("path", "rows", "row_kind", "ending")
        steps = None if self.steps is None else [step.to_json() for step in self.steps]
        return {**{name: getattr(self, name) for name in names}, "steps": steps}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], net: nn.Module, call: Call | None) -> Trunk:
        """The trunk that `spec` described, around the same network."""
        path, steps, places = spec["path"], spec["steps"], (spec["rows"], spec["row_kind"])
        if path not in dict(net.named_modules()) or any(p not in get_args(Rows) for p in places):
            got = ", ".join(f"{one!r:.30}" for one in (path, *places))
            raise InputError(f"a place where {type(net).__name__} is cut", got)
        known = None if steps is None else [Step.from_json(step) for step in steps]
        return cls(net, path, *places, call, spec["ending"], known)

    @property
    def ending_note(self) -> str:
        """What to say of a network that makes probabilities of its logits itself."""
        return f"; it ends in {self.ending}, which is undone" if self.ending else ""

    @property
    def description(self) -> str:
        """Where the representation is read, in few words."""
        where = "the head" if as_chain(self.net) is not None else f"'{self.path}'"
        return f"{where}, one row per {self.row_kind}{self.ending_note}"


def _gnn_steps(net: GNN) -> tuple[Step, ...]:
    """What follows the first linear map of a `GNN`'s head."""
    if not isinstance(getattr(net.head, "rest", None), nn.Sequential):
        return ()
    dropout = Step("function", "dropout", (net.config["dropout"],))
    return Step("function", "relu"), dropout, Step("module", "head.rest.2")


def answer_features(h: Tensor, graph: Graph, rows: Rows, row_kind: Rows) -> Tensor:
    """A representation of rows ``[n, d]`` as one row per answer that counts ``[m, d]``.

    Nodes are averaged where graphs are answered for, and the ends of an edge are joined.
    """
    if h.layout != torch.strided:
        h = h.to_dense()
    if rows == row_kind:
        return h[label_rows(graph, h.size(0))]
    if row_kind == "graph":
        batch, graphs = row_batch(graph, "node", h.size(0)), num_graphs(graph)
        total = h.new_zeros(graphs, h.size(1)).index_add_(0, batch, h)
        return total / h.new_zeros(graphs).index_add_(0, batch, h.new_ones(h.size(0))).unsqueeze(1)
    ends = graph.edge_label_index
    return (h[ends[0]] * h[ends[1]])[label_rows(graph, ends.size(1))]


# -- log-variances beside the means of a head ------------------------------------------------------

_SILENT = (nn.Identity, nn.Dropout, nn.Sequential)


class NoiseHead(nn.Module):
    """Reads what the last layer of a head reads, and adds T log-variances to its T means.

    It starts at one log-variance for all rows, and standardises means that come in other units.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, channels: int, values: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, values)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("shift", torch.zeros(values))
        self.register_buffer("scale", torch.ones(values))

    @torch.no_grad()
    def start(self, log_variance: Tensor) -> None:
        """Begin with these log-variances ``[T]``."""
        self.linear.bias.copy_(log_variance)

    def standardise(self, shift: Tensor, scale: Tensor) -> None:
        """Subtract and divide, of means that come in other units."""
        self.shift.copy_(shift)
        self.scale.copy_(scale)

    def forward(self, means: Tensor, read: Tensor) -> Tensor:
        """Means and log-variances ``[..., n, 2T]`` of means ``[..., n, T]``."""
        logs = self.linear(read)
        centred = (means - self.shift) / self.scale
        return torch.cat([centred, logs.expand_as(centred)], dim=-1)


@torch.no_grad()
def standardised_last(head: nn.Module, shift: Tensor, scale: Tensor) -> bool:
    """Let the last linear map of a head give standardised outputs, if nothing follows it.

    Then steps of training have the same effect whatever the units. Says whether it could be done.
    """
    last = _last(head)
    if not isinstance(last, nn.Linear) or last.bias is None:
        return False
    last.weight.div_(scale.to(last.weight).unsqueeze(1))
    last.bias.copy_((last.bias - shift.to(last.bias)) / scale.to(last.bias))
    return True


def _last(head: nn.Module) -> nn.Module | None:
    """The last part of a head that changes anything."""
    parts = [m for m in head.modules() if not list(m.children()) and not isinstance(m, _SILENT)]
    return parts[-1] if parts else None
