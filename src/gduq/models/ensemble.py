"""`Ensemble`: networks trained independently of each other; every member is a hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from gduq.errors import InputError
from gduq.models.network import Network
from gduq.models.predictor import ModelFactory, ModelOutput, Predictor
from gduq.tracing.call import Call

__all__ = ["Ensemble", "mixture", "seeded"]

_Module = TypeVar("_Module", bound=nn.Module)


class Ensemble(Predictor):
    """Networks trained independently of each other; every member is a hypothesis.

    `gduq.fit` trains the members one by one, and calibrates them together.

    Args:
        members: Networks (plain or anchored), each with an initialisation of its own; or a
            function that makes one from a seed (which is torch's global seed, too, while it runs).
        size: How many to make, where ``members`` is a function.
        call: As in `gduq.anchor`, for plain networks.

    Example:
        >>> from torch_geometric.data import Data
        >>> from gduq.nn import GNN
        >>> def make(seed):
        ...     return GNN(4, 8, 3, num_layers=2)
        >>> graph = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> Ensemble(make, size=3).sample(graph).shape
        torch.Size([3, 1, 3])
    """

    kind: ClassVar[str] = "Ensemble"

    def __init__(
        self,
        members: Iterable[nn.Module] | Callable[[int], nn.Module],
        size: int | None = None,
        call: Call | None = None,
    ) -> None:
        super().__init__()
        networks = _make(members, size)
        _check_independent(networks)
        self.members = nn.ModuleList(
            net if isinstance(net, Predictor) else Network(net, call) for net in networks
        )

    @property
    def parts(self) -> Mapping[str, Predictor]:
        return {f"member-{i}": member for i, member in enumerate(self)}

    def __iter__(self) -> Any:
        return iter(self.members)

    def forward(self, graph: Any) -> Tensor:
        """Outputs ``[rows, O]``, averaged over the members (each in its current mode)."""
        return torch.stack([member(graph) for member in self]).mean(dim=0)

    def forward_samples(self, graph: Any, features: bool = False) -> ModelOutput:
        """One hypothesis per member, or all it has if it has several; every member counts the
        same, however many it has. The representation is that of the first member."""
        found, rows = [], None
        for member in self:
            found.append(member.forward_samples(graph, features and rows is None))
            rows = found[-1].features if rows is None else rows
        shapes = [list(one.outputs.shape[1:]) for one in found]
        if any(shape != shapes[0] for shape in shapes):
            raise InputError("members with equal rows and outputs", f"[rows, outputs] of {shapes}")
        return mixture(self, found)._replace(features=rows)

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "members": [inner_spec(member) for member in self]}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> Ensemble:
        model = cls.__new__(cls)  # members have equal weights until they are filled
        Predictor.__init__(model)
        model.members = nn.ModuleList(factory.model(member) for member in spec["members"])
        return model

    def __repr__(self) -> str:
        return f"Ensemble({len(self.members)} of {self.members[0]!r})"


def mixture(
    models: Iterable[Predictor], samples: Sequence[ModelOutput], shares: Tensor | None = None
) -> ModelOutput:
    """All hypotheses of several models, each at its temperature and with its share ``[J]``.

    ``None`` means equal shares. Weights are then ``None``, too, where all models have equally
    many hypotheses that count the same.
    """
    answers = [
        one._replace(outputs=model.calibrated(one.outputs, one.weights))
        for model, one in zip(models, samples, strict=True)
    ]
    sizes = {one.outputs.size(0) for one in answers}
    outputs = torch.cat([one.outputs for one in answers])
    if shares is None:
        if len(sizes) == 1 and all(one.weights is None for one in answers):
            return ModelOutput(outputs)
        even = 1 / len(answers)
        shares = outputs.new_full((len(answers),), even, dtype=torch.float64)
    weights = []
    for share, one in zip(shares, answers, strict=True):
        size = one.outputs.size(0)
        own = share.new_full((size,), 1 / size) if one.weights is None else one.weights
        weights.append(share * own.to(share))
    return ModelOutput(outputs, None, torch.cat(weights))


def inner_spec(model: Predictor) -> dict[str, Any]:
    """The spec of a model inside another, with what it answers for."""
    target = None if model.target is None else model.target.spec()
    return {**model.spec(), "target": target}


def seeded(make: Callable[[int], nn.Module], seed: int) -> nn.Module:
    """A network made under a seed; torch's global state comes back as it was."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return make(seed)


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
        networks = [seeded(members, seed) for seed in range(size)]
    strange = [type(n).__name__ for n in networks if not isinstance(n, nn.Module)]
    if strange:
        raise InputError("members that are torch modules", strange[0])
    return networks


def _check_independent(members: Sequence[nn.Module]) -> None:
    weights = [list(member.parameters()) for member in members]
    for (i, one), (j, two) in combinations(enumerate(weights), 2):
        if members[i] is members[j]:
            raise InputError("members that are separate networks", f"{i} and {j} are one")
        alike = one and [p.shape for p in one] == [p.shape for p in two]
        if alike and all(torch.equal(a, b.to(a)) for a, b in zip(one, two, strict=True)):
            raise InputError(
                "members with initialisations of their own",
                f"members {i} and {j} with equal weights",
                "Build each anew under another seed instead of copying one.",
            )
