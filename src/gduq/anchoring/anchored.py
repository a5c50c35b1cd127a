"""`Anchored`: any network, read relative to random anchors."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial

import torch
from torch import Tensor, nn

from gduq._torch import chunks, device_of_model
from gduq.anchoring.anchors import AnchoredLinear, Anchors, GaussianAnchors, ShuffledAnchors
from gduq.anchoring.cuts import AnchoredHead, Cut, HeadCut, cut_from, find_cut
from gduq.anchoring.recipe import Init, Recipe, Scope, Source
from gduq.errors import InputError, NotFittedError
from gduq.graphs import Graph, Rows, iterate, label_rows, num_graphs, on_device, row_batch, row_kind
from gduq.graphs.rows import as_graph
from gduq.graphs.sparse import keep_rows
from gduq.models.predictor import HeadTask, ModelFactory, ModelOutput, Predictor, RowFit, Spec
from gduq.nn.gnn import as_chain, network_spec
from gduq.nn.layers import AnySize
from gduq.prediction.base import Calibrate
from gduq.tracing.call import Call, copied, evaluating, redraw
from gduq.tracing.trunk import Trunk, answer_features

__all__ = ["Anchored", "anchor"]

_VALIDATION = 3  # anchors that judge an epoch: all of them would cost more than its training
_BLOCK = 2**18  # numbers of a head's hidden layer that are computed at once: what a cache holds


class Anchored(AnySize, Predictor):
    r"""A network whose representation at one point is read relative to anchors.

    At the point, :math:`h` is replaced by the pair :math:`[h - c \,\|\, c]`. In training every row
    (or graph) has a random anchor of its own; in evaluation K fixed anchors, the *bank*, act as K
    hypotheses. At a head and in a `GNN` the prefix runs once for all of them, and so does the
    map's part that does not see the anchor.

    Made by `gduq.anchor`, which describes the arguments; on a trunk it is a head, and shares the
    trunk with other models. Calling the model gives outputs: with random anchors in training; in
    evaluation those of the mean hypothesis, see `gduq.predict` for the mixture.
    """

    point: Cut  # where the network is cut, once that is known: see `locate`
    linear: AnchoredLinear  # reads the pair there
    source: Anchors  # where anchors come from in training
    bank: Tensor  # the K anchors of prediction [K, d]; none before `gduq.fit`

    def __init__(
        self, net: nn.Module, recipe: Recipe | None = None, call: Call | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.recipe = recipe or Recipe()
        self.call = net.call if isinstance(net, Trunk) else call
        self.calibrate, self.seed = self.recipe.calibrate, int(seed)
        self.frozen, self.starts_trained = self.recipe.freeze, self.recipe.init == "identity"
        self.register_buffer("bank", torch.zeros(0))
        self._waiting: nn.Module | None = net if isinstance(net, (Cut, Trunk)) else copied(net)
        self._build(self._waiting)

    def locate(self, graph: object) -> None:
        """Find the place in the network, with the help of a graph; done once."""
        known = as_graph(graph)
        if self._waiting is not None:
            self._build(self._waiting, on_device(known, device_of_model(self)))

    def _build(self, net: nn.Module, graph: Graph | None = None) -> None:
        """Cut a network where that can be seen, and build what depends on the place: the anchored
        map and the source of anchors."""
        init = self.recipe.init
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            point = net if isinstance(net, Cut) else find_cut(net, self.recipe, self.call, graph)
            if point is None:
                return
            if isinstance(point, HeadCut) and point.tail.plain is not None:
                init = "random"  # a branch starts at zero at its end
            elif isinstance(point, HeadCut) and init == "random":
                torch.manual_seed(self.seed)
                redraw(point.tail.rest.requires_grad_(True))  # as the paper does
        if self.recipe.freeze:
            point.freeze()
        generator = torch.Generator().manual_seed(self.seed)
        self.linear = AnchoredLinear.reading_for(point.unread.pop(), init, generator)
        self.point, self._waiting = point, None
        if "source" not in self._modules:  # else somebody has chosen one
            name = self.recipe.anchors or ("shuffle" if point.moves else "gaussian")
            gaussian = name == GaussianAnchors.name
            self.source = GaussianAnchors(point.channels) if gaussian else ShuffledAnchors()
        self.bank = self.linear.weight.new_zeros(0, point.channels)
        self.temperature = self.temperature.to(self.linear.weight)
        self.train(self.training)

    @property
    def trunk(self) -> Trunk | None:
        point = self._modules.get("point")  # none before it is found
        return point.trunk if isinstance(point, HeadCut) else None

    @property
    def row_kind(self) -> Rows | None:
        return self.point.row_kind if self._waiting is None else None

    @property
    def _head(self) -> AnchoredHead:
        """What reads the rows of a frozen trunk."""
        assert isinstance(self.point, HeadCut)
        return AnchoredHead(self.linear, self.point.tail)

    # -- training ------------------------------------------------------------------------------

    def forward(self, graph: Graph) -> Tensor:
        """Outputs ``[rows, O]`` of all nodes, graphs or edges."""
        if not self.training:
            self.locate(graph)
            return self._bank_outputs(graph)[0].mean(dim=0)
        if self._waiting is not None:  # an optimiser would lack the new weights
            do = "Pass like=graph to gduq.anchor, or call model.locate(graph), before."
            raise InputError("a model that knows its place when the optimiser is made", "none", do)
        return self.training_pass(graph)[0][0]

    def loss(self, graph: Graph) -> tuple[Tensor, Tensor]:
        outputs = self.training_pass(graph, self.recipe.draws, self.recipe.one_mask)
        return self._losses(graph, *outputs)

    def training_pass(
        self, graph: Graph, draws: int = 1, mask: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Outputs ``[D, rows, O]`` with D random anchors per row, and which were masked: a share
        ``mask`` of rows (nodes, or all rows of a graph) has its anchor half zeroed.

        A `GNN` takes all draws in one pass, in which BatchNorm sees their mixture.
        """
        self.locate(graph)
        if draws < 1 or not 0.0 <= mask < 1.0:
            raise InputError("draws >= 1 and mask in [0, 1)", f"draws={draws}, mask={mask}")
        point, linear, graphs = self.point, self.linear, num_graphs(graph)
        shared = self.recipe.scope == "graph" and point.rows != "graph"  # one anchor per graph
        by_graph = shared or point.rows != point.row_kind  # all rows of a graph are masked together
        gone: list[Tensor] = []

        def read(h: Tensor, part: slice) -> Tensor:
            """``z`` ``[len, n, m]`` of rows read relative to fresh anchors."""
            size = (part.stop - part.start, graphs if by_graph else h.size(0))
            masked = (torch.rand(size) if mask else torch.ones(size)).to(h.device) < mask
            gone.append(masked)
            unit = row_batch(graph, point.rows, h.size(0)) if by_graph else slice(None)
            shift = self._draw_shift(h, graph, masked if shared else masked[:, unit])
            if not shared:
                return linear.biased(point.mix(linear.residual(h) + shift, graph))
            base, gain = point.shared(h, linear, graph)
            return base + gain * shift[:, unit]

        outputs = point.run(graph, read, draws)
        masked = torch.cat(gone)
        if by_graph:
            masked = masked[:, row_batch(graph, point.row_kind, outputs.size(1))]
        return outputs, masked

    def _draw_shift(self, h: Tensor, graph: Graph, masked: Tensor) -> Tensor:
        """What fresh anchors add ``[D, n, m]``, one for each entry of ``masked`` ``[D, n]``."""
        linear, rows = self.linear, self._anchor_rows(h, graph)
        count, gone = masked.numel(), masked.flatten() if masked.any() else None
        d, m = linear.in_features, linear.out_features
        if isinstance(self.source, GaussianAnchors) and min(d, masked.size(1)) > m:
            mean, std = (known.to(linear.weight) for known in self.source.statistics(rows))
            shift = linear.gaussian_shift(mean, std, count, gone)
        else:
            shift = linear.shift(self.source.draw(rows, count).to(rows.dtype), gone)
        return shift.view(*masked.shape, m)

    def _anchor_rows(self, h: Tensor, graph: Graph) -> Tensor:
        """The rows of ``h`` that anchors may come from: those that count in training."""
        if self.point.rows != self.point.row_kind:
            return h
        counts = torch.zeros(h.size(0), dtype=torch.bool, device=h.device)
        counts[label_rows(graph, h.size(0))] = True
        return h if counts.all() else keep_rows(h, counts)

    def fit_rows(self, work: RowFit) -> None:
        target, h, held = self.target, work.train.h, work.held
        assert target is not None
        if not target.fits(work.before):  # the head learns anew
            self._build(self.point.trunk)
            self.to(h.device)
        self._head.tail.widen(target, held.outputs, held.y, self.recipe.init == "random")
        if target.needs_noise:
            self.target = target = target.combined()
        if isinstance(self.source, GaussianAnchors):
            self.source.fit([h])  # these rows only, not those of an earlier fit
        self._choose_bank(iter([h]), self.num_anchors)
        head, draw, masks = self._head, partial(self.source.draw, h), self.recipe.masks
        masks = masks if held is not work.train else (self.recipe.one_mask,)  # none can be chosen
        heads = [copy.deepcopy(head) for _ in masks]
        task = HeadTask(heads, masks, target, draw, self.recipe.draws, self.anchors)
        head.load_state_dict(work.learn(task)[0].state_dict())

    # -- anchors -------------------------------------------------------------------------------

    def prepare(self, batches: object, batch_size: int) -> None:
        if not self.point.moves and isinstance(self.source, GaussianAnchors):
            self.source.fit(self._training_rows(batches, batch_size))

    @property
    def num_anchors(self) -> int:
        return self.recipe.num_anchors

    def init_anchors(self, batches: Iterable[Graph]) -> None:
        few = min(_VALIDATION, self.num_anchors)
        self._choose_bank(self._training_rows(iter(batches), None), few)

    def fit_anchors(
        self, data: object, k: int | None = None, batch_size: int | None = None
    ) -> Anchored:
        """Choose the K (default: ``num_anchors``) anchors of prediction from training rows.

        A temperature that was fitted to another bank is forgotten.
        """
        self.recipe = self.recipe.with_(num_anchors=k)
        self._choose_bank(self._training_rows(data, batch_size), self.num_anchors)
        return self

    def _choose_bank(self, rows: Iterator[Tensor], k: int) -> None:
        rows = itertools.chain([next(rows)], rows)  # the first batch shows where the place is
        self.set_bank(self.source.bank(rows, k, torch.Generator().manual_seed(self.seed)))

    def set_bank(self, bank: Tensor) -> None:
        """Take these anchors ``[K, d]`` for prediction."""
        if bank.size(1) != self.point.channels:
            raise InputError(f"anchors of width {self.point.channels}", bank.size(1))
        self.bank = bank.detach().to(self.linear.weight).clone()
        self.set_temperature(1.0, None)

    def _training_rows(self, data: object, batch_size: int | None) -> Iterator[Tensor]:
        """Representations of the rows anchors may come from, batch by batch."""
        with torch.no_grad(), evaluating(self):
            for graph in iterate(data, batch_size):
                self.locate(graph)
                unsure = self.point.row_kind == "node" and row_kind(graph) is None
                if unsure and graph.get("train_mask") is not None:
                    do = "Pass gduq.data.View(data, data.train_mask)."
                    raise InputError("a choice of nodes for the anchors", "a train_mask", do)
                graph = on_device(graph, self.linear.weight.device)
                yield self._anchor_rows(self.point.prefix(graph), graph)

    @property
    def anchors(self) -> Tensor:
        """The bank; a model that starts as its network answers as it does before there is one."""
        if len(self.bank) == 0 and self.starts_trained:
            return self.bank.new_zeros(1, self.point.channels)
        self.check_ready()
        return self.bank.to(self.linear.weight)  # a state of another precision may be loaded

    def check_ready(self) -> None:
        if self.bank.size(0) == 0:
            do = "Train with gduq.fit, or call model.fit_anchors(train_data) after your own loop."
            raise NotFittedError("a model with a bank of anchors", "none yet", do)

    # -- prediction ----------------------------------------------------------------------------

    def _bank_outputs(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Outputs ``[K, rows, O]`` and the representation."""
        shift = self.linear.shift(self.anchors).unsqueeze(1)  # [K, 1, m]
        known: list[Tensor] = []  # the representation, and what all anchors share

        def read(h: Tensor, part: slice) -> Tensor:
            if not known:
                known.extend((h, *self.point.shared(h, self.linear, graph)))
            return torch.addcmul(known[1], known[2], shift[part])

        outputs = self.point.run(graph, read, shift.size(0))
        return outputs, known[0]

    def forward_samples(self, graph: Graph, features: bool = False) -> ModelOutput:
        self.locate(graph)
        if self.trunk is not None:
            h = self.trunk.labelled(self.point.prefix(graph), graph)
            return ModelOutput(self.from_rows(h, h), h)
        outputs, h = self._bank_outputs(graph)
        outputs = self._formed(outputs[:, label_rows(graph, outputs.size(1))])
        if h.layout != torch.strided and features:  # bag-of-words input: what the map makes of it
            h = self.linear.residual(h)
        kinds = self.point.rows, self.point.row_kind
        return ModelOutput(outputs, answer_features(h, graph, *kinds) if features else None)

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        head, c = self._head, self.anchors.unsqueeze(1)
        size = _BLOCK // max(1, c.size(0) * self.linear.out_features)
        return self._formed(torch.cat([head(rows, c) for rows in chunks(h, size)], dim=1))

    # -- bundles -------------------------------------------------------------------------------

    def _spec(self) -> Spec:
        if not self.source.name:
            raise InputError("anchors that a bundle can hold", type(self.source).__name__)
        recipe = json.loads(json.dumps(asdict(self.recipe)))  # lists for tuples
        network = {"net": network_spec(self.point.net), "point": self.point.spec()}
        return {"call": self.call is not None, "recipe": recipe, "seed": self.seed, **network}

    @classmethod
    def from_spec(cls, spec: Spec, factory: ModelFactory) -> Anchored:
        call, recipe = factory.call(spec), Recipe(**spec["recipe"])
        point = cut_from(spec["point"], factory.net(spec["net"]), call)
        return cls(point, recipe, call, spec["seed"])

    def __repr__(self) -> str:
        if self._waiting is not None:
            net = type(self._waiting).__name__
            return f"Anchored({net}, at={self.recipe.at!r}, found at the first graph)"
        k, name = self.bank.size(0) or self.num_anchors, self.source.name
        frozen = "what precedes it is frozen" if self.frozen else "all of it learns"
        frozen = "only the head learns" if self.trunk is not None else frozen
        where = f"{type(self.point.net).__name__} at {self.point.description}"
        return f"Anchored({where}; {k} anchors ({name}); {frozen})"


def anchor(
    net: nn.Module,
    at: int | str | None = None,
    *,
    recipe: Recipe | str | None = None,
    freeze: bool | None = None,
    init: Init | None = None,
    anchors: Source | None = None,
    scope: Scope | None = None,
    num_anchors: int | None = None,
    draws: int | None = None,
    mask: float | tuple[float, ...] | None = None,
    calibrate: Calibrate | str = "default",
    call: Call | None = None,
    seed: int = 0,
    like: Graph | None = None,
) -> Anchored:
    """Wrap a network so that it answers with K hypotheses.

    By default the network stays as it is, and what reads anchors is its head: found in one pass
    over the first graph (``print(model)`` says where), with its weights kept, so that before any
    training the model answers as the network does.

    Args:
        net: A trained PyTorch Geometric network of your own, or a `gduq.nn.GNN`. It is copied, not
            changed.
        at: Where to anchor: ``"head"``, ``"readout"``, ``"input"``, a layer's number (-1: the
            last), or the dotted path of a submodule; see `Recipe` and `gduq.cut_points`.
        recipe: ``"head"`` (default), ``"thawed"`` (default with another ``at``), ``"paper"``, or a
            `Recipe`.
        freeze, init, anchors, scope, num_anchors, draws, mask, calibrate: Single choices of the
            recipe that are to be others, see `Recipe`; ``num_anchors`` is K.
        call: ``call(net, graph) -> outputs`` where parameter names do not say what to pass.
        seed: For new weights and the choice of the bank.
        like: A graph the network takes, to find the place at once and not at the first graph.

    Returns:
        The wrapped model, for `gduq.fit`.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from torch_geometric.nn import GCN
        >>> graph = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> anchor(GCN(4, 8, num_layers=2, out_channels=3, jk="cat"), like=graph)
        Anchored(GCN at 'lin', one row per node; ...; 10 anchors (shuffle); only the head learns)
    """
    if isinstance(net, Predictor) or not isinstance(net, nn.Module):
        raise InputError("a network (a torch module) that is not wrapped yet", type(net).__name__)
    chain = as_chain(net)
    chosen = recipe or ("head" if at in (None, "head") else "thawed")
    if not isinstance(chosen, Recipe):
        chosen = Recipe.named(chosen, None if chain is None else chain.task)
    chosen = chosen.with_(at=at, freeze=freeze, init=init, anchors=anchors, scope=scope)
    chosen = chosen.with_(num_anchors=num_anchors, draws=draws, mask=mask)
    if calibrate != "default":
        chosen = replace(chosen, calibrate=calibrate)  # type: ignore[arg-type]
    model = Anchored(net, chosen, call, seed)
    if like is not None:
        model.locate(like)
    return model
