"""`Anchored`: any network, read relative to random anchors."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from gduq._torch import chunks, generator_device
from gduq.anchoring.anchors import Anchors, GaussianAnchors, make_source, source_from
from gduq.anchoring.cuts import (
    AnchoredHead,
    CutPoint,
    HeadCut,
    Uncut,
    cut_from,
    needs_graph,
    resolve_cut,
)
from gduq.anchoring.equation import AnchoredLinear, gaussian_shift
from gduq.anchoring.recipe import Recipe
from gduq.errors import InputError, NotFittedError
from gduq.graphs import Graph, Rows, iterate, label_rows, num_graphs, on_device, row_batch
from gduq.graphs.sparse import is_sparse, keep_rows
from gduq.models.predictor import (
    CachedRows,
    ModelFactory,
    ModelOutput,
    Predictor,
    TrainHeads,
)
from gduq.nn.network_specs import network_spec
from gduq.prediction import Target, Values
from gduq.tracing.call import Call, copied, evaluating
from gduq.tracing.trunk import Trunk, answer_features

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Anchored"]

_VALIDATION = 3  # anchors that judge an epoch: all of them would cost more than its training
_BLOCK = 2**18  # numbers of a head's hidden layer that are computed at once: what a cache holds


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

    point: CutPoint  # where the network is cut
    linear: AnchoredLinear  # reads the pair there
    source: Anchors  # where anchors come from in training
    bank: Tensor  # the K anchors of prediction [K, d]; none before `gduq.fit`

    def __init__(
        self,
        net: nn.Module,
        recipe: Recipe | None = None,
        call: Call | None = None,
        seed: int = 0,
        like: Graph | None = None,
        trunk: Trunk | None = None,
    ) -> None:
        super().__init__()
        self.recipe = recipe or Recipe()
        self.calibrate, self.seed, self.call = self.recipe.calibrate, int(seed), call
        self.frozen, self.starts_trained = self.recipe.freeze, self.recipe.init == "identity"
        self.register_buffer("bank", torch.zeros(0))
        if net is not None:
            net = net if trunk is not None else copied(net)
            self.point = Uncut(net, self.recipe.at)  # type: ignore[assignment]
            if trunk is not None or like is not None or not needs_graph(net, self.recipe.at):
                self._cut(like, trunk)

    def _cut(self, graph: Graph | None, trunk: Trunk | None = None) -> None:
        """Cut the network at the place that the recipe names."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            point = resolve_cut(self.point.net, self.recipe, self.call, graph, trunk)
        self._set_point(point)

    def _set_point(self, point: CutPoint, source: Anchors | None = None) -> None:
        """Build what depends on the place: the anchored map and the source of anchors."""
        recipe = self.recipe
        if recipe.freeze and not point.has_prefix:
            raise InputError(
                "layers before the anchors for freeze=True",
                "none at the input",
                "Anchor at a later place (see gduq.cut_points), or leave freeze out.",
            )
        branch = isinstance(point, HeadCut) and point.tail.plain is not None
        init = "random" if branch else recipe.init  # a branch starts at zero at its end
        if isinstance(point, HeadCut) and not branch and init == "random":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                point.tail.begin_anew()
        self.point = point
        generator = torch.Generator().manual_seed(self.seed)
        self.linear = AnchoredLinear.reading_for(point.plain, init, generator)
        del point.__dict__["plain"]
        self.source = source or make_source(recipe.anchors, point.channels, point.moves)
        self.bank = self.linear.weight.new_zeros(0, point.channels)
        self.temperature = self.temperature.to(self.linear.weight)
        point.frozen = recipe.freeze
        if recipe.freeze:
            for module in point.prefix_modules():
                module.requires_grad_(False)
        self.train(self.training)

    def locate(self, graph: Graph) -> None:
        """Find the place in the network, with the help of a graph; done once."""
        if not isinstance(graph, (Data, HeteroData)):
            raise InputError(
                "one graph, a torch_geometric Data, HeteroData or Batch",
                type(graph).__name__,
                "Call an anchored model with the graph itself: model(data).",
            )
        if not self.point.channels:
            device = next((p.device for p in self.point.parameters()), torch.device("cpu"))
            self._cut(on_device(graph, device))

    @property
    def trunk(self) -> Trunk | None:
        return self.point.trunk if isinstance(self.point, HeadCut) else None

    @property
    def row_kind(self) -> Rows | None:
        return self.point.row_kind

    # -- training ------------------------------------------------------------------------------

    def forward(self, graph: Graph, generator: torch.Generator | None = None) -> Tensor:
        """Outputs ``[rows, O]`` of all nodes, graphs or edges.

        In training each row or graph gets a random anchor (from ``generator``, or torch's global
        state as dropout does); in evaluation the outputs are averaged over the bank.
        """
        if not self.training:
            self.locate(graph)
            return self._bank_outputs(graph)[0].mean(dim=0)
        if not self.point.channels:  # an optimiser would lack the new weights
            raise InputError(
                "a model whose place is known before training in a loop of your own",
                "one that has not seen a graph",
                "Pass like=graph to gduq.anchor, or call model.locate(graph), then make the "
                "optimiser.",
            )
        return self.training_pass(graph, generator=generator)[0][0]

    def loss(self, graph: Graph, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        draws, mask = self.recipe.draws, self.recipe.one_mask
        return self._losses(graph, *self.training_pass(graph, draws, mask, generator))

    def training_pass(
        self,
        graph: Graph,
        draws: int = 1,
        mask: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs ``[D, rows, O]`` with D random anchors per row, and which were masked.

        They go through one pass of gduq's own networks, in which BatchNorm sees their mixture, and
        one after the other through any other that learns as a whole. A share ``mask`` of rows
        (nodes, or all rows of a graph) has its anchor half zeroed.
        """
        self.locate(graph)
        if draws < 1 or not 0.0 <= mask < 1.0:
            raise InputError("draws >= 1 and mask in [0, 1)", f"draws={draws}, mask={mask}")
        if draws > 1 and not (self.point.holds_copies or self.recipe.freeze):
            each = [self.training_pass(graph, 1, mask, generator) for _ in range(draws)]
            return torch.cat([out for out, _ in each]), torch.cat([masked for _, masked in each])
        drawn: list[tuple[Tensor, Tensor]] = []  # all of them in the first call

        def read(h: Tensor, part: slice) -> Tensor:
            if not drawn:
                drawn.append(self._read_with_anchors(h, graph, draws, mask, generator))
            return drawn[0][0][part]

        outputs = self.point.run(graph, read, draws)
        masked = drawn[0][1]
        if self._masks_graphs:
            masked = masked[:, row_batch(graph, self.point.row_kind, outputs.size(1))]
        return outputs, masked

    @property
    def _masks_graphs(self) -> bool:
        """Nodes of an answered graph, and rows that share an anchor, are masked together."""
        return self._shares or self.point.rows != self.point.row_kind

    @property
    def _shares(self) -> bool:
        """Whether all rows of a graph have one anchor."""
        return self.recipe.scope == "graph" and self.point.rows != "graph"

    def _read_with_anchors(
        self,
        h: Tensor,
        graph: Graph,
        draws: int,
        mask: float,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """``z`` ``[D, n, m]`` of rows read relative to fresh anchors, and which rows or graphs were
        masked ``[D, ...]``."""
        point, linear, known = self.point, self.linear, self._anchor_rows(h, graph)
        by_graph = self._masks_graphs
        of_graph = row_batch(graph, point.rows, h.size(0)) if by_graph else slice(None)
        owners = num_graphs(graph) if self._shares else h.size(0)
        units, device = num_graphs(graph) if by_graph else h.size(0), linear.weight.device
        masked = torch.zeros(draws, units, dtype=torch.bool, device=device)
        if mask:
            where = generator_device(generator)
            chances = torch.rand(draws, units, generator=generator, device=where)
            masked = chances.to(device) < mask
        gone = (masked if self._shares else masked[:, of_graph]).flatten() if mask else None
        wide = linear.in_features > linear.out_features
        if isinstance(self.source, GaussianAnchors) and wide and owners > linear.out_features:
            mean, std = (one.to(linear.weight) for one in self.source.statistics(known))
            shift = gaussian_shift(mean, std, linear.weight, draws * owners, gone, generator)
        else:
            like = known.values() if is_sparse(known) else known
            c = self.source.draw(known, draws * owners, generator).to(like.dtype)
            shift = linear.shift(c, gone)
        shift = shift.view(draws, owners, -1)
        shift = shift[:, of_graph] if self._shares else shift
        gain = point.gain(graph, shift)
        if gain is not None and not self._shares:
            z = point.mix(linear.residual(h) + shift, graph)
        else:
            z = point.read(h, linear.weight_h, graph) + (shift if gain is None else gain * shift)
        return linear.biased(z), masked

    def _anchor_rows(self, h: Tensor, graph: Graph) -> Tensor:
        """The rows of ``h`` that anchors may come from: those that count in training."""
        if self.point.rows != self.point.row_kind:
            return h
        rows = label_rows(graph, h.size(0))
        if isinstance(rows, slice):
            if rows.stop is None:
                return h
            rows = torch.arange(h.size(0), device=h.device) < rows.stop
        return keep_rows(h, rows)

    def train(self, mode: bool = True) -> Anchored:
        super().train(mode)
        if self.recipe.freeze and mode:
            for module in self.point.prefix_modules():
                module.eval()
        return self

    def fit_rows(
        self, train: CachedRows, held: CachedRows, learn: TrainHeads, before: Target | None = None
    ) -> None:
        point, target, h = self.point, self.target, train.h
        assert isinstance(point, HeadCut)
        assert target is not None
        if not target.fits(before):  # the head learns anew
            source = None if isinstance(self.recipe.anchors, str) else self.source
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                point = HeadCut(point.trunk, point.branch)
            self._set_point(point, source)
            self.to(h.device)
        if isinstance(target, Values) and target.needs_noise:
            if point.tail.noise is None:
                point.tail.widen(target, held.outputs, held.y)
            self.target = target = target.combined()
        if isinstance(self.source, GaussianAnchors):
            self.source.fit([h])  # these rows only, not those of an earlier fit
        self._choose_bank([h], self.recipe.num_anchors)
        masks, head = self.recipe.masks, AnchoredHead(self.linear, point.tail)

        def draw(count: int, generator: torch.Generator) -> Tensor:
            return self.source.draw(h, count, generator).to(h.dtype)

        heads = [copy.deepcopy(head) for _ in masks]
        draws, bank = self.recipe.draws, self.anchors
        (best,) = learn(heads, masks, target, draw, draws, bank)
        head.load_state_dict(best.state_dict())

    def share_trunk(self, trunk: Trunk) -> None:
        assert isinstance(self.point, HeadCut)
        self.point.trunk = trunk

    # -- anchors -------------------------------------------------------------------------------

    def prepare(self, batches: Any, batch_size: int) -> None:
        if not self.point.moves:
            self.fit_source(batches, batch_size)

    def init_anchors(self, batches: Iterable[Graph]) -> None:
        """A small bank for validation, from a few batches."""
        rows = self._training_rows(iter(batches), None)
        self._choose_bank(rows, min(_VALIDATION, self.recipe.num_anchors))

    @property
    def num_anchors(self) -> int:
        return self.recipe.num_anchors

    def fit_source(self, data: Any, batch_size: int | None = None) -> Self:
        """Fit a Gaussian source to all training rows in one streaming pass, and keep it."""
        if isinstance(self.source, GaussianAnchors):
            self.source.fit(self._training_rows(data, batch_size))
        return self

    def fit_anchors(self, data: Any, k: int | None = None, batch_size: int | None = None) -> Self:
        """Choose the K (default: ``num_anchors``) anchors of prediction from training rows.

        A temperature that was fitted to another bank is forgotten.
        """
        self.recipe = self.recipe.with_(num_anchors=k)
        rows = self._training_rows(data, batch_size)
        first = next(rows)  # of a batch that shows where the place is
        self._choose_bank(itertools.chain([first], rows), self.recipe.num_anchors)
        return self

    def _choose_bank(self, rows: Iterable[Tensor], k: int) -> None:
        self.set_bank(self.source.bank(rows, k, torch.Generator().manual_seed(self.seed)))

    def set_bank(self, bank: Tensor) -> None:
        """Take these anchors ``[K, d]`` for prediction."""
        if bank.size(1) != self.point.channels:
            raise InputError(f"anchors of width {self.point.channels}", bank.size(1))
        self.bank = bank.detach().to(self.linear.weight).clone()
        self.set_temperature(1.0, None)

    def _training_rows(self, data: Any, batch_size: int | None) -> Iterator[Tensor]:
        """Representations of the rows anchors may come from, batch by batch; not of rows that a
        mask on the graph sets aside."""
        with torch.no_grad(), evaluating(self):
            for graph in iterate(data, batch_size):
                self.locate(graph)
                if self.point.row_kind == "node" and isinstance(graph, Data):
                    chosen = graph.get("row_mask") is not None or "batch_size" in graph.to_dict()
                    if graph.get("train_mask") is not None and not chosen:
                        do = "Pass gduq.data.View(data, data.train_mask)."
                        got = "a graph with a train_mask"
                        raise InputError("a choice of nodes for the anchors", got, do)
                graph = on_device(graph, self.linear.weight.device)
                yield self._anchor_rows(self.point.prefix(graph), graph)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        bank = state_dict.get(prefix + "bank")
        if bank is not None and bank.dim() == 2 and bank.size(1) == self.point.channels:
            self.bank = self.bank.new_zeros(bank.shape)  # banks of any size fit
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def anchors(self) -> Tensor:
        """The bank; a model that starts as its network answers as it does before there is one."""
        if self.bank.size(0) == 0 and self.recipe.init == "identity":
            return self.bank.new_zeros(1, self.point.channels)
        self.check_ready()
        return self.bank

    def check_ready(self) -> None:
        if self.bank.size(0) == 0:
            raise NotFittedError(
                "a model with a bank of anchors",
                "none yet",
                "Train with gduq.fit, or call model.fit_anchors(train_data) after your own loop.",
            )

    # -- prediction ----------------------------------------------------------------------------

    def _bank_outputs(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Outputs ``[K, rows, O]`` and the representation: ``h W_h^T`` is computed once."""
        shift = self.linear.shift(self.anchors).unsqueeze(1)  # [K, 1, m]
        found: list[Tensor] = []
        base, gain = None, None

        def read(h: Tensor, part: slice) -> Tensor:
            nonlocal base, gain
            if base is None:
                base = self.linear.biased(self.point.read(h, self.linear.weight_h, graph))
                gain = self.point.gain(graph, base)
                found.append(h)
            some = shift[part]
            return base + some if gain is None else torch.addcmul(base, gain, some)

        outputs = self.point.run(graph, read, shift.size(0))
        return outputs, found[0]

    def forward_samples(self, graph: Graph, features: bool = False) -> ModelOutput:
        self.locate(graph)
        trunk = self.trunk
        if trunk is not None:
            h = trunk.labelled(self.point.prefix(graph), graph)
            return ModelOutput(self.from_rows(h, h), h)
        outputs, h = self._bank_outputs(graph)
        outputs = self._formed(outputs[:, label_rows(graph, outputs.size(1))])
        return ModelOutput(outputs, self._features(h, graph) if features else None)

    def features(self, graph: Graph) -> Tensor:
        self.locate(graph)
        with evaluating(self):
            return self._features(self.point.prefix(graph), graph)

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        assert isinstance(self.point, HeadCut)
        head, c = AnchoredHead(self.linear, self.point.tail), self.anchors.unsqueeze(1)
        size = _BLOCK // max(1, c.size(0) * self.linear.out_features)
        return self._formed(torch.cat([head(rows, c) for rows in chunks(h, size)], dim=1))

    def _features(self, h: Tensor, graph: Graph) -> Tensor:
        if h.layout != torch.strided:  # bag-of-words input: what the anchored layer makes of it
            h = self.linear.residual(h)
        return answer_features(h, graph, self.point.rows, self.point.row_kind)

    # -- bundles -------------------------------------------------------------------------------

    def spec(self) -> dict[str, Any]:
        if not self.point.channels:
            raise InputError("a model that has met a graph", "none", "Train it before it is saved.")
        return {
            "kind": self.kind,
            "call": self.call is not None,
            "recipe": self.recipe.spec(),
            "source": self.source.spec(),
            "seed": self.seed,
            "point": self.point.spec(),
            "net": network_spec(self.point.net),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> Anchored:
        call, net = factory.call(spec), factory.net(spec["net"])
        recipe = Recipe(**spec["recipe"])
        model = cls(None, recipe, call, spec["seed"])  # type: ignore[arg-type]  # point follows
        model._set_point(cut_from(spec["point"], net, call), source_from(spec["source"]))
        return model

    def __repr__(self) -> str:
        net, where = type(self.point.net).__name__, self.point.description
        if not self.point.channels:
            return f"Anchored({net}, {where})"
        anchors, source = self.bank.size(0) or self.recipe.num_anchors, self.source
        frozen = "what precedes it is frozen" if self.recipe.freeze else "all of it learns"
        frozen = "only the head learns" if self.trunk is not None else frozen
        name = source.name or type(source).__name__
        return f"Anchored({net} at {where}; {anchors} anchors ({name}); {frozen})"
