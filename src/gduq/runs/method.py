"""`MethodConfig`: which model a run makes, and what network it stands on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gduq.errors import InputError
from gduq.runs.config_parts import MOST_EPOCHS, Part

__all__ = ["RECIPE_FIELDS", "MethodConfig", "bundle_at", "digest"]

Kind = Literal["vanilla", "anchored", "ensemble", "mcdropout", "laplace", "heads", "choose"]
Share = Annotated[float, Field(ge=0, lt=1)]
RECIPE_FIELDS = ("at", "anchors", "scope", "num_anchors", "init", "freeze", "draws", "mask")
_OWN: dict[str, tuple[str, ...]] = {
    "ensemble": ("size", "member"),
    "mcdropout": ("passes",),
    "choose": ("budget",),
}


class MethodConfig(Part):
    """Where the uncertainty comes from.

    ============== ===========================================================================
    ``vanilla``    the plain network
    ``anchored``   `gduq.anchor` with a ``recipe``; the fields from ``at`` to ``mask`` change
                   single choices of it
    ``heads``      `gduq.HeadEnsemble` on the plain network
    ``laplace``    `gduq.LastLayerLaplace` on it
    ``choose``     `gduq.choose` within a ``budget``
    ``mcdropout``  the plain network with dropout left on for ``passes`` passes
    ``ensemble``   ``size`` runs of kind ``member`` with seeds ``seed``, ``seed + 1``, ...
                   (ensembles of neighbouring seeds share members)
    ============== ===========================================================================

    All but ``vanilla``, ``ensemble`` and the recipe ``"paper"`` stand on a trained network. It is
    that of the vanilla run with the same config, trained first if need be, or of the bundle or run
    in the folder ``pretrained_from``. That run is known by the digest of its content.

    ``epochs`` are those on top of the trained network. Without them a head stops when validation
    rows say so, ``"thawed"`` takes a quarter of the network's epochs, ``"paper"`` as many.
    ``calibrate`` is as in `gduq.fit`, with ``"none"`` for no calibration.
    """

    kind: Kind = "vanilla"
    recipe: Literal["head", "thawed", "paper"] | None = None
    at: int | str | None = None
    anchors: Literal["gaussian", "shuffle"] | None = None
    scope: Literal["row", "graph"] | None = None
    num_anchors: int | None = Field(None, ge=1, le=100_000)
    init: Literal["random", "identity"] | None = None
    freeze: bool | None = None
    draws: int | None = Field(None, ge=1, le=10_000)
    mask: Share | tuple[Share, ...] | None = None
    calibrate: Literal["shifted", "clean", "none"] | None = None
    pretrained_from: str | None = None
    pretrained_digest: str | None = None
    epochs: int | None = Field(None, ge=1, le=MOST_EPOCHS)
    size: int = Field(3, ge=1, le=1000)
    member: Literal["vanilla", "anchored"] = "vanilla"
    passes: int = Field(10, ge=1, le=10_000)
    budget: float = Field(1.2, ge=1, le=100)

    @model_validator(mode="after")
    def _content(self) -> MethodConfig:
        """Note what a bundle holds while it is there: a path says nothing about it later."""
        given = self.pretrained_from
        if given not in (None, "vanilla") and self.pretrained_digest is None:
            self.__dict__["pretrained_digest"] = digest(bundle_at(str(given)))
        return self

    @property
    def is_anchored(self) -> bool:
        """Whether a network with anchors is trained, here or in a member."""
        return self.kind == "anchored" or (self.kind == "ensemble" and self.member == "anchored")

    @property
    def recipe_name(self) -> str:
        """The recipe, which without a name follows from the place, as in `gduq.anchor`."""
        return self.recipe or ("head" if self.at in (None, "head") else "thawed")

    @property
    def on_network(self) -> bool:
        """Whether the model is made from a network that was trained before."""
        if self.kind == "anchored":
            return self.recipe_name != "paper" or self.pretrained_from is not None
        return self.kind in ("heads", "laplace", "choose", "mcdropout")

    @property
    def from_vanilla(self) -> bool:
        """Whether that network is the vanilla run's."""
        return self.on_network and self.pretrained_from in (None, "vanilla")

    def identity(self) -> dict[str, Any]:
        """The fields that matter for this kind."""
        kept: tuple[str, ...] = ("kind", "calibrate")
        if self.is_anchored:
            kept += RECIPE_FIELDS
        if self.kind in _OWN:
            kept += _OWN[self.kind]
        found = {name: getattr(self, name) for name in kept}
        if self.is_anchored:
            found["recipe"] = self.recipe_name
        if self.is_anchored or self.on_network:
            start = "vanilla" if self.on_network else None  # members are asked for themselves
            found |= {"start": self.pretrained_digest or self.pretrained_from or start}
            found |= {"epochs": self.epochs}
        return found


def bundle_at(path: str | Path) -> Path:
    """A bundle, or that of a run."""
    for file in (Path(path) / "bundle", Path(path)):
        if file.is_file():
            return file
    raise InputError("method.pretrained_from 'vanilla', a bundle or a run folder", repr(str(path)))


def digest(file: Path) -> str:
    """16 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
