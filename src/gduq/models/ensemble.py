"""`Ensemble` and `Stack`: models that answer together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from gduq._checks import check_int
from gduq.errors import InputError
from gduq.graphs import Rows
from gduq.models.network import Network
from gduq.models.predictor import ModelFactory, ModelOutput, Predictor
from gduq.prediction.mixture import weights_of
from gduq.tracing.call import Call
from gduq.tracing.trunk import Trunk

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

__all__ = ["Ensemble", "Stack", "inner_spec", "mixture", "seeded"]


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
    shares: Tensor | None

    def __init__(
        self,
        members: Iterable[nn.Module] | Callable[[int], nn.Module],
        size: int | None = None,
        call: Call | None = None,
    ) -> None:
        networks = _make(members, size)
        _check_independent(networks)
        self._init(net if isinstance(net, Predictor) else Network(net, call) for net in networks)

    def _init(self, members: Iterable[nn.Module], shares: Tensor | None = None) -> Self:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("shares", shares)
        return self

    @property
    def parts(self) -> Mapping[str, Predictor]:
        return {f"member-{i}": member for i, member in enumerate(self)}

    @property
    def row_kind(self) -> Rows | None:
        return next((member.row_kind for member in self), None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.members)

    def forward(self, graph: Any) -> Tensor:
        """Outputs ``[rows, O]``, averaged over the members (each in its current mode)."""
        return torch.stack([member(graph) for member in self]).mean(dim=0)

    def forward_samples(self, graph: Any, features: bool = False) -> ModelOutput:
        """The hypotheses of all members, of which each counts by its share, however many it has.
        The representation is that of the first member that has one.

        A trunk that several members stand on runs once.
        """
        trunks = [member.trunk for member in self]
        runs: dict[Trunk, tuple[Tensor, Tensor]] = {}
        found: list[ModelOutput] = []
        for member, trunk in zip(self, trunks, strict=True):
            if trunk is None or not trunk.has_head or trunks.count(trunk) == 1:
                asks = features and all(one.features is None for one in found)
                found.append(member.forward_samples(graph, asks))
                continue
            if trunk not in runs:
                with torch.no_grad():
                    h, outputs = trunk.run(graph)
                runs[trunk] = trunk.labelled(h, graph), trunk.labelled(outputs, graph)
            h, outputs = runs[trunk]
            found.append(ModelOutput(member.from_rows(h, outputs), h))
        shapes = [list(one.outputs.shape[1:]) for one in found]
        if any(shape != shapes[0] for shape in shapes):
            raise InputError("members with equal rows and outputs", f"[rows, outputs] of {shapes}")
        return mixture(self, found, self.shares)

    def check_ready(self) -> None:
        for member in self:
            member.check_ready()

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "members": [inner_spec(member) for member in self]}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> Self:
        made = (factory.model(member) for member in spec["members"])
        return cls.__new__(cls)._init(made)  # members have equal weights until they are filled

    def __repr__(self) -> str:
        return f"Ensemble({len(self.members)} of {self.members[0]!r})"


class Stack(Ensemble):
    """Models that answer together, each with a weight; what `gduq.choose` returns.

    Models on one trunk share its pass, so that a stack of heads costs about as much as one.

    Args:
        members: Trained models that answer for the same rows.
        shares: Their weights, at least 0 and with a sum of 1.

    Attributes:
        leaderboard: What `gduq.choose` found out about every candidate, a table; or ``None``.
    """

    kind: ClassVar[str] = "Stack"
    shares: Tensor

    def __init__(self, members: Sequence[Predictor], shares: Sequence[float] | Tensor) -> None:
        given = torch.as_tensor(shares, dtype=torch.float64)
        if not members or given.shape != (len(members),):
            raise InputError("one weight per member", f"{len(given)} for {len(members)} members")
        if not (bool((given >= 0).all()) and abs(float(given.sum()) - 1) <= 1e-6):
            raise InputError("weights of at least 0 with a sum of 1", given.tolist())
        self._init(members, given / given.sum())
        first = members[0].target
        self.target = None if first is None else first.combined()
        self.leaderboard: pd.DataFrame | None = None

    @property
    def parts(self) -> Mapping[str, Predictor]:
        return {}  # they are trained already

    def forward(self, graph: Any) -> Tensor:
        """Log-probabilities are of the mixture only: see `gduq.predict`."""
        raise InputError("gduq.predict(model, data) for a stack", "model(graph)")

    def spec(self) -> dict[str, Any]:
        trunks, board = [member.trunk for member in self], self.leaderboard
        shared = [None if trunk is None else trunks.index(trunk) for trunk in trunks]
        table = None if board is None else board.to_dict("records")
        return {**super().spec(), "shared": shared, "leaderboard": table}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> Self:
        members: list[Predictor] = []
        for inner, first in zip(spec["members"], spec["shared"], strict=True):
            member = factory.model(inner)
            if first is not None and first < len(members):
                member.share_trunk(members[first].trunk)
            members.append(member)
        stack = cls(members, [1 / len(members)] * len(members))
        if spec["leaderboard"] is not None:
            import pandas as pd

            stack.leaderboard = pd.DataFrame(spec["leaderboard"])
        return stack

    def __repr__(self) -> str:
        pairs = zip(self.shares.tolist(), self, strict=True)
        return f"Stack({', '.join(f'{share:.2f} {member!r}' for share, member in pairs)})"


def mixture(
    models: Iterable[Predictor], answers: Sequence[ModelOutput], shares: Tensor | None = None
) -> ModelOutput:
    """All hypotheses of several models, each at its temperature and with its share ``[J]`` (equal
    ones by default), and the first representation. Weights are ``None`` where all are equal."""
    pairs = zip(models, answers, strict=True)
    outputs = torch.cat([model.calibrated(one.outputs, one.weights) for model, one in pairs])
    rows = next((one.features for one in answers if one.features is not None), None)
    if shares is None:
        sizes = {one.outputs.size(0) for one in answers}
        if len(sizes) == 1 and all(one.weights is None for one in answers):
            return ModelOutput(outputs, rows)
        shares = outputs.new_full((len(answers),), 1 / len(answers), dtype=torch.float64)
    own = (weights_of(one.outputs, one.weights).to(shares) for one in answers)
    return ModelOutput(outputs, rows, torch.cat([s * w for s, w in zip(shares, own, strict=True)]))


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
    if isinstance(members, nn.Module) and not isinstance(members, nn.ModuleList):
        raise InputError("several networks, or a function that makes one from a seed", "one")
    if callable(members) and not isinstance(members, nn.ModuleList):
        networks = [seeded(members, seed) for seed in range(check_int("size", size, 1))]
    else:
        networks = list(members)
    strange = [type(n).__name__ for n in networks if not isinstance(n, nn.Module)]
    if strange or not networks:
        raise InputError("members that are torch modules", strange[0] if strange else "none")
    return networks


def _check_independent(members: Sequence[nn.Module]) -> None:
    weights = [list(member.parameters()) for member in members]
    for (i, one), (j, two) in combinations(enumerate(weights), 2):
        alike = one and [p.shape for p in one] == [p.shape for p in two]
        if alike and all(torch.equal(a, b.to(a)) for a, b in zip(one, two, strict=True)):
            got = f"members {i} and {j} with equal weights"
            do = "Build each anew under another seed instead of copying one."
            raise InputError("members with initialisations of their own", got, do)
