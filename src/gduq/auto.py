"""`AutoAnchored`: an anchored model whose place is chosen while it is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.errors import InputError, NotFittedError

if TYPE_CHECKING:
    from gduq.anchored import Anchored

__all__ = ["AutoAnchored", "settled"]

Place = int | str


class AutoAnchored(nn.Module):
    """Anchored models that differ in their place; `gduq.fit` finds the best and keeps only it.

    Made by ``gduq.anchor(net, at="auto")`` with a candidate for every point of a `gduq.nn.GNN`, or
    from candidates of your own. With ``freeze=True`` all candidates go on from the trained network
    (at the input, where nothing comes before, all of it trains on). `gduq.fit` trains all of them
    a little, drops the worse ones as it goes on, and trains the one that is left to the end. From
    then on this module answers as that one does.

    Args:
        candidates: `Anchored` models with different ``at``, from the earliest place to the latest:
            a later one is kept unless another is clearly better.

    Attributes:
        scores: For each place its mean losses in the rounds it took part in; empty before
            `gduq.fit`. The chosen place need not have the lowest: see `gduq.training.halving`.

    Example:
        >>> import gduq
        >>> model = gduq.anchor(gduq.nn.GNN(4, 8, 2, num_layers=3), at="auto")
        >>> model.places, model.at
        (('input', 1, 2, 'readout'), 'auto')
    """

    def __init__(self, candidates: Iterable[Anchored]) -> None:
        super().__init__()
        models = list(candidates)
        places = [model.at for model in models]
        if not models or len(set(places)) < len(places):
            raise InputError("candidates with different places", places)
        self.candidates = nn.ModuleList(models)
        self.scores: dict[Place, tuple[float, ...]] = {}
        self._is_settled = False

    @property
    def places(self) -> tuple[Place, ...]:
        """``at`` of each candidate that is left."""
        return tuple(model.at for model in self.candidates)  # type: ignore[misc]

    @property
    def at(self) -> Place:
        """The chosen place; ``"auto"`` before `gduq.fit`."""
        return self.chosen.at if self._is_settled else "auto"

    @property
    def is_settled(self) -> bool:
        """Whether a place is chosen."""
        return self._is_settled

    @property
    def chosen(self) -> Anchored:
        """The model at the chosen place."""
        if not self._is_settled:
            raise NotFittedError(
                "a model with a chosen place",
                f"candidates at {', '.join(map(repr, self.places))}",
                "Choose with gduq.fit(model, train, val, epochs=...) first.",
            )
        found: Any = self.candidates[0]
        return found  # type: ignore[no-any-return]

    def settle(self, at: Place, scores: Mapping[Place, Sequence[float]]) -> AutoAnchored:
        """Keep the candidate of one place; the others are dropped."""
        if at not in self.places:
            raise InputError(f"a place from {', '.join(map(repr, self.places))}", repr(at))
        self.candidates = nn.ModuleList([self.candidates[self.places.index(at)]])
        self.scores = {place: tuple(found) for place, found in scores.items()}
        self._is_settled = True
        return self

    # -- as the chosen one ---------------------------------------------------------------------

    def forward(self, graph: Data, generator: torch.Generator | None = None) -> Tensor:
        """See `Anchored.forward`."""
        return self.chosen(graph, generator)  # type: ignore[no-any-return]

    def sample(self, graph: Data) -> Tensor:
        """See `Anchored.sample`."""
        return self.chosen.sample(graph)

    def represent(self, graph: Data) -> Tensor:
        """See `Anchored.represent`."""
        return self.chosen.represent(graph)

    def fit_bank(self, data: Any, **options: Any) -> AutoAnchored:
        """See `Anchored.fit_bank`."""
        self.chosen.fit_bank(data, **options)
        return self

    def extra_repr(self) -> str:
        return f"at={self.at!r}"


def settled(model: nn.Module) -> nn.Module:
    """The model behind an `AutoAnchored` that has its place; any other model as it is."""
    return model.chosen if isinstance(model, AutoAnchored) and model.is_settled else model
