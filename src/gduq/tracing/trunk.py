"""`Trunk`: a network up to the place where its representation is read.

A network is cut by a hook in front of a submodule that lives as long as one pass, and minds passes
of its own thread only: threads share a network, and nothing of it changes.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import Graph, Rows, label_rows, num_graphs, row_batch
from gduq.nn.gnn import as_chain
from gduq.tracing.call import (
    Call,
    Ending,
    as_linear,
    as_logits,
    call_network,
    first_input,
    removed_activation_note,
)
from gduq.tracing.trace import Step, Trace, build_tail, trace

__all__ = [
    "Replay",
    "Trunk",
    "answer_features",
    "arriving",
    "no_place",
    "run_through",
    "take_linear",
]


def run_through(
    net: nn.Module,
    path: str,
    graph: Graph,
    call: Call | None,
    reader: Callable[[Any], Any],
) -> Tensor:
    """The output of a pass in which a submodule reads what ``reader`` makes of its input."""
    target, thread, calls = net.get_submodule(path), threading.get_ident(), 0

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        nonlocal calls
        if threading.get_ident() != thread or kwargs is None:  # a pass of another thread
            return None
        calls += 1
        if calls > 1:
            raise _not_called_once(path, "a second call")
        z = reader(first_input(args, kwargs))
        z = _Read(z) if isinstance(target.__dict__.get("forward"), _TakenForward) else z
        if args:
            return (z, *args[1:]), kwargs
        return args, {**kwargs, "x" if "x" in kwargs else "input": z}

    handle = target.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        out = call_network(net, graph, call)
    finally:
        handle.remove()
    if not calls:
        raise _not_called_once(path, "no call")
    return out


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Replay(TorchFunctionMode):
    """Passes of a network over one graph that differ behind a cut only: what comes before it runs
    in the first of them, and is looked up in the others.

    Enter it once per pass of its ``net``, which shares all tensors with the network, and call
    `reach` at the cut. A pass that changes in place what came before it leaves nothing to look up.
    """

    def __init__(self, net: nn.Module, path: str) -> None:
        super().__init__()
        self._known: list[tuple[Any, Any]] = []  # what was called before the cut, what it gave
        self._versions: list[int] | None = None  # of the tensors among these, at the cut
        self._next: int | None = 0  # call of this pass; None behind the cut
        parts = path.split(".")
        around = {net.get_submodule(".".join(parts[:i])) for i in range(len(parts))}
        self._copies = {module: module for module in net.get_submodule(path).modules()}
        self.net = self._copy(net, around)

    def _copy(self, module: nn.Module, around: Collection[nn.Module]) -> nn.Module:
        """A copy without hooks that is looked up as one call, unless the cut is inside."""
        if module in self._copies or isinstance(module, torch.jit.ScriptModule):
            return self._copies.get(module, module)
        own = self._copies[module] = module.__class__.__new__(module.__class__)
        own.__dict__.update(module.__dict__)
        inner = {name: m and self._copy(m, around) for name, m in module._modules.items()}
        own.__dict__["_modules"] = inner
        if module not in around and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            own.__dict__.update({name: OrderedDict() for name in _HOOKS})
            own.__dict__["forward"] = lambda *args, **kwargs: self._call(module, args, kwargs)
        return own

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._call(func, args, kwargs or {})

    def _call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        at, self._next = self._next, None  # nothing inside counts
        if at is None:
            return func(*args, **kwargs)
        if self._versions is None:
            self._known.append((func, func(*args, **kwargs)))
        elif at >= len(self._known) or self._known[at][0] != func:
            got = "another path for another anchor"
            raise InputError("a network that does the same before a cut in every pass", got)
        self._next = at + 1
        return self._known[at][1]

    def _tensors(self) -> list[Tensor]:
        found = tree_leaves([out for _, out in self._known])
        return [leaf for leaf in found if isinstance(leaf, Tensor)]

    def reach(self) -> None:
        """The pass has come to the cut."""
        self._next = None
        if self._versions is None:
            self._versions = [-1 if t.is_inference() else t._version for t in self._tensors()]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._next, found = 0, self._tensors()
        if any(t.is_inference() for t in found) or self._versions != [t._version for t in found]:
            self._known, self._versions = [], None


def arriving(net: nn.Module, path: str, graph: Graph, call: Call | None) -> Any:
    """What a submodule reads in a pass, which goes no further.

    In an export it goes on with anything: what nobody reads is not part of a program.
    """
    arrived: list[Any] = []

    def stop(h: Any) -> Any:
        arrived.append(h)
        if not exporting():
            raise _Reached
        taken = net.get_submodule(path).__dict__.get("forward")
        return h.new_zeros(h.size(0), taken.width) if isinstance(taken, _TakenForward) else h

    with suppress(_Reached):
        run_through(net, path, graph, call, stop)
    return arrived[0]


class _Reached(Exception):
    """The cut was reached; nothing more of this pass is needed."""


def _not_called_once(path: str, got: str) -> InputError:
    do = "See gduq.cut_points(net, graph) for the places where it can be cut."
    return InputError(f"'{path}' to be called once in a pass", got, do)


class _Read(NamedTuple):
    """What a taken layer gives: somebody else's reading of its input."""

    z: Tensor


