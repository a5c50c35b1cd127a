"""The anchors of a model: random ones for a training pass, and the bank of those of prediction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import HeteroData

from gduq.anchoring.anchors import Anchors, GaussianAnchors
from gduq.anchoring.equation import gaussian_shift
from gduq.anchoring.linear import AnchoredLinear
from gduq.anchoring.points import Point, State
from gduq.anchoring.recipe import Recipe
from gduq.errors import InputError, NotFittedError
from gduq.export_mode import chunks
from gduq.graph import iterate, label_rows, num_graphs, on_device, row_batch
from gduq.graph.sparse import is_sparse, keep_rows
from gduq.nn.call import evaluating
from gduq.prediction.predictor import Predictor
from gduq.randomness import generator_device

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["VALIDATION", "AnchorDraws", "Banked"]

VALIDATION = 3  # anchors that judge an epoch: all of them would cost more than its training
_CHUNK = 2**22  # most numbers held at once while the bank passes through the suffix


class Banked(Predictor):
    """What of an anchored model is about its anchors."""

    point: Point  # where the network is cut
    linear: AnchoredLinear  # reads the pair there
    source: Anchors  # where anchors come from in training
    bank: Tensor  # the K anchors of prediction [K, d]; none before `gduq.fit`

    def __init__(self, recipe: Recipe, seed: int) -> None:
        super().__init__()
        self.recipe, self.calibrate, self.seed = recipe, recipe.calibrate, int(seed)
        self.register_buffer("bank", torch.zeros(0))
        self._states: WeakIdKeyDictionary | None = None  # what a frozen prefix gave
        self._waiting: nn.Module | None = None  # the network, until a graph shows the place

    def prepare(self, batches: Any, batch_size: int) -> None:
        self._states = WeakIdKeyDictionary()
        if not self.point.moves:
            self.fit_anchors(batches, batch_size)

    def ready(self, batches: Iterable[Any]) -> None:
        """A small bank for validation, from a few batches; the source's own statistics stay."""
        before = {k: v.clone() for k, v in self.source.state_dict().items()}
        rows = self._training_rows(iter(batches), None)
        self._choose_bank(rows, min(VALIDATION, self.recipe.num_anchors))
        self.source.load_state_dict(before)

    @property
    def rows_to_be_ready(self) -> int:
        return self.recipe.num_anchors

    def finish(self, batches: Any, batch_size: int) -> None:
        self.fit_bank(batches, batch_size=batch_size)
        self._states = None

    def fit_anchors(self, data: Any, batch_size: int | None = None) -> Self:
        """Fit a Gaussian source to all training rows in one streaming pass, and keep it."""
        if isinstance(self.source, GaussianAnchors):
            self.source.fit(self._training_rows(data, batch_size))
        return self

    def reads_anchors(self) -> bool:
        return True

    def fit_bank(self, data: Any, k: int | None = None, batch_size: int | None = None) -> Self:
        """Choose the K (default: ``num_anchors``) anchors of prediction from training rows.

        A temperature that was fitted to another bank is forgotten.
        """
        self.recipe = self.recipe.with_(num_anchors=k)
        self._choose_bank(self._training_rows(data, batch_size), self.recipe.num_anchors)
        return self

    def _choose_bank(self, rows: Iterable[Tensor], k: int) -> None:
        if self._waiting is not None:  # the first batch shows where the place is
            rows = list(rows)
        self.set_bank(self.source.bank(rows, k, torch.Generator().manual_seed(self.seed)))

    def fit_to_rows(self, h: Tensor) -> None:
        """Fit the source and choose the bank, from rows ``[n, d]`` that a frozen trunk gave."""
        if isinstance(self.source, GaussianAnchors):
            self.source.fit([h])  # these rows only, not those of an earlier fit
        elif not self.point.moves:
            self.source.observe(h)
        self._choose_bank([h], self.recipe.num_anchors)

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
                yield _anchor_rows(self.point, self.point.prefix(graph).h, graph)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        bank = state_dict.get(prefix + "bank")
        known = bank is not None and self._waiting is None and bank.dim() == 2
        if known and bank.size(1) == self.point.channels:
            self.bank = self.bank.new_zeros(bank.shape)  # banks of any size fit
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def anchors_in_use(self) -> Tensor:
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

    def bank_outputs(self, state: State, graph: Any) -> Tensor:
        """``[K, rows, O]``: ``h W_h^T`` once, the suffix in memory-bounded chunks."""
        base = self.linear.biased(self.point.read(state.h, self.linear.weight_h, graph))  # [n, m]
        shift = self.linear.shift(self.anchors_in_use).unsqueeze(1)  # [K, 1, m]
        scaled = self.point.affine()
        if scaled is not None:
            base, shift = torch.addcmul(scaled[1], base, scaled[0]), shift * scaled[0]
        gain = self.point.gain(graph, base)
        parts = []
        for part in chunks(shift, _CHUNK // max(1, self.point.cost(base, graph))):
            z = base + part if gain is None else torch.addcmul(base, gain, part)
            parts.append(self.point.suffix(z, state, graph, normed=scaled is not None))
        return torch.cat(parts)

    def _frozen_prefix(self, graph: Any) -> State:
        """The frozen part's output; `gduq.fit`, which changes no graph, has it remembered."""
        known: State | None = None if self._states is None else self._states.get(graph)
        if known is None:
            with torch.no_grad(), evaluating(self.point):
                known = self.point.prefix(graph).detached()
            if self._states is not None:
                self._states[graph] = known
        return known

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_states": None}  # weak references stay in their process

    def check_ready(self) -> None:
        if self._waiting is not None or self.bank.size(0) == 0:
            raise self._not_fitted()


def _anchor_rows(point: Point, h: Tensor, graph: Any) -> Tensor:
    """The rows of ``h`` that anchors may come from: those that count in training."""
    rows = label_rows(graph, h.size(0)) if point.rows == point.answers else slice(None)
    if isinstance(rows, slice):
        if rows.stop is None:
            return h
        rows = torch.arange(h.size(0), device=h.device) < rows.stop
    return keep_rows(h, rows)


class AnchorDraws:
    """The anchors of one training pass: D draws for every row, or for every graph.

    The point, map, source and recipe of the model count. A share ``mask`` of rows (nodes, or whole
    graphs) has its anchor half zeroed. Without a generator torch's global state is drawn from.
    """

    def __init__(
        self, model: Banked, graph: Any, draws: int, mask: float, generator: torch.Generator | None
    ) -> None:
        self.model, self.graph, self.draws, self.generator = model, graph, draws, generator
        self.mask_share = mask
        self._chosen: Tensor | None = None  # [D, rows or graphs]
        # nodes of an answered graph, and rows that share an anchor, are masked together
        point = model.point
        self._shared = model.recipe.scope == "graph" and point.rows != "graph"
        self._by_graph = self._shared or point.rows != point.answers

    def read(self, h: Tensor) -> Tensor:
        """``z`` ``[D, n, m]`` for fresh anchors."""
        model, point, rows = self.model, self.model.point, h.size(0)
        source_rows = _anchor_rows(point, h, self.graph)
        model.source.observe(source_rows)
        of_graph = row_batch(self.graph, point.rows, rows) if self._by_graph else None
        if self.mask_share:
            units = rows if of_graph is None else num_graphs(self.graph)
            where = generator_device(self.generator)
            chosen = torch.rand(self.draws, units, generator=self.generator, device=where)
            self._chosen = chosen.to(model.linear.weight.device) < self.mask_share
        shift = self._shift(source_rows, rows, of_graph)
        gain = point.gain(self.graph, shift)
        if gain is not None and not self._shared:
            z = point.mix(model.linear.residual(h) + shift, self.graph)
        else:
            z = point.read(h, model.linear.weight_h, self.graph)
            z = z + (shift if gain is None else gain * shift)
        return model.linear.biased(z)

    def _shift(self, source_rows: Tensor, rows: int, of_graph: Tensor | None) -> Tensor:
        """What the anchors add, ``[D, n, m]``."""
        linear, source, masked = self.model.linear, self.model.source, self._chosen
        owners = num_graphs(self.graph) if self._shared else rows
        if masked is not None:  # [D, owners]
            masked = (masked if of_graph is None or self._shared else masked[:, of_graph]).flatten()
        count = self.draws * owners
        wide = linear.in_features > linear.out_features
        if isinstance(source, GaussianAnchors) and wide and owners > linear.out_features:
            source.require_rows()
            mean, std = source.mean.to(linear.weight), source.std.to(linear.weight)
            shift = gaussian_shift(mean, std, linear.weight, count, masked, self.generator)
        else:
            like = source_rows.values() if is_sparse(source_rows) else source_rows
            c = source.draw(source_rows, count, self.generator).to(like.dtype)
            shift = linear.shift(c, masked)
        shift = shift.view(self.draws, owners, -1)
        return shift[:, of_graph] if self._shared else shift

    def masked(self, rows: int) -> Tensor:
        """Which of the output's rows were masked ``[D, rows]``."""
        device = self.model.linear.weight.device
        if self._chosen is None:
            return torch.zeros(self.draws, rows, dtype=torch.bool, device=device)
        if not self._by_graph:
            return self._chosen
        return self._chosen[:, row_batch(self.graph, self.model.point.answers, rows)]


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
