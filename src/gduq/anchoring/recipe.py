"""`Recipe`: every choice about anchors, and the only place where their defaults live."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from gduq._checks import check_int
from gduq.anchoring.anchors import Source
from gduq.anchoring.equation import Init
from gduq.errors import InputError
from gduq.graphs import Rows
from gduq.prediction.base import Calibrate

__all__ = ["Recipe", "Scope", "make_recipe"]

Scope = Literal["row", "graph"]

MASKS = (0.0, 0.05, 0.2)
_CHOICES = {
    "scope": ("row", "graph"),
    "init": ("random", "identity"),
    "calibrate": ("shifted", "clean", None),
}


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
        anchors: ``"gaussian"`` or ``"shuffle"`` (rows of the batch), fixed ones ``[k, d]``, or an
            `Anchors` object. ``None``: a Gaussian at the input, shuffled rows elsewhere.
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
    mask: float | tuple[float, ...] = MASKS
    calibrate: Calibrate = "shifted"

    def __post_init__(self) -> None:
        if not isinstance(self.mask, (int, float)):  # JSON has lists only
            object.__setattr__(self, "mask", tuple(self.mask))
        for name in ("num_anchors", "draws"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), 1))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                *most, last = map(repr, choices)
                raise InputError(f"{name} {', '.join(most)} or {last}", repr(getattr(self, name)))
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
        chosen = {"at": -1, "freeze": False, "draws": 1, "mask": 0.05, **changes}
        return cls(**chosen)

    @classmethod
    def paper(cls, rows: Rows, **changes: Any) -> Recipe:
        """As in the paper, from scratch: Gaussian input anchors for nodes, the readout else."""
        chosen: dict[str, Any] = {
            "at": "input" if rows == "node" else "readout",
            "freeze": False,
            "init": "random",
            "draws": 1,
            "mask": 0.0,
            "calibrate": None,
            **changes,
        }
        return cls(**chosen)

    def with_(self, **changes: Any) -> Recipe:
        """A copy with some choices changed; ``None`` changes nothing."""
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, **given)

    def spec(self) -> dict[str, Any]:
        """All choices but the source of anchors, as JSON holds them."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "anchors"}
        found["mask"] = list(self.masks) if isinstance(self.mask, tuple) else self.mask
        return found


def make_recipe(recipe: Recipe | str | None, at: int | str | None, rows: Rows | None) -> Recipe:
    """The recipe a user asked for by name.

    Without a name it is ``"head"``, and ``"thawed"`` where another place is named.
    """
    if isinstance(recipe, Recipe):
        return recipe
    name = recipe or ("head" if at in (None, "head") else "thawed")
    if name in ("head", "thawed"):
        return Recipe.head() if name == "head" else Recipe.thawed()
    if name != "paper":
        raise InputError("recipe 'head', 'thawed', 'paper' or a gduq.Recipe", repr(recipe))
    if rows is None:
        raise InputError(
            "a recipe that says what is answered for",
            "'paper' for a network of your own",
            "Pass recipe=gduq.Recipe.paper('node') or gduq.Recipe.paper('graph').",
        )
    return Recipe.paper(rows)
