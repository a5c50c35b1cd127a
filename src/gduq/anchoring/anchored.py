"""`Anchored`: any network, read relative to random anchors."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from gduq.anchoring.anchors import Anchors, make_source, source_from, source_name, source_spec
from gduq.anchoring.bank import VALIDATION, AnchorDraws, Banked
from gduq.anchoring.head_point import AnchoredHead, HeadPoint, head_outputs
from gduq.anchoring.linear import AnchoredLinear
from gduq.anchoring.locating import make_point, needs_graph, point_from
from gduq.anchoring.points import Point
from gduq.anchoring.recipe import Recipe
from gduq.errors import InputError
from gduq.graph import Rows, label_rows, on_device
from gduq.nn.call import Call, copied, evaluating
from gduq.nn.network_specs import network_spec
from gduq.nn.trunk import Trunk, answer_features
from gduq.prediction.predictor import Answer, HeadJob, Supply
from gduq.targets import Target, Values

__all__ = ["Anchored"]


class Anchored(Banked):
    r"""A network whose representation at one point is read relative to anchors.

    At the point, :math:`h` is replaced by the pair :math:`[h - c \,\|\, c]`. In training every row
    (or graph) has a random anchor of its own; in evaluation K fixed anchors, the *bank*, act as K
    hypotheses. The prefix runs once for all of them, and so does the map's part that does not see
    the anchor.

    Made by `gduq.anchor`, which describes the arguments. Calling the model gives outputs: with
    random anchors in training; in evaluation those of the mean hypothesis, see `gduq.predict` for
    the mixture.
    """

    kind: ClassVar[str] = "Anchored"

    def __init__(
        self,
        net: nn.Module,
        recipe: Recipe | None = None,
        call: Call | None = None,
        seed: int = 0,
        like: Any = None,
        trunk: Trunk | None = None,
    ) -> None:
        super().__init__(recipe or Recipe(), seed)
        self.call = call
        net = net if trunk is not None else copied(net)
        if trunk is None and like is None and needs_graph(net, self.recipe.at):
            self._waiting = net
            return
        self._cut(net, like, trunk)

    def _cut(self, net: nn.Module, graph: Any, trunk: Trunk | None = None) -> None:
        """Make the point, and freeze what only a pass over the graph shows to run before it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            point = make_point(net, self.recipe, self.call, graph, trunk)
        self._set_point(point)
        if self.recipe.freeze and graph is not None:
            with torch.no_grad(), evaluating(self):
                self.point.prefix(graph)

    def _set_point(self, point: Point, source: Anchors | None = None) -> None:
        """Build what depends on the place: the anchored map and the source of anchors."""
        recipe = self.recipe
        generator = torch.Generator().manual_seed(self.seed)
        branch = isinstance(point, HeadPoint) and point.tail.plain is not None
        init = "random" if branch else recipe.init  # a branch starts at zero at its end
        if isinstance(point, HeadPoint) and not branch and init == "random":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                point.tail.begin_anew()
        self.point, self._waiting = point, None
        self.linear = AnchoredLinear.reading_for(point.plain, init, generator)
        del point.__dict__["plain"]
        self.source = source or make_source(recipe.anchors, point.channels, point.moves)
        self.bank = self.linear.weight.new_zeros(0, point.channels)
        self.temperature = self.temperature.to(self.linear.weight)
        point.frozen = recipe.freeze
        if recipe.freeze:
            if not point.has_prefix:
                raise InputError(
                    "a place behind something to freeze",
                    "freeze=True at the input",
                    "Anchor at a later place (see gduq.cut_points), or leave freeze out.",
                )
            for module in point.prefix_modules():
                module.requires_grad_(False)
            self.train(self.training)

    def locate(self, graph: Any) -> None:
        """Find the place in the network, with the help of a graph; done once."""
        if not isinstance(graph, (Data, HeteroData)):
            raise InputError(
                "one graph, a torch_geometric Data, HeteroData or Batch",
                type(graph).__name__,
                "Call an anchored model with the graph itself: model(data).",
            )
        if self._waiting is not None:
            device = next((p.device for p in self._waiting.parameters()), torch.device("cpu"))
            training = self.training
            self._cut(self._waiting, on_device(graph, device))
            self.train(training)

    @property
    def trunk(self) -> Trunk | None:
        point = getattr(self, "point", None)
        return point.trunk if isinstance(point, HeadPoint) else None

    @property
    def answers(self) -> Rows | None:
        return None if self._waiting is not None else self.point.answers

    @property
    def frozen(self) -> bool:
        return self.recipe.freeze

    @property
    def starts_trained(self) -> bool:
        return self.recipe.init == "identity"

    # -- training ------------------------------------------------------------------------------

    def forward(self, graph: Any, generator: torch.Generator | None = None) -> Tensor:
        """Outputs ``[rows, O]`` of all nodes, graphs or edges.

        In training each row or graph gets a random anchor (from ``generator``, or torch's global
        state as dropout does); in evaluation the outputs are averaged over the bank.
        """
        if self.training and self._waiting is not None:  # an optimiser would lack the new weights
            raise InputError(
                "a model whose place is known before training in a loop of your own",
                "one that has not seen a graph",
                "Pass like=graph to gduq.anchor, or call model.locate(graph), then make the "
                "optimiser.",
            )
        self.locate(graph)
        if self.training:
            return self.training_pass(graph, generator=generator)[0][0]
        return self.bank_outputs(self.point.prefix(graph), graph).mean(dim=0)

    def loss(self, graph: Any, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        draws, mask = self.recipe.draws, self.recipe.one_mask
        return self._losses(graph, *self.training_pass(graph, draws, mask, generator))

    def training_pass(
        self,
        graph: Any,
        draws: int = 1,
        mask: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs ``[D, rows, O]`` with D random anchors per row, and which were masked.

        They go through one pass of gduq's own networks, in which BatchNorm sees their mixture, and
        one after the other through any other: its graph is not copied. See `AnchorDraws`.
        """
        self.locate(graph)
        if draws < 1 or not 0.0 <= mask < 1.0:
            raise InputError("draws >= 1 and mask in [0, 1)", f"draws={draws}, mask={mask}")
        if draws > 1 and not (self.point.holds_copies or self.recipe.freeze):
            each = [self.training_pass(graph, 1, mask, generator) for _ in range(draws)]
            return torch.cat([out for out, _ in each]), torch.cat([masked for _, masked in each])
        anchors = AnchorDraws(self, graph, draws, mask, generator)
        if self.recipe.freeze:
            state = self._frozen_prefix(graph)
            outputs = self.point.suffix(anchors.read(state.h), state, graph)
        else:
            outputs = self.point.run(graph, anchors.read)
        return outputs, anchors.masked(outputs.size(1))

    def train(self, mode: bool = True) -> Anchored:
        super().train(mode)
        if self.recipe.freeze and mode and self._waiting is None:
            for module in self.point.prefix_modules():
                module.eval()
        return self

    def head_job(self, h: Tensor) -> HeadJob | None:
        point = self.point
        assert isinstance(point, HeadPoint)
        self.fit_to_rows(h)
        masks = self.recipe.masks
        heads = [copy.deepcopy(AnchoredHead(self.linear, point.tail)) for _ in masks]
        return HeadJob(
            heads,
            masks,
            self.bank[:VALIDATION],
            lambda count, rng: self.source.draw(h, count, rng).to(h.dtype),
            self.recipe.draws,
            keep_all=False,
        )

    def take_heads(self, heads: Sequence[nn.Module]) -> None:
        (best,) = heads
        AnchoredHead(self.linear, self.point.tail).load_state_dict(best.state_dict())  # type: ignore[arg-type]

    def share_trunk(self, trunk: Trunk) -> None:
        assert isinstance(self.point, HeadPoint)
        self.point.trunk = trunk

    # -- prediction ----------------------------------------------------------------------------

    def answer(self, graph: Any, features: bool = False) -> Answer:
        self.locate(graph)
        trunk = self.trunk
        if trunk is not None:
            h = trunk.labelled(self.point.prefix(graph).h, graph)
            return Answer(self.from_rows(h, h), h)
        state = self.point.prefix(graph)
        outputs = self.bank_outputs(state, graph)
        outputs = self._formed(outputs[:, label_rows(graph, outputs.size(1))])
        return Answer(outputs, self._features(state.h, graph) if features else None)

    def represented(self, graph: Any) -> Tensor | None:
        self.locate(graph)
        h, trunk = self.point.prefix(graph).h, self.trunk
        return self._features(h, graph) if trunk is None else trunk.labelled(h, graph)

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        assert isinstance(self.point, HeadPoint)
        return self._formed(head_outputs(self.linear, self.point.tail, self.anchors_in_use, h))

    def adapt(self, outputs: Tensor, y: Tensor, before: Target | None = None) -> None:
        point, target = self.point, self.target
        assert target is not None
        if isinstance(point, HeadPoint) and not target.fits(before):  # the head learns anew
            source = None if isinstance(self.recipe.anchors, str) else self.source
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                point = HeadPoint(point.trunk, point.branch)
            self._set_point(point, source)
            self.to(outputs.device)
        if isinstance(point, HeadPoint) and isinstance(target, Values) and target.is_open:
            if point.tail.noise is None:
                point.tail.widen(target, outputs, y)
            self.target = target.combined()

    def _features(self, h: Tensor, graph: Any) -> Tensor:
        if h.layout != torch.strided:  # bag-of-words input: what the anchored layer makes of it
            h = self.linear.residual(h)
        return answer_features(h, graph, self.point.rows, self.point.answers)

    # -- keeping -------------------------------------------------------------------------------

    def spec(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "call": self.call is not None,
            "recipe": self.recipe.spec(),
            "source": source_spec(self.source),
            "seed": self.seed,
            "point": self.point.spec(),
            "net": network_spec(self.point.net),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], supply: Supply) -> Anchored:
        recipe, call, net = Recipe(**spec["recipe"]), supply.call(spec), supply.net(spec["net"])
        model = cls.__new__(cls)
        Banked.__init__(model, recipe, spec["seed"])
        model.call = call
        model._set_point(point_from(spec["point"], net, call), source_from(spec["source"]))
        return model

    def __repr__(self) -> str:
        if self._waiting is not None:
            where = f"at={self.recipe.at!r}, found at the first graph"
            return f"Anchored({type(self._waiting).__name__}, {where})"
        anchors = self.bank.size(0) or self.recipe.num_anchors
        frozen = "what precedes it is frozen" if self.recipe.freeze else "all of it learns"
        frozen = "only the head learns" if self.trunk is not None else frozen
        return (
            f"Anchored({type(self.point.net).__name__} at {self.point.description}; "
            f"{anchors} anchors ({source_name(self.source)}); {frozen})"
        )
