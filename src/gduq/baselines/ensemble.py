"""Baselines with the same face as `Anchored`: deep ensembles and Monte Carlo dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.anchored import Anchored
from gduq.auto import AutoAnchored, settled
from gduq.errors import InputError
from gduq.functional import ForcedDropout
from gduq.graph import check_graph, label_rows
from gduq.nn.call import Call, call_network
from gduq.nn.cut import evaluating
from gduq.nn.gnn import GNN

__all__ = ["Ensemble", "MCDropout", "sample"]


def sample(model: nn.Module, graph: Data, call: Call | None = None) -> Tensor:
    """Logits ``[K, m, C]`` of any model's labelled rows; a plain network answers with K = 1."""
    method = getattr(model, "sample", None)
    if callable(method):
        found: Tensor = method(graph)
        return found
    check_graph(graph)
    with evaluating(model):
        logits = call_network(model, graph, call)
    return logits[label_rows(graph, logits.size(0))].unsqueeze(0)


class Ensemble(nn.Module):
    """Networks trained independently of each other; every member is a hypothesis.

    `gduq.fit` trains the members one by one, or in parallel processes when asked.

    Args:
        members: Networks (plain or anchored), each with an initialisation of its own; or a
            function that makes one from a seed (which is torch's global seed, too, while it runs).
        size: How many to make, where ``members`` is a function.
        call: As in `gduq.anchor`, for plain networks.

    Example:
        >>> from gduq.nn import GNN
        >>> def make(seed):
        ...     return GNN(4, 8, 3, num_layers=2)
        >>> graph = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> Ensemble(make, size=3).sample(graph).shape
        torch.Size([3, 1, 3])
    """

    def __init__(
        self,
        members: Iterable[nn.Module] | Callable[[int], nn.Module],
        size: int | None = None,
        call: Call | None = None,
    ) -> None:
        super().__init__()
        networks = [settled(network) for network in _make(members, size)]
        _check_independent(networks)
        self.members, self.call = nn.ModuleList(networks), call

    def forward(self, graph: Data) -> Tensor:
        """Logits ``[rows, C]``, averaged over the members (each in its current mode)."""
        return torch.stack([_logits(m, graph, self.call) for m in self.members]).mean(dim=0)

    def sample(self, graph: Data) -> Tensor:
        """Logits ``[K, m, C]``: one hypothesis a member, or its whole bank if it is anchored."""
        found = [sample(member, graph, self.call) for member in self.members]
        shapes = [list(part.shape[1:]) for part in found]
        if any(shape != shapes[0] for shape in shapes):
            raise InputError("members with equal rows and classes", f"[rows, classes] of {shapes}")
        return torch.cat(found)

    def fit_bank(self, data: Any, **options: Any) -> Ensemble:
        """Fit the bank of every anchored member."""
        for member in self.members:
            _fit_bank(member, data, options)
        return self


class MCDropout(nn.Module):
    """A network whose dropout stays on in prediction (Gal & Ghahramani, ICML 2016).

    Every dropout call is caught, functional ones included; everything else, BatchNorm above all,
    stays in evaluation mode.

    Args:
        net: Any network with dropout, plain or anchored.
        num_samples: Passes; an anchored network gives its whole bank in each.
        seed: The masks are the same in every call of `sample`.
        call: As in `gduq.anchor`, for a plain network.
    """

    def __init__(
        self, net: nn.Module, num_samples: int = 10, seed: int = 0, call: Call | None = None
    ) -> None:
        super().__init__()
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
            raise InputError("num_samples >= 1, a whole number", repr(num_samples))
        backbone = _backbone(net)
        if type(backbone) is GNN and backbone.config["dropout"] == 0:
            raise _drops_nothing(backbone)  # of other networks only a pass can tell
        self.net, self.num_samples, self.seed, self.call = settled(net), num_samples, seed, call

    def forward(self, graph: Data) -> Tensor:
        """The network's own output, as in training."""
        return _logits(self.net, graph, self.call)

    def sample(self, graph: Data) -> Tensor:
        """Logits ``[K, m, C]`` with fresh dropout masks in each pass."""
        with _seeded(self.seed), ForcedDropout() as dropout:
            passes = [sample(self.net, graph, self.call) for _ in range(self.num_samples)]
        if dropout.calls == 0:
            raise _drops_nothing(self.net)
        return torch.cat(passes)

    def fit_bank(self, data: Any, **options: Any) -> MCDropout:
        """Fit the bank of an anchored network."""
        _fit_bank(self.net, data, options)
        return self


def _backbone(net: nn.Module) -> nn.Module:
    """The network inside the wrapper, if there is one."""
    first = net.candidates[0] if isinstance(net, AutoAnchored) else net
    return first.cut.net if isinstance(first, Anchored) else first


def _drops_nothing(net: nn.Module) -> InputError:
    return InputError(
        "a network with dropout for MCDropout",
        f"{type(net).__name__}, which drops nothing",
        "Build it with dropout > 0.",
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Within this context torch's global state starts from a seed; outside nothing changes."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _make(
    members: Iterable[nn.Module] | Callable[[int], nn.Module], size: int | None
) -> list[nn.Module]:
    if isinstance(members, nn.ModuleList) or not callable(members):
        networks = list(members)
        if not networks:
            raise InputError("at least one member", "none")
        if size is not None and size != len(networks):
            raise InputError(f"size={len(networks)}, the number of members", size)
    elif isinstance(members, nn.Module):
        raise InputError("several networks, or a function that makes one from a seed", "one")
    else:
        if size is None or size < 1:
            raise InputError("size >= 1 with a function that makes members", size)
        networks = [_made(members, seed) for seed in range(size)]
    strange = [type(n).__name__ for n in networks if not isinstance(n, nn.Module)]
    if strange:
        raise InputError("members that are torch modules", strange[0])
    return networks


def _made(make: Callable[[int], nn.Module], seed: int) -> nn.Module:
    with _seeded(seed):
        return make(seed)


def _fit_bank(net: nn.Module, data: Any, options: dict[str, Any]) -> None:
    fit_bank: Any = getattr(net, "fit_bank", None)
    if fit_bank is not None:
        fit_bank(data, **options)


def _logits(net: nn.Module, graph: Data, call: Call | None) -> Tensor:
    return net(graph) if hasattr(net, "sample") else call_network(net, graph, call)


def _check_independent(members: Sequence[nn.Module]) -> None:
    for i, first in enumerate(members):
        for j, second in enumerate(members[:i]):
            if first is second:
                raise InputError("members that are separate networks", f"{j} and {i} are one")
            if _equal(list(first.parameters()), list(second.parameters())):
                raise InputError(
                    "members with initialisations of their own",
                    f"members {j} and {i} with equal weights",
                    "Build each anew under another seed instead of copying one.",
                )


def _equal(one: list[nn.Parameter], two: list[nn.Parameter]) -> bool:
    """Whether two lists of weights, not empty, are the same numbers."""
    if not one or [p.shape for p in one] != [p.shape for p in two]:
        return False
    return all(torch.equal(a, b.to(a)) for a, b in zip(one, two, strict=True))
