"""`anchor`: a network with anchors at a place, or at the best of all places."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from torch import nn

from gduq.anchored import Anchored, is_first
from gduq.auto import AutoAnchored
from gduq.errors import InputError
from gduq.nn.gnn import GNN
from gduq.nn.widths import anchor_names

__all__ = ["anchor"]

_P = ParamSpec("_P")
_Model = TypeVar("_Model")


def _taking(
    arguments_of: Callable[_P, object],
) -> Callable[[Callable[..., _Model]], Callable[_P, _Model]]:
    """Give a function the arguments of another one, for readers, editors and type checkers."""

    def with_them(function: Callable[..., _Model]) -> Callable[_P, _Model]:
        function.__signature__ = inspect.signature(arguments_of)  # type: ignore[attr-defined]
        return function

    return with_them


@_taking(Anchored)
def anchor(
    net: nn.Module, at: int | str = "readout", *args: Any, **options: Any
) -> Anchored | AutoAnchored:
    """Wrap a network so that one trained model answers with K hypotheses.

    Args:
        net: A `gduq.nn.GNN` or any PyTorch Geometric module. It is copied, not changed.
        at: Where to cut. For a `GNN`: ``"input"``, a layer number from 1 to L - 1 (the layer that
            reads the pair) or ``"readout"``; or ``"auto"``, and `gduq.fit` finds out which is
            best (see `AutoAnchored`). For any other module: ``"input"`` or the dotted
            path of the submodule that reads the pair; a ``Linear`` there is widened, before
            anything else a map of the same width is put in. `gduq.cut_points` lists the places.
        num_anchors: K, the size of the bank.
        anchors: ``"gaussian"`` (default at the input), ``"shuffle"`` (default elsewhere), a
            tensor ``[k, d]`` of fixed anchors, or an `Anchors` object.
        scope: Who shares an anchor in training: ``"row"`` (default) or ``"graph"``.
        init: ``"random"``, or ``"identity"``: the wrapped network equals ``net`` for any anchor
            (but for ``temper``). The default with ``freeze=True`` at the readout of a `GNN` with a
            two-layer head, where masking makes it depend on the anchors all the same.
        freeze: Train only the anchored map and what follows it; the rest stays in evaluation
            mode and its outputs can be cached.
        call: ``call(net, graph) -> logits`` where parameter names do not say what to pass.
        seed: For the new weights and the choice of the bank.
        temper: Whether the mean logits of rows that lie farther from the anchors than 95 % of the
            training rows are divided by how much farther they lie; and whether `gduq.fit` also
            lowers all of them until confidence fits its validation rows, if it is too high there
            (``"distance"``: it does not). Default: with ``freeze=True`` at the readout of a `GNN`,
            where every answer has one representation.

    Returns:
        The wrapped model: an ordinary module that trains in any loop (with ``at="auto"``: in
        `gduq.fit`, which chooses).

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from gduq.nn import GNN
        >>> model = anchor(GNN(4, 16, 3, num_layers=3, conv="gin"), at="readout")
        >>> graph = Data(x=torch.randn(5, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> model.fit_bank([graph] * 12).sample(graph).shape
        torch.Size([10, 1, 3])
    """
    if at != "auto":
        return Anchored(net, at, *args, **options)
    given = inspect.signature(Anchored).bind(net, at, *args, **options).arguments
    return AutoAnchored(_candidates(**given))


def _candidates(net: nn.Module, at: str, **options: Any) -> Iterator[Anchored]:
    """A model for every place; where ``freeze`` finds nothing to freeze, all of it trains on."""
    if not isinstance(net, GNN):
        names = ", ".join(map(repr, ["input", *anchor_names(net)]))
        raise InputError(
            f"a gduq.nn.GNN with at={at!r}",
            type(net).__name__,
            "Name the candidates: gduq.AutoAnchored(gduq.anchor(net, at=place) for place in "
            f"places), with places from {names}.",
        )
    for place in net.points:
        own = dict(options)
        if options.get("freeze") and is_first(net, place):
            own |= {"freeze": False, "init": options.get("init") or "identity"}
        if place != "readout" and net.task == "graph":
            own["temper"] = False  # nodes there, graphs in the answer
        yield Anchored(net, place, **own)
