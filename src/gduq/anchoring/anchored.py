"""`Anchored`: any network, read relative to random anchors."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data, HeteroData

from gduq.anchoring.anchor_draws import AnchorDraws, anchor_rows
from gduq.anchoring.anchors import (
    Anchors,
    GaussianAnchors,
    make_source,
    source_name,
)
from gduq.anchoring.banks import head_outputs
from gduq.anchoring.head_point import AnchoredHead, HeadPoint
from gduq.anchoring.linear import AnchoredLinear
from gduq.anchoring.locating import make_point, needs_graph
from gduq.anchoring.point_specs import point_from, source_from, source_spec
from gduq.anchoring.points import Point, State
from gduq.anchoring.recipe import Recipe
from gduq.errors import InputError, NotFittedError
from gduq.export_mode import chunks
from gduq.graph import iterate, label_rows, on_device, repeat, targets
from gduq.nn.call import Call
from gduq.nn.modes import evaluating
from gduq.nn.network_specs import network_spec
from gduq.nn.trunk import Trunk
from gduq.prediction.predictor import Answer, HeadJob, Predictor, Supply
from gduq.targets import Target, Values

__all__ = ["Anchored"]

_CHUNK = 2**22  # most numbers held at once while the bank passes through the suffix


class Anchored(Predictor):
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
    bank: Tensor

    def __init__(
        self,
        net: nn.Module,
        recipe: Recipe | None = None,
        call: Call | None = None,
        seed: int = 0,
        like: Any = None,
        trunk: Trunk | None = None,
    ) -> None:
        super().__init__()
        self.recipe = recipe or Recipe()
        self.calibrate = self.recipe.calibrate
        self.call, self.seed = call, int(seed)
        self.register_buffer("bank", torch.zeros(0))
        self._states: WeakIdKeyDictionary | None = None
        self._waiting: nn.Module | None = None
        net = net if trunk is not None else copy.deepcopy(net)
        if trunk is None and like is None and needs_graph(net, self.recipe.at):
            self._waiting = net
            return
        self._set_point(self._made(net, like, trunk))
        if like is not None:
            self._settle(like)

    def _made(self, net: nn.Module, graph: Any, trunk: Trunk | None = None) -> Point:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return make_point(net, self.recipe, self.call, graph, trunk)

    def _set_point(self, point: Point, source: Anchors | None = None) -> None:
        """Build what depends on the place: the anchored map and the source of anchors."""
        recipe = self.recipe
        generator = torch.Generator().manual_seed(self.seed)
        branch = isinstance(point, HeadPoint) and point.tail.plain is not None
        init = "random" if branch else recipe.init  # a branch starts at zero at its end
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
        if self._waiting is not None:
            device = next((p.device for p in self._waiting.parameters()), torch.device("cpu"))
            training = self.training
            graph = on_device(graph, device)
            self._set_point(self._made(self._waiting, graph))
            self._settle(graph)
            self.train(training)

    def _settle(self, graph: Any) -> None:
        """Freeze what runs before the point, where only a pass shows what that is."""
        if self.recipe.freeze:
            with torch.no_grad(), evaluating(self):
                self.point.prefix(graph)

    @property
    def trunk(self) -> Trunk | None:
        point = getattr(self, "point", None)
        return point.trunk if isinstance(point, HeadPoint) else None

    @property
    def frozen(self) -> bool:
        return self.recipe.freeze

    # -- training ------------------------------------------------------------------------------

    def forward(self, graph: Any, generator: torch.Generator | None = None) -> Tensor:
        """Outputs ``[rows, O]`` of all nodes, graphs or edges.

        In training each row or graph gets a random anchor (from ``generator``, or torch's global
        state as dropout does); in evaluation the outputs are averaged over the bank.
        """
        _check_one_graph(graph)
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
        return self._bank_outputs(self.point.prefix(graph), graph).mean(dim=0)

    def loss(self, graph: Any, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        assert self.target is not None
        draws, mask = self.recipe.draws, self.recipe.one_mask
        outputs, masked = self.training_pass(graph, draws, mask, generator)
        rows = label_rows(graph, outputs.size(1))
        outputs, masked = self._formed(outputs[:, rows]), masked[:, rows]
        y = self.target.check(_truth(graph, outputs.size(1)), "train")
        return self.target.weighted_losses(outputs, y, masked)

    def training_pass(
        self,
        graph: Any,
        draws: int = 1,
        mask: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A pass with ``draws`` random anchors per row, all through one pass of the network.

        Args:
            graph: The batch.
            draws: D, copies with anchors of their own; BatchNorm sees their mixture.
            mask: Share of rows (nodes, or whole graphs) whose anchor half is zeroed.
            generator: Source of randomness, or ``None`` for torch's global state.

        Returns:
            Outputs ``[D, rows, O]``, and which of them were masked ``[D, rows]``.
        """
        _check_one_graph(graph)
        self.locate(graph)
        if draws < 1 or not 0.0 <= mask < 1.0:
            raise InputError("draws >= 1 and mask in [0, 1)", f"draws={draws}, mask={mask}")
        if draws > 1 and not self.point.holds_copies:
            outputs, masked = self.training_pass(repeat(graph, draws), 1, mask, generator)
            return outputs.unflatten(1, (draws, -1))[0], masked.unflatten(1, (draws, -1))[0]
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

    def _frozen_prefix(self, graph: Any) -> State:
        """The frozen part's output; `gduq.fit`, which changes no graph, has it remembered."""
        known: State | None = None if self._states is None else self._states.get(graph)
        if known is None:
            with torch.no_grad(), evaluating(self.point):
                known = self.point.prefix(graph).detached()
            if self._states is not None:
                self._states[graph] = known
        return known

    def head_job(self, h: Tensor) -> HeadJob | None:
        point = self.point
        assert isinstance(point, HeadPoint)
        generator = torch.Generator().manual_seed(self.seed)
        if isinstance(self.source, GaussianAnchors):
            self.source.fit([h])  # these rows only, not those of an earlier fit
        elif not self.point.moves:
            self.source.observe(h)
        self.set_bank(self.source.bank([h], self.recipe.num_anchors, generator))
        masks = self.recipe.masks
        heads = [copy.deepcopy(AnchoredHead(self.linear, point.tail)) for _ in masks]
        return HeadJob(
            heads,
            masks,
            self.bank,
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

    # -- anchors -------------------------------------------------------------------------------

    def prepare(self, batches: Any, batch_size: int) -> None:
        self._states = WeakIdKeyDictionary()
        if not self.point.moves:
            self.fit_anchors(batches, batch_size)

    def ready(self, batches: Iterable[Any]) -> None:
        """A bank for validation, at the price of one batch; the source's own statistics stay."""
        before = {k: v.clone() for k, v in self.source.state_dict().items()}
        self.fit_bank(iter(batches))
        self.source.load_state_dict(before)

    @property
    def rows_to_be_ready(self) -> int:
        return self.recipe.num_anchors

    def finish(self, batches: Any, batch_size: int) -> None:
        self.fit_bank(batches, batch_size=batch_size)
        self._states = None

    def fit_anchors(self, data: Any, batch_size: int | None = None) -> Anchored:
        """Fit a Gaussian source to all training rows in one streaming pass, and keep it."""
        if isinstance(self.source, GaussianAnchors):
            self.source.fit(self._training_rows(data, batch_size))
        return self

    def fit_bank(
        self,
        data: Any,
        k: int | None = None,
        generator: torch.Generator | None = None,
        batch_size: int | None = None,
    ) -> Anchored:
        """Choose the K anchors of prediction from training (or other given) rows.

        A temperature that was fitted to another bank is forgotten.

        Args:
            data: A View, a ``Data``, a list of graphs, a dataset or a loader.
            k: How many; default ``num_anchors``.
            generator: Source of randomness; default: one seeded with the model's seed.
            batch_size: Graphs at a time.
        """
        if k is not None:
            self.recipe = self.recipe.with_(num_anchors=k)
        generator = generator or torch.Generator().manual_seed(self.seed)
        rows = self._training_rows(data, batch_size)
        if self._waiting is not None:  # the first batch shows where the place is
            rows = iter(list(rows))
        self.set_bank(self.source.bank(rows, self.recipe.num_anchors, generator))
        return self

    def set_bank(self, bank: Tensor) -> None:
        """Take these anchors ``[K, d]`` for prediction."""
        if bank.size(1) != self.point.channels:
            raise InputError(f"anchors of width {self.point.channels}", bank.size(1))
        self.bank = bank.detach().to(self.linear.weight).clone()
        self.set_temperature(1.0, None)

    def _training_rows(self, data: Any, batch_size: int | None) -> Iterator[Tensor]:
        """Representations of the rows anchors may come from, batch by batch."""
        with torch.no_grad(), evaluating(self):
            for graph in iterate(data, batch_size):
                self.locate(graph)
                _check_no_leak(graph, self.point.answers == "node")
                graph = on_device(graph, self.linear.weight.device)
                yield anchor_rows(self, self.point.prefix(graph).h, graph)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        bank = state_dict.get(prefix + "bank")
        known = bank is not None and self._waiting is None and bank.dim() == 2
        if known and bank.size(1) == self.point.channels:
            self.bank = self.bank.new_zeros(bank.shape)  # banks of any size fit
            if bank.size(0):
                self.recipe = self.recipe.with_(num_anchors=bank.size(0))
        super()._load_from_state_dict(state_dict, prefix, *args)

    # -- prediction ----------------------------------------------------------------------------

    def answer(self, graph: Any, features: bool = False) -> Answer:
        _check_one_graph(graph)
        self.locate(graph)
        trunk = self.trunk
        if trunk is not None:
            h = trunk.labelled(self.point.prefix(graph).h, graph)
            return Answer(self.from_rows(h, h), h)
        state = self.point.prefix(graph)
        outputs = self._bank_outputs(state, graph)
        outputs = self._formed(outputs[:, label_rows(graph, outputs.size(1))])
        return Answer(outputs, self._features(state.h, graph) if features else None)

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        assert isinstance(self.point, HeadPoint)
        return self._formed(head_outputs(self.linear, self.point.tail, self._anchors, h))

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
        place = Trunk(nn.Identity(), "", self.point.rows, self.point.answers)
        return place.features(h, graph)

    @property
    def _anchors(self) -> Tensor:
        """The bank; a model that starts as its network answers as it does before there is one."""
        if self.bank.size(0):
            return self.bank
        if self.recipe.init == "identity":
            return self.bank.new_zeros(1, self.point.channels)
        raise self._not_fitted()

    def _not_fitted(self) -> NotFittedError:
        return NotFittedError(
            "a model with a bank of anchors",
            "none yet",
            "Train with gduq.fit, or call model.fit_bank(train_data) after your own loop.",
        )

    def _bank_outputs(self, state: State, graph: Any) -> Tensor:
        """``[K, rows, O]``: ``h W_h^T`` once, the suffix in memory-bounded chunks."""
        weight = self.linear.weight[:, : self.linear.in_features]
        base = self.point.read(state.h, weight, graph)  # [n, m]
        shift = self.linear.shift(self._anchors).unsqueeze(1)  # [K, 1, m]
        if self.linear.bias is not None:
            base = base + self.linear.bias
        scaled = self.point.affine()
        if scaled is not None:
            base, shift = torch.addcmul(scaled[1], base, scaled[0]), shift * scaled[0]
        gain = self.point.gain(graph, base)
        parts = []
        for part in chunks(shift, _CHUNK // max(1, self.point.cost(base, graph))):
            z = base + part if gain is None else torch.addcmul(base, gain, part)
            parts.append(self.point.suffix(z, state, graph, normed=scaled is not None))
        return torch.cat(parts)

    # -- keeping -------------------------------------------------------------------------------

    def check_ready(self) -> None:
        if self._waiting is not None or self.bank.size(0) == 0:
            raise self._not_fitted()

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
        Predictor.__init__(model)
        model.recipe, model.call, model.seed = recipe, call, spec["seed"]
        model.calibrate = recipe.calibrate
        model.register_buffer("bank", torch.zeros(0))
        model._states, model._waiting = None, None
        model._set_point(point_from(spec["point"], net, call), source_from(spec["source"]))
        return model

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_states": None}  # weak references stay in their process

    def __repr__(self) -> str:
        if self._waiting is not None:
            where = f"at={self.recipe.at!r}, found at the first graph"
            return f"Anchored({type(self._waiting).__name__}, {where})"
        frozen = (
            "only the head learns"
            if self.trunk is not None
            else ("what precedes it is frozen" if self.recipe.freeze else "all of it learns")
        )
        return (
            f"Anchored({type(self.point.net).__name__} at {self.point.description}; "
            f"{self.recipe.num_anchors} anchors ({source_name(self.source)}); {frozen})"
        )


def _truth(graph: Any, rows: int) -> Tensor:
    y = targets(graph, rows)
    if y is None:
        raise InputError("graphs with labels y", "a batch without")
    return y


def _check_one_graph(graph: Any) -> None:
    if not isinstance(graph, (Data, HeteroData)):
        raise InputError(
            "one graph, a torch_geometric Data, HeteroData or Batch",
            type(graph).__name__,
            "Call an anchored model with the graph itself: model(data).",
        )


def _check_no_leak(graph: Any, node_task: bool) -> None:
    """Anchors must not come from rows that a mask on the graph sets aside."""
    if not node_task or isinstance(graph, HeteroData):
        return
    chosen = graph.get("row_mask") is not None or "batch_size" in graph.keys()  # noqa: SIM118
    if graph.get("train_mask") is not None and not chosen:
        raise InputError(
            "a choice of nodes for the anchors",
            "a whole graph with a train_mask",
            "Pass gduq.data.View(data, data.train_mask).",
        )