class _TakenForward:
    """Stands for the map of a linear layer whose weights were taken."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, x: object = None, input: object = None) -> Tensor:
        read = x if input is None else input
        if isinstance(read, _Read):
            return read.z
        raise InputError("the model that reads for this layer to be called", "a part called alone")


def _save_nothing(*_: object) -> None:
    """PyG's layer would save the weights that it has not."""


def take_linear(net: nn.Module, path: str) -> nn.Linear | None:
    """`as_linear`; the network's own layer is left without weights, for others to read for it."""
    plain = as_linear(net, path)
    if plain is not None:
        left: Any = net.get_submodule(path)
        left.weight = left.bias = None
        left.forward, left._save_to_state_dict = _TakenForward(plain.out_features), _save_nothing
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

    The submodule at ``path`` reads it (``None``: the head of a `GNN`), and ``steps`` follow where
    both are a head. ``rows`` are those of the representation, ``row_kind`` those of the output,
    which is no logits where the network has an ``ending``.
    """

    def __init__(
        self,
        net: nn.Module,
        path: str | None,
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
            return cls(net, None, chain.task, chain.task, steps=())
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
        if self.path is None:
            own: Any = copy.deepcopy(self.net.head)
            return own.first, own.rest
        first = as_linear(self.net, self.path)
        assert first is not None
        assert self.steps is not None
        return first, build_tail(self.net, self.steps)

    @property
    def bounded(self) -> bool:
        """Whether something bounds what the head gives, such as a ReLU at its end."""
        alone = self.path is not None and self.has_head
        return alone and not ends_linear(nn.Sequential(*self.head()))

    def forward(self, graph: Graph) -> Tensor:
        """The representation ``[n, d]``; what follows does not run."""
        if self.path is None:
            return self.net.prefix(graph, "readout")[0]  # type: ignore[operator, no-any-return]
        return arriving(self.net, self.path, graph, self.call)  # type: ignore[no-any-return]

    def run(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The representation ``[n, d]`` and the network's logits ``[rows, O]``, in one pass."""
        if self.path is None:
            h = self(graph)
            return h, self.net.head(h)  # type: ignore[operator]
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
        path, steps, chain = spec["path"], spec["steps"], as_chain(net)
        places = (spec["rows"], spec["row_kind"])
        if chain is None:
            fits = path in dict(net.named_modules()) and all(p in get_args(Rows) for p in places)
        else:
            fits = path is None and places == (chain.task, chain.task)
        if not fits:
            got = ", ".join(f"{one!r:.30}" for one in (path, *places))
            raise InputError(f"a place where {type(net).__name__} is cut", got)
        known = None if steps is None else [Step.from_json(step) for step in steps]
        return cls(net, path, *places, call, spec["ending"], known)

    @property
    def description(self) -> str:
        """Where the representation is read, in few words."""
        where = "the head" if self.path is None else f"'{self.path}'"
        return f"{where}, one row per {self.row_kind}{removed_activation_note(self.ending)}"


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


def ends_linear(head: nn.Module) -> bool:
    """Whether a linear map is the last that changes anything."""
    return isinstance(_last(head), nn.Linear)


def _last(head: nn.Module) -> nn.Module | None:
    parts = [m for m in head.modules() if not list(m.children()) and not isinstance(m, _SILENT)]
    return parts[-1] if parts else None
