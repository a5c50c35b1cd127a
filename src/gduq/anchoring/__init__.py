"""Anchoring: the pair ``[h - c || c]`` at one point of any network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from gduq.anchoring.anchored import Anchored
from gduq.anchoring.anchors import Source
from gduq.anchoring.cuts import cut_points
from gduq.anchoring.equation import Init
from gduq.anchoring.recipe import Recipe, Scope, make_recipe
from gduq.errors import InputError
from gduq.models.predictor import Calibrate, Predictor
from gduq.nn.gnn import as_chain
from gduq.tracing.call import Call

__all__ = ["Anchored", "Recipe", "anchor", "cut_points"]


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
    like: Any = None,
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
            `Recipe`. The arguments from here to ``calibrate`` change single choices of it.
        freeze: Train only what reads anchors, see `Recipe`.
        init: ``"identity"`` (start as the network) or ``"random"``.
        anchors: ``"gaussian"``, ``"shuffle"``, fixed ones ``[k, d]``, or an `Anchors` object.
        scope: Who shares an anchor in training: ``"row"`` or ``"graph"``.
        num_anchors: K.
        draws: Anchors per row and training step.
        mask: Share of rows that are trained to know nothing; several are tried side by side.
        calibrate: ``"shifted"``, ``"clean"`` or ``None``; default: as the recipe says.
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
    if isinstance(net, Predictor):
        raise InputError(
            "a network that is not wrapped yet",
            type(net).__name__,
            "Anchor the network itself, as it was before gduq wrapped it.",
        )
    if not isinstance(net, nn.Module):
        raise InputError("a torch module", type(net).__name__, "Build it first: MyNet(...).")
    chain = as_chain(net)
    chosen = make_recipe(recipe, at, None if chain is None else chain.task).with_(
        at=at,
        freeze=freeze,
        init=init,
        anchors=anchors,
        scope=scope,
        num_anchors=num_anchors,
        draws=draws,
        mask=mask,
    )
    if calibrate != "default":
        chosen = replace(chosen, calibrate=calibrate)  # type: ignore[arg-type]
    return Anchored(net, chosen, call, seed, like)
