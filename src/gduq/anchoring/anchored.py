"""`Anchored`: any network, read relative to random anchors."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch_geometric.data import Data

from gduq.anchored_linear import AnchoredLinear, Init
from gduq.anchors import GaussianAnchors, Reservoir, Source, make_source, source_name
from gduq.errors import InputError, NotFittedError
from gduq.graph import iterate, label_rows, num_graphs, on_device, repeat
from gduq.nn.call import Call
from gduq.nn.cut import State, evaluating, make_cut
from gduq.nn.gnn import GNN
from gduq.owners import Owners, anchor_rows
from gduq.tempering import ROWS, Temper, reach_of, tempered

__all__ = ["Anchored", "Scope", "is_first"]

Scope = Literal["row", "graph"]

_CHUNK = 2**22  # most numbers held at once while the bank passes through the suffix


class Anchored(nn.Module):
    r"""A network whose representation at one point is read relative to anchors.

    At the cut, :math:`h` is replaced by the pair :math:`[h - c \,\|\, c]`. In training every row
    (or graph) has a random anchor of its own; in evaluation K fixed anchors, the *bank*, act as K
    hypotheses. The prefix runs once for all of them, and so does the map's part that does not see
    the anchor.

    Made by `gduq.anchor`, which describes the arguments. Calling the model gives logits: with
    random anchors in training, averaged over the bank in evaluation.
    """

    bank: Tensor
    reach: Tensor
    temperature: Tensor

    def __init__(
        self,
        net: nn.Module,
        at: int | str = "readout",
        num_anchors: int = 10,
        anchors: Source | None = None,
        scope: Scope | None = None,
        init: Init | None = None,
        freeze: bool = False,
        call: Call | None = None,
        seed: int = 0,
        temper: Temper | None = None,
    ) -> None:
        super().__init__()
        if init is None:  # masking, which the identity start needs, is on at deep heads only
            deep = isinstance(net, GNN) and at == "readout" and net.head.is_deep
            init = "identity" if freeze and deep else "random"
        _check_choices(num_anchors, scope, init, temper)
        if freeze and is_first(net, at):
            raise InputError(
                "a place behind something to freeze",
                f"freeze=True at {at!r}",
                "Anchor deeper (see gduq.cut_points), or leave freeze out.",
            )
        seed = int(seed)
        self.at, self.num_anchors, self.seed, self.init = at, num_anchors, seed, init
        self.scope: Scope = scope or "row"
        self.frozen = freeze
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.cut = make_cut(copy.deepcopy(net), at, call, keep=init == "identity")
            self.linear = AnchoredLinear.reading_for(self.cut.plain, init, generator)
            del self.cut.__dict__["plain"]
        # the input stands still, deeper representations move
        self.source = make_source(anchors, self.cut.channels, moving=at != "input")
        self.source_name = source_name(self.source)
        self.register_buffer("bank", self.linear.weight.new_zeros(0, self.cut.channels))
        chosen = freeze and not self.cut.needs_graph if temper is None else temper
        self.temper: Temper = "distance" if chosen == "distance" else bool(chosen)
        self.register_buffer("reach", self.linear.weight.new_tensor(torch.inf))
        self.register_buffer("temperature", self.linear.weight.new_tensor(1.0))
        self.cut.frozen = freeze
        if freeze:
            for module in self.cut.prefix_modules():
                module.requires_grad_(False)
            self.train(self.training)

    # -- training ------------------------------------------------------------------------------

    def forward(self, graph: Data, generator: torch.Generator | None = None) -> Tensor:
        """Logits ``[rows, C]`` of all nodes or graphs.

        In training each row or graph gets a random anchor (from ``generator``, or torch's global
        state as dropout does); in evaluation the logits are averaged over the bank.
        """
        if self.training:
            return self.training_pass(graph, generator=generator)[0][0]
        return self._bank_logits(graph).mean(dim=0)

    def training_pass(
        self,
        graph: Data,
        draws: int = 1,
        mask: float = 0.0,
        generator: torch.Generator | None = None,
        labelled: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """A pass with ``draws`` random anchors a row, all through one pass of the network.

        Args:
            graph: The batch.
            draws: D, copies with anchors of their own; BatchNorm sees their mixture.
            mask: Share of rows (nodes, or whole graphs) whose anchor half is zeroed.
            generator: Source of randomness, or ``None`` for torch's global state.
            labelled: Leave out nodes without a label where that saves work: behind the readout,
                which reads every row by itself.

        Returns:
            Logits ``[D, rows, C]``, and which of them were masked ``[D, rows]``.
        """
        _check_one_graph(graph)
        if draws < 1 or not 0.0 <= mask < 1.0:
            raise InputError("draws >= 1 and mask in [0, 1)", f"draws={draws}, mask={mask}")
        if draws > 1 and not self.cut.holds_copies:
            logits, masked = self.training_pass(repeat(graph, draws), 1, mask, generator)
            return logits.unflatten(1, (draws, -1))[0], masked.unflatten(1, (draws, -1))[0]
        if labelled and not self.cut.needs_graph:
            graph = self._labelled(graph)
        state = self._cached_state(graph)
        owners = Owners(self, graph, draws, mask, generator)
        if state is None and not self.frozen:
            logits = self.cut.run(graph, owners.read)
        else:
            state = self._frozen_prefix(graph) if state is None else state
            logits = self.cut.suffix(owners.read(state[0]), state, graph)
        return logits, owners.masked_outputs(logits.size(1))

    def train(self, mode: bool = True) -> Anchored:
        super().train(mode)
        if self.frozen and mode:
            for module in self.cut.prefix_modules():
                module.eval()
        return self

    def _frozen_prefix(self, graph: Data) -> State:
        with torch.no_grad(), evaluating(self.cut):
            state = self.cut.prefix(graph)
        found: State = tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, state)
        return found

    def _labelled(self, graph: Data) -> Data:
        """The labelled nodes with their representations at the readout, in place of the graph."""
        if not self.cut.node_task(graph):
            return graph
        state = self._cached_state(graph)
        if state is None:
            state = self._frozen_prefix(graph) if self.frozen else self.cut.prefix(graph)
        rows = label_rows(graph, state[0].size(0))
        h = state[0][rows]
        kept = Data(cut_0=h, num_nodes=h.size(0))
        if graph.get("batch") is not None:  # ptr only counts graphs from here on
            kept.batch, kept.ptr = graph.batch[rows], torch.arange(num_graphs(graph) + 1)
        return kept

    def _cached_state(self, graph: Data) -> State | None:
        """What `cached` left on the graph."""
        state: State = []
        while (value := graph.get(f"cut_{len(state)}")) is not None:
            state.append(value)
        return state or None

    def cached(self, graph: Data) -> Data:
        """The graph with the frozen prefix's output on it, which later passes start from.

        Only for ``freeze=True``. Where the rest of the network needs no graph (the readout), the
        copy leaves out edges and features.
        """
        if not self.frozen:
            raise InputError("freeze=True for a cached prefix", "a model that trains its prefix")
        state = self._frozen_prefix(graph)
        if self.cut.needs_graph:
            sizes = {graph.num_nodes, graph.num_edges, num_graphs(graph)}
            if not all(isinstance(t, Tensor) and t.dim() and t.size(0) in sizes for t in state):
                return graph  # cannot be cut up and put together with other graphs'
            kept = copy.copy(graph)
        else:
            kept = Data(y=graph.get("y"), row_mask=graph.get("row_mask"))
            kept.num_nodes = state[0].size(0)
        for i, value in enumerate(state):
            kept[f"cut_{i}"] = value
        return kept

    # -- anchors -------------------------------------------------------------------------------

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

        With ``temper`` it also notes how far from them nearly all of these rows are (``reach``).
        A ``temperature`` that was fitted to another bank is forgotten.

        Args:
            data: A View, a ``Data``, a list of graphs, a dataset or a loader.
            k: How many; default ``num_anchors``.
            generator: Source of randomness; default: one seeded with the model's seed.
            batch_size: Graphs at a time.
        """
        k = self.num_anchors if k is None else k
        _check_choices(k, None, "random", None)
        generator = generator or torch.Generator().manual_seed(self.seed)
        some = Reservoir(ROWS, torch.Generator().manual_seed(self.seed))
        rows = self._training_rows(data, batch_size, some if self.temper else None)
        bank = self.source.bank(rows, k, generator)
        if bank.size(1) != self.cut.channels:
            raise InputError(f"anchors of width {self.cut.channels}", bank.size(1))
        bank = bank.detach().to(self.linear.weight).clone()
        if self.temper:
            for _ in rows:  # where the anchors did not come from them
                pass
            self.reach = torch.full_like(self.reach, reach_of(some.rows, bank))
        self.num_anchors, self.bank = k, bank
        self.temperature = torch.ones_like(self.temperature)
        return self

    def _training_rows(
        self, data: Any, batch_size: int | None, some: Reservoir | None = None
    ) -> Iterator[Tensor]:
        """Representations of the rows anchors may come from, batch by batch; ``some`` stay."""
        with torch.no_grad(), evaluating(self):
            for graph in iterate(data, batch_size):
                _check_no_leak(graph, self.cut.node_task(graph))
                graph = on_device(graph, self.linear.weight.device)
                state = self._cached_state(graph) or self.cut.prefix(graph)
                rows = anchor_rows(state[0], graph)
                if some is not None:
                    some.add(rows)
                yield rows

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        bank = state_dict.get(prefix + "bank")
        if bank is not None and bank.dim() == 2 and bank.size(1) == self.cut.channels:
            self.bank = self.bank.new_zeros(bank.shape)  # banks of any size fit
            self.num_anchors = bank.size(0) or self.num_anchors
        state_dict.setdefault(prefix + "reach", torch.full_like(self.reach, torch.inf))
        state_dict.setdefault(prefix + "temperature", torch.ones_like(self.temperature))
        super()._load_from_state_dict(state_dict, prefix, *args)

    # -- prediction ----------------------------------------------------------------------------

    def sample(self, graph: Data) -> Tensor:
        """Logits ``[K, m, C]`` of the m labelled rows under each anchor of the bank.

        Memory is bounded under ``torch.no_grad()`` (as in `gduq.predict`); otherwise gradients
        can flow, and all that they need is kept.
        """
        _check_one_graph(graph)
        with evaluating(self):
            if not self.cut.needs_graph and self.bank.size(0):
                graph = self._labelled(graph)
            logits = self._bank_logits(graph)
        return logits[:, label_rows(graph, logits.size(1))]

    def represent(self, graph: Data) -> Tensor:
        """The representation at the cut ``[n, d]``, in evaluation mode."""
        with evaluating(self):
            h: Tensor = self._prefix(graph)[0]
        return h

    def _prefix(self, graph: Data) -> State:
        return self._cached_state(graph) or self.cut.prefix(graph)

    def _bank_logits(self, graph: Data) -> Tensor:
        """``[K, rows, C]``: prefix and ``h W_h^T`` once, the suffix in memory-bounded chunks."""
        _check_one_graph(graph)
        if self.bank.size(0) == 0:
            raise NotFittedError(
                "a model with a bank of anchors",
                "none yet",
                "Train with gduq.fit, or call model.fit_bank(train_data) after your own loop.",
            )
        state = self._prefix(graph)
        weight = self.linear.weight[:, : self.linear.in_features]
        base = self.cut.read(state[0], weight, graph)  # [n, m]
        shift = self.linear.shift(self.bank).unsqueeze(1)  # [K, 1, m]
        if self.linear.bias is not None:
            base = base + self.linear.bias
        scaled = self.cut.affine()
        if scaled is not None:
            base, shift = torch.addcmul(scaled[1], base, scaled[0]), shift * scaled[0]
        gain = self.cut.gain(graph, base)
        parts = []
        for part in shift.split(max(1, _CHUNK // max(1, self.cut.cost(base, graph)))):
            z = base + part if gain is None else torch.addcmul(base, gain, part)
            parts.append(self.cut.suffix(z, state, graph, normed=scaled is not None))
        logits = torch.cat(parts)
        if not self.temper:
            return logits
        return tempered(logits, state[0], self.bank, self.reach, self.temperature)

    def extra_repr(self) -> str:
        return (
            f"at={self.at!r}, num_anchors={self.num_anchors}, anchors={self.source_name!r}, "
            f"scope={self.scope!r}, freeze={self.frozen}, temper={self.temper!r}"
        )


def is_first(net: nn.Module, at: int | str) -> bool:
    """Whether nothing that learns comes before a place."""
    return at == "input" and not (isinstance(net, GNN) and len(net.embeddings))


def _check_one_graph(graph: Any) -> None:
    if not isinstance(graph, Data):
        raise InputError(
            "one graph, a torch_geometric Data or Batch",
            type(graph).__name__,
            "Call an anchored model with the graph itself: model(data).",
        )


def _check_no_leak(graph: Data, node_task: bool) -> None:
    """Anchors must not come from rows that a mask on the graph sets aside."""
    chosen = graph.get("row_mask") is not None or "batch_size" in graph.keys()  # noqa: SIM118
    if node_task and graph.get("train_mask") is not None and not chosen:
        raise InputError(
            "a choice of nodes for the anchors",
            "a whole graph with a train_mask",
            "Pass gduq.data.View(data, data.train_mask).",
        )


def _check_choices(
    num_anchors: int, scope: Scope | None, init: Init, temper: Temper | None
) -> None:
    if temper not in (None, True, False, "distance"):
        raise InputError("temper True, 'distance' or False", repr(temper))
    if isinstance(num_anchors, bool) or not isinstance(num_anchors, int) or num_anchors < 1:
        raise InputError("num_anchors >= 1, a whole number", repr(num_anchors))
    if scope not in (None, "row", "graph"):
        raise InputError("scope 'row' or 'graph'", repr(scope))
    if init not in ("random", "identity"):
        raise InputError("init 'random' or 'identity'", repr(init))
