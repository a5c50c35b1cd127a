"""`Settings` of decisions and `Limits` of the service: their defaults, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from gduq.errors import InputError

__all__ = ["Limits", "Settings"]


@dataclass(frozen=True)
class Settings:
    """How predictions become decisions.

    Attributes:
        alpha: Accepted share of misses of conformal sets and intervals.
        coverage: Share of rows like the reference that should be answered, all reasons to abstain
            taken together; or
        accuracy: the accuracy that answers should have; then ``coverage`` is not used.
        per_class: Whether sets hold every class, and yes and no of every label, as often as that:
            over all rows, sets may miss a rare class altogether.
        max_novelty: A row with a larger novelty is unlike the training data; 1 for no limit.
        max_epistemic: Where the epistemic uncertainty is above this quantile of the reference,
            the hypotheses disagree; 1 for no limit.
    """

    alpha: float = 0.1
    coverage: float = 0.9
    accuracy: float | None = None
    per_class: bool = False
    max_novelty: float = 0.99
    max_epistemic: float = 0.99

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if share is not None and not 0 <= share <= 1:
                raise InputError(f"{name} from 0 to 1", share)


@dataclass(frozen=True)
class Limits:
    """Bounds of the service, so that no request can take the machine from the others."""

    body: int = 8 * 2**20  # bytes of a request
    graphs: int = 1000  # of a request
    smiles: int = 2000  # characters of a SMILES string
    nodes: int = 20_000  # of a graph, and of all graphs that are answered in one pass
    edges: int = 200_000  # of the same
    batch: int = 256  # graphs in one pass
    queue: int = 256  # requests at a time; more are told to come back
    seconds: float = 30.0  # for a request to arrive and to be answered
    reading: float = 5.0  # of computing for RDKit to read the SMILES of a request, or to draw one
    connections: int = 512  # that are open
    idle: float = 10.0  # seconds for the next request of a connection to begin
    stopping: float = 5.0  # seconds for requests under way to be answered
