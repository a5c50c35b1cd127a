"""Mixtures: `Ensemble` and `Stack` of several models, `MCDropout` of several passes of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from gduq.errors import InputError, check_int
from gduq.graphs import Graph
from gduq.models.network import Network, fingerprint
from gduq.models.predictor import ModelFactory, ModelOutput, Predictor, Spec
from gduq.nn.layers import ForcedDropout
from gduq.prediction.mixture import weights_of
from gduq.tracing.call import Call, evaluating

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

__all__ = ["Ensemble", "MCDropout", "Stack", "mixture"]


class Ensemble(Predictor):
    """Networks trained independently of each other; every member is a hypothesis.

    `gduq.fit` trains the members one by one, and calibrates them together.

    Args:
        members: Networks (plain or anchored), each with an initialisation of its own.
        call: As in `gduq.anchor`, for plain networks.

    Example:
        >>> from torch_geometric.data import Data
        >>> from gduq.nn import GNN
        >>> nets = [GNN(4, 8, 3, num_layers=2) for _ in range(3)]
        >>> graph = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> Ensemble(nets).sample(graph).shape
        torch.Size([3, 1, 3])
    """

    shares: Tensor | None

    def __init__(self, members: Iterable[nn.Module], call: Call | None = None) -> None:
        several = not isinstance(members, nn.Module) or isinstance(members, nn.ModuleList)
        networks = list(members) if several and isinstance(members, Iterable) else []
        if not networks or any(not isinstance(net, nn.Module) for net in networks):
            raise InputError("several torch modules as members", f"{members!r:.80}")
        prints = [fingerprint(net) for net in networks]
        alike = [i for i, one in enumerate(prints) if one and one in prints[:i]]
        if alike:
            got = f"members {prints.index(prints[alike[0]])} and {alike[0]} with equal weights"
            do = "Build each anew under another seed instead of copying one."
            raise InputError("members with initialisations of their own", got, do)
        self._init(net if isinstance(net, Predictor) else Network(net, call) for net in networks)

    def _init(self, members: Iterable[nn.Module], shares: Tensor | None = None) -> Self:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("shares", shares)
        return self

    @property
    def parts(self) -> Mapping[str, Predictor]:
        return {f"member-{i}": member for i, member in enumerate(self)}

    def __iter__(self) -> Iterator[Predictor]:
        return (cast(Predictor, member) for member in self.members)

    def forward_samples(self, graph: Graph, features: bool = False) -> ModelOutput:
        """The hypotheses of all members, of which each counts by its share, however many it has.
        The representation is that of the first member that has one.

        A network in front of the heads of several members runs once.
        """
        places = [_place(member) for member in self]
        runs: dict[object, list[Tensor]] = {}  # representation and outputs, of rows that count
        found: list[ModelOutput] = []
        for member, place in zip(self, places, strict=True):
            trunk = member.trunk
            if trunk is None or place is None or places.count(place) == 1:
                asks = features and all(one.features is None for one in found)
                found.append(member.forward_samples(graph, asks))
                continue
            if place not in runs:
                with torch.no_grad():
                    runs[place] = [trunk.labelled(rows, graph) for rows in trunk.run(graph)]
            h, outputs = runs[place]
            found.append(ModelOutput(member.from_rows(h, outputs), h))
        shapes = [list(one.outputs.shape[1:]) for one in found]
        if any(shape != shapes[0] for shape in shapes):
            raise InputError("members with equal rows and outputs", f"[rows, outputs] of {shapes}")
        return mixture(self, found, self.shares)

    def _spec(self) -> Spec:
        return {"members": [member.spec() for member in self]}

    @classmethod
    def from_spec(cls, spec: Spec, factory: ModelFactory) -> Self:
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

    shares: Tensor

    def __init__(self, members: Sequence[Predictor], shares: Sequence[float] | Tensor) -> None:
        given = torch.as_tensor(shares, dtype=torch.float64)
        fits = given.shape == (len(members),) and bool((given >= 0).all())
        if not (fits and abs(float(given.sum()) - 1) <= 1e-6):
            raise InputError("a weight per member, 0 or more, with a sum of 1", given.tolist())
        self._init(members, given / given.sum())
        first = members[0].target
        self.target = None if first is None else first.combined()
        self.leaderboard: pd.DataFrame | None = None

    @property
    def parts(self) -> Mapping[str, Predictor]:
        return {}  # they are trained already

    def _spec(self) -> Spec:
        places, board = [_place(member) for member in self], self.leaderboard
        shared = [None if place is None else places.index(place) for place in places]
        table = None if board is None else board.to_dict("records")
        return {**super()._spec(), "shared": shared, "leaderboard": table}

    @classmethod
    def from_spec(cls, spec: Spec, factory: ModelFactory) -> Self:
        members = [factory.model(member) for member in spec["members"]]
        stack = cls(members, [1 / len(members)] * len(members))
        if spec["leaderboard"] is not None:
            import pandas as pd

            stack.leaderboard = pd.DataFrame(spec["leaderboard"])
        return stack

    def __repr__(self) -> str:
        pairs = zip(self.shares.tolist(), self, strict=True)
        return f"Stack({', '.join(f'{share:.2f} {member!r}' for share, member in pairs)})"


class MCDropout(Predictor):
    """A network whose dropout stays on in prediction (Gal & Ghahramani, ICML 2016).

    Every dropout call is caught, functional ones and attention's own included; everything else,
    BatchNorm above all, stays in evaluation mode. Masks are drawn for a whole batch at once: what
    a graph gets depends on the graphs it is predicted together with.

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
        self.net = net if isinstance(net, Predictor) else Network(net, call)
        self.num_samples, self.seed = check_int("num_samples", num_samples, 1), seed

    @property
    def parts(self) -> Mapping[str, Predictor]:
        return {"net": self.net}

    def forward_samples(self, graph: Graph, features: bool = False) -> ModelOutput:
        """Outputs with fresh dropout masks in each pass; the representation is without dropout."""
        self.net.locate(graph)
        devices = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices=devices), evaluating(self):
            torch.manual_seed(self.seed)
            with ForcedDropout() as dropout:
                passes = [self.net.forward_samples(graph) for _ in range(self.num_samples)]
        if dropout.calls == 0:
            got = f"{self.net!r}, which drops nothing"
            raise InputError("a network with dropout", got, "Build it with dropout > 0.")
        rows = self.net.forward_samples(graph, True).features if features else None
        return mixture([self.net] * len(passes), passes)._replace(features=rows)

    def _spec(self) -> Spec:
        return {"num_samples": self.num_samples, "seed": self.seed, "model": self.net.spec()}

    @classmethod
    def from_spec(cls, spec: Spec, factory: ModelFactory) -> MCDropout:
        return cls(factory.model(spec["model"]), spec["num_samples"], spec["seed"])

    def __repr__(self) -> str:
        return f"MCDropout({self.net!r}, num_samples={self.num_samples})"


def _place(member: Predictor) -> tuple[nn.Module, str] | None:
    """The network in front of a model's head, and where that is; ``None`` without."""
    trunk = member.trunk
    return None if trunk is None or not trunk.has_head else (trunk.net, trunk.path)


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
