"""`Splits`: a dataset cut for training and for judging under shift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from torch import Tensor

from gduq.data.overlap import overlap
from gduq.data.view import View
from gduq.errors import InputError

__all__ = ["SPLIT_NAMES", "Splits"]

SPLIT_NAMES = ("train", "id_val", "id_test", "ood_val", "ood_test")


@dataclass(frozen=True, eq=False)
class Splits:
    """A dataset cut for training and for judging under shift.

    ``id_val``, ``ood_val`` ... may be ``None`` where a dataset has none. ``domains`` maps a split
    name to the domain value of each of its rows; ``sources`` says where every file came from;
    ``severities`` holds further test views of growing shift, such as ``"rotation=10"``.
    ``target_names`` and ``units`` hold one word per target column, where they are known.
    """

    train: View
    id_val: View | None = None
    id_test: View | None = None
    ood_val: View | None = None
    ood_test: View | None = None
    name: str = ""
    description: str = ""
    class_names: tuple[str, ...] = ()
    domains: Mapping[str, Tensor] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    severities: Mapping[str, View] = field(default_factory=dict)
    target_names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for (a, one), (b, two) in combinations(self, 2):
            if one is two and one.task == "graph":
                continue  # one view of graphs in two places is no slip but meant
            what = "splits" if one.task == "graph" else f"{one.task} masks"
            both = overlap(one, two)
            if both:
                raise InputError(
                    f"{what} that do not overlap", f"{both} {one.task}(s) in both {a} and {b}"
                )

    def __repr__(self) -> str:
        return f"Splits({self.name!r}: {', '.join(f'{k} {v!r}' for k, v in self)})"

    def __iter__(self) -> Iterator[tuple[str, View]]:
        """The splits that exist, by name, training first."""
        for name in SPLIT_NAMES:
            view = getattr(self, name)
            if view is not None:
                yield name, view

    def with_(self, **changes: object) -> Splits:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]
