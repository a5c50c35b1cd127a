"""`Recipe`: every choice about anchors, and the only place where their defaults live."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from gduq.errors import InputError, check_int, one_of
from gduq.graphs import Rows
from gduq.prediction.base import Calibrate

__all__ = ["Init", "Recipe", "Scope", "Source"]

Init = Literal["random", "identity"]
Source = Literal["gaussian", "shuffle"]
Scope = Literal["row", "graph"]


@dataclass(frozen=True)
class Recipe:
    """How a network is anchored.

    Attributes:
        at: Where: ``"head"`` (the first linear map of the head; a head of one linear map keeps it
            and gets a second branch), ``"readout"`` (the same without that branch),
            ``"input"``, a layer of message passing by its number (1 is the second; -1 the last),
            or the dotted path of a submodule.
        freeze: Train only the map that reads anchors and, behind a layer, what follows; the rest
            stays as it is. Of a head its first map is trained; all of it with ``init="random"``.
        init: ``"identity"``: the model starts as the network, for any anchor; or ``"random"``,
            which draws the map that reads anchors anew, and all of a head, as the paper does.
        anchors: ``"gaussian"`` or ``"shuffle"`` (rows of the batch). ``None``: a Gaussian at the
            input, shuffled rows elsewhere.
        scope: Who shares an anchor in training: ``"row"`` or ``"graph"``.
        num_anchors: K, how many hypotheses prediction has.
        draws: Anchors per row and training step.
        mask: Share of rows whose anchor half is zeroed and that are trained to know nothing.
            Several: heads with each of them are trained side by side and the best one stays; what
            is no head that reads row by row is trained with the one nearest to 0.05.
        calibrate: The last step of `gduq.fit`: a temperature from validation rows and
            ``"shifted"`` copies of them, from ``"clean"`` rows only, or ``None``.

    Example:
        >>> Recipe.paper("node").at, Recipe.thawed().mask, Recipe.head(num_anchors=5).num_anchors
        ('input', 0.05, 5)
    """

    at: int | str = "head"
    freeze: bool = True
    init: Init = "identity"
    anchors: Source | None = None
    scope: Scope = "row"
    num_anchors: int = 10
    draws: int = 10
    mask: float | tuple[float, ...] = (0.0, 0.05, 0.2)
    calibrate: Calibrate = "shifted"

    def __post_init__(self) -> None:
        if not isinstance(self.mask, (int, float)):  # JSON has lists only
            object.__setattr__(self, "mask", tuple(self.mask))
        for name in ("num_anchors", "draws"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), 1))
        one_of("init", self.init, get_args(Init))
        one_of("scope", self.scope, get_args(Scope))
        one_of("anchors", self.anchors or "gaussian", get_args(Source))
        one_of("calibrate", self.calibrate or "clean", ("shifted", "clean"))
        if not self.masks or not all(0 <= share < 1 for share in self.masks):
            raise InputError("mask from 0 to below 1", repr(self.mask))

    @property
    def masks(self) -> tuple[float, ...]:
        """All shares to try."""
        return self.mask if isinstance(self.mask, tuple) else (self.mask,)

    @property
    def one_mask(self) -> float:
        """The share where only one can be tried: a small one, which hardly ever hurts."""
        return min(self.masks, key=lambda share: abs(share - 0.05))

    @classmethod
    def head(cls, **changes: Any) -> Recipe:
        """A head on a trained network, which stays as it is: the cheapest."""
        return cls(**changes)

    @classmethod
    def thawed(cls, **changes: Any) -> Recipe:
        """Training goes on from a trained network, with anchors at its last layer."""
        return cls(**{"at": -1, "freeze": False, "draws": 1, "mask": 0.05} | changes)

    @classmethod
    def paper(cls, rows: Rows | None, **changes: Any) -> Recipe:
        """As in the paper, from scratch: Gaussian input anchors for nodes, the readout else."""
        if rows is None:
            do = "Pass recipe=gduq.Recipe.paper('node') or gduq.Recipe.paper('graph')."
            raise InputError("a recipe for a network of your own", "'paper'", do)
        chosen = {"at": "input" if rows == "node" else "readout", "freeze": False, "draws": 1}
        return cls(**chosen | {"init": "random", "mask": 0.0, "calibrate": None} | changes)

    @classmethod
    def named(cls, name: str, rows: Rows | None = None) -> Recipe:
        """The recipe of that name, for a network that answers for such rows, if that is known."""
        one_of("recipe (or a gduq.Recipe)", name, ("head", "thawed", "paper"))
        made: Recipe = cls.paper(rows) if name == "paper" else getattr(cls, name)()
        return made

    def with_(self, **changes: object) -> Recipe:
        """A copy with some choices changed; ``None`` changes nothing."""
        given: Any = {name: value for name, value in changes.items() if value is not None}
        return replace(self, **given)
