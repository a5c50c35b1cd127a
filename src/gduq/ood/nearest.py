r"""Novelty: how unlike the training data a row is, between 0 and 1.

Two rows differ in direction and in length. The distance of a row :math:`h` to a training row
:math:`r` adds the squares of both, and a difference in length counts half:

.. math::
    d(h, r) = \frac12 \left\|\frac{h}{|h|} - \frac{r}{|r|}\right\|^2
              + \frac12 \left(\frac12 \Bigl(\frac{|h|}{|r|} - 1\Bigr)\right)^2

The first part is the cosine distance. The distance :math:`D(h)` to the training data is the mean
of :math:`d` over the k nearest of some training rows, and novelty is the share of validation rows
with a smaller one:

.. math::
    \mathrm{novelty}(h) = \frac1V \#\{v : D(v) < D(h)\}

Rows like those of validation are therefore uniform on [0, 1], whatever the network and its width.

Means over more nodes differ in neither. So rows may come with a few numbers that tell their
structure (`gduq.graphs.structure_of`: how large a graph is, how many edges a node has), which have
a distance of their own, `structure_distance`. What counts is the larger of both shares, ranked once
more among those of the validation rows, which makes it uniform again. A thousandth of the answer is
the share by representation alone: so rows of a structure never seen, all near 1, keep an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gduq._torch import below, exporting
from gduq.errors import InputError, NotFittedError, check_int
from gduq.graphs.sparse import is_sparse, kept, take_rows
from gduq.nn.layers import AnySize

__all__ = ["Novelty", "in_blocks", "nearest", "polar", "structure_distance"]

_BLOCK = 4_000_000  # numbers in one block, of distances or of dense rows
_NEAR = 3  # so many training rows make a structure known
_SAME = 1e-6  # what differs by less, relatively, is a tie: single precision can make as much
_LENGTH = 0.5  # what a relative difference in length counts, against one in direction
_SHORT = 1e-6  # of the longest reference row: shorter ones count as so long
_EQUAL = 1e-5  # structures that differ by less are the same: logarithms of counts, in any precision
Measure = Callable[[Tensor], Callable[[Tensor], Tensor]]  # of reference rows, then of others
_USUAL = 0.75  # share of validation rows that are as near as usual
_ORDER = 1e-3  # how much of the answer is the share by representation, where structure counts
_LEAST = 1e-3  # of the usual distance: shorter ones tell no more


class Novelty(AnySize):
    """How unlike the training data rows are, as a share of validation rows that are nearer to it.

    Ties count half. Distances within rounding of each other are ties, so equal rows get the same
    answer in every batch. A row of zeros has the same distance to all; a row that is not finite
    is as novel as can be.

    Args:
        k: How many nearest reference rows to average over; all of them if there are fewer.
        size: How many training rows to keep at most.

    Attributes:
        reference: Kept training rows ``[R, d]``.
        distances: Distances of validation rows ``[V]``, sorted.
        structure: Structure of the kept training rows ``[R, s]``, or nothing.
        structure_distances: Distances of validation rows by structure ``[V]``, sorted.
        usual: Euclidean distance, and distance by structure, that three quarters of the validation
            rows keep ``[2]``; see `excess`.
        ranks: Of validation rows by the larger of both shares, 0 to 2V ``[V]``, sorted.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> train = torch.tensor([1.0, 0.0]) + 0.1 * torch.randn(200, 2, generator=generator)
        >>> novelty = Novelty(k=5).fit(train[:150], train[150:], generator)
        >>> novelty(torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])) > 0.9
        tensor([False,  True,  True])
    """

    reference: Tensor
    distances: Tensor
    structure: Tensor
    structure_distances: Tensor
    ranks: Tensor
    usual: Tensor

    def __init__(self, k: int = 10, size: int = 2048) -> None:
        super().__init__()
        self.k, self.size = check_int("k", k, least=1), check_int("size", size, least=1)
        self.register_buffer("reference", torch.empty(0, 0))
        self.register_buffer("distances", torch.empty(0))
        self.register_buffer("usual", torch.zeros(2))
        self._forget_structure()

    def _forget_structure(self) -> None:
        self.register_buffer("structure", torch.empty(0, 0))
        self.register_buffer("structure_distances", torch.empty(0))
        self.register_buffer("ranks", torch.empty(0, dtype=torch.int64))

    @property
    def fitted(self) -> bool:
        """Whether there are rows to compare with."""
        return self.distances.numel() > 0

    @property
    def reads_structure(self) -> bool:
        """Whether the structure of training rows is known."""
        return self.ranks.numel() > 0

    def fit(
        self,
        train: Tensor,
        val: Tensor | None,
        generator: torch.Generator,
        train_structure: Tensor | None = None,
        val_structure: Tensor | None = None,
    ) -> Novelty:
        """Keep a random choice of training rows, and the distances of validation rows to them.

        Args:
            train: Training rows ``[n, d]``, dense or sparse CSR.
            val: Validation rows ``[v, d]``; ``None`` or no rows: half of the training rows, which
                are not kept then. Networks know their training rows too well, so new rows then
                look somewhat more novel than they are.
            generator: Decides which training rows are kept.
            train_structure: Numbers that tell the structure of the training rows ``[n, s]``.
            val_structure: The same of the validation rows ``[v, s]``. Where one of both is missing,
                structure does not count.
        """
        _check(train, "training")
        if train_structure is not None:
            _check(train_structure, "structure of training", count=train.size(0))
        if train.size(0) < 2:
            raise InputError("at least two training rows for novelty", train.size(0))
        order = torch.randperm(train.size(0), generator=generator, device=generator.device)
        order = order.to(train.device)
        chosen = order[: self.size]
        if val is None or val.size(0) == 0:
            chosen, rest = order.split([k := min(self.size, len(order) // 2), len(order) - k])
            val = take_rows(train.detach(), rest)
            val_structure = None if train_structure is None else train_structure[rest]
        _check(val, "validation", train.size(1))
        reference = take_rows(train.detach(), chosen)
        self.reference = reference.to(torch.promote_types(reference.dtype, torch.float32))
        far = self._far(val)
        self.distances = far.sort().values
        self.usual, apart = self.usual.clone(), self._mean_distance(val, _euclidean)
        # rows that repeat are 0 apart: then what others are, or training rows among each other
        spread = self.reference.double().std(dim=0).norm()
        candidates = (apart.quantile(_USUAL), apart.mean(), spread, torch.ones(()))
        self.usual[0] = next(one for one in candidates if one > 0)
        self._forget_structure()
        if train_structure is not None and val_structure is not None:
            _check(val_structure, "structure of validation", train_structure.size(1), val.size(0))
            self.structure = train_structure[chosen]
            odd = structure_distance(val_structure, self.structure)
            self.structure_distances, self.usual[1] = odd.sort().values, odd.quantile(_USUAL)
            self.ranks = self._larger(self._nearer(far), odd).sort().values
        return self

    def forward(self, rows: Tensor, structure: Tensor | None = None) -> Tensor:
        """Novelty ``[m]`` of rows ``[m, d]``, dense or sparse CSR.

        Their ``structure`` ``[m, s]`` counts where that of training rows is known.
        """
        return self.look(rows, structure, excess=False)[0]

    def how_far(self, rows: Tensor, structure: Tensor | None = None) -> Tensor:
        """What `Trust` goes by ``[m, 2]``: the logarithm of :math:`D(h)` in units of the median of
        validation rows (of next to no distance that of a thousandth), and the excess.

        That is, in logarithms, the ratio of the mean Euclidean distance to that which three
        quarters of validation rows keep, and the factor by which structure is farther (at least 1).
        """
        return self.look(rows, structure)[1]

    @torch.no_grad()
    def look(
        self, rows: Tensor, structure: Tensor | None = None, excess: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Novelty, and `how_far` (unless the ``excess`` is not wanted), in one go."""
        if not self.fitted:
            raise NotFittedError(
                "a fitted novelty", "one without training rows", "Call fit(train, val, generator)."
            )
        if rows.dim() != 2 or rows.size(1) != self.reference.size(1):
            raise InputError(f"rows of width {self.reference.size(1)}", list(rows.shape))
        far, twice = self._far(rows), 2 * self.distances.numel()
        count, odd = self._nearer(far), None
        share = count.double() / twice
        if structure is not None and self.reads_structure:
            if structure.shape != (rows.size(0), self.structure.size(1)):
                wanted = f"structure of shape [{rows.size(0)}, {self.structure.size(1)}]"
                raise InputError(wanted, list(structure.shape))
            odd = structure_distance(structure, self.structure)
            count = self._larger(count, odd)
            both = below(self.ranks, count) + below(self.ranks, count, equal=True)
            rank = both.double() / twice
            share = rank + _ORDER * (share - rank)
        novelty = share.to(torch.promote_types(rows.dtype, torch.float32))
        if not excess:
            return novelty, far
        usual = self.distances[len(self.distances) // 2].double()
        usual = usual.where(usual > 0, self.distances.mean().double().clamp_min(_SAME))
        apart = self._mean_distance(rows, _euclidean) / self.usual[0].double()
        beyond = apart.log().clamp_min(0.0)
        if odd is not None:
            beyond = beyond + (odd - self.usual[1].double()).clamp_min(0.0)
        return novelty, torch.stack([(far / usual + _LEAST).log(), beyond], dim=1)

    def _nearer(self, far: Tensor) -> Tensor:
        """How many validation rows have a smaller distance ``[m]``, times 2; ties count 1."""
        root = (2.0 * far).sqrt()
        slack = _SAME * (1.0 + root)
        low, high = (root - slack).clamp_min(0).square() / 2, (root + slack).square() / 2
        known = self.distances.double()
        return below(known, low) + below(known, high, equal=True)

    def _larger(self, count: Tensor, far: Tensor) -> Tensor:
        """The count of `_nearer`, or that by structure where it is larger.

        Ties by structure do not count: a known structure leaves the answer to the representation.
        """
        return torch.maximum(count, 2 * below(self.structure_distances.double(), far - _EQUAL))

    def _far(self, rows: Tensor) -> Tensor:
        return self._mean_distance(rows, _Distance)

    def _mean_distance(self, rows: Tensor, make: Measure) -> Tensor:
        """To the k nearest ``[m]``; what is made of the kept rows is made once while they live."""
        known = self.reference
        measure = make(known) if exporting() else kept(known, make, lambda: make(known))
        mean = nearest(rows, known, self.k, measure).mean(dim=1).clamp_min(0.0)
        return mean.where(mean.isfinite(), torch.inf)  # of a row that was not finite


def _euclidean(reference: Tensor) -> Callable[[Tensor], Tensor]:
    """Distances of rows to reference rows in double precision; programs know no ``cdist``."""
    known = reference.double()
    lengths, twice = known.square().sum(dim=1), 2 * known.T

    def measure(rows: Tensor) -> Tensor:
        rows = rows.double()
        squares = rows.square().sum(dim=1, keepdim=True) + lengths - rows @ twice
        return squares.clamp_min(0.0).sqrt()

    return measure


class _Distance:
    """Distances of rows to reference rows: one product of matrices.

    The part of the lengths is a polynomial in :math:`|h|`, whose coefficients depend on
    :math:`|r|` alone, so directions and lengths are columns of the same product.
    """

    def __init__(self, reference: Tensor) -> None:
        unit, length = polar(reference)
        longest = length.amax(dim=0)
        self.scale = torch.where(longest > 0, longest, 1.0)
        inverse = 1.0 / (length / self.scale).clamp_min(_SHORT)
        weight = _LENGTH**2 / 2
        powers = [-weight * inverse.square(), 2 * weight * inverse, inverse.new_full((), -weight)]
        self.known = torch.cat([unit, *(p.expand_as(inverse) for p in powers)], dim=1).T

    def __call__(self, rows: Tensor) -> Tensor:
        unit, length = polar(rows)
        length = (length / self.scale).clamp_max(1 / _SAME)  # squares do not overflow
        columns = [unit, length.square(), length, torch.ones_like(length)]
        return 1.0 - torch.cat(columns, dim=1) @ self.known


def _check(rows: Tensor, which: str, width: int | None = None, count: int | None = None) -> None:
    wanted = ("n" if count is None else count, "d" if width is None else width)
    fits = rows.dim() == 2 and rows.size(1) > 0
    sizes = zip(rows.shape, (count, width), strict=fits)
    if not fits or any(size not in (found, None) for found, size in sizes):
        raise InputError(f"{which} rows [{wanted[0]}, {wanted[1]}]", list(rows.shape))
    if not torch.isfinite(rows.values() if is_sparse(rows) else rows).all():
        raise InputError(f"finite {which} rows", "NaN or infinite values")


def nearest(
    rows: Tensor, known: Tensor, k: int, distance: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """The k smallest distances ``[m, k]`` of rows ``[m, d]`` to known ones ``[R, d]``, rising.

    Args:
        rows: Dense or sparse CSR.
        known: Those they are compared with.
        k: How many; all of them if there are fewer.
        distance: From some rows, dense, to their distances to all known ones ``[b, R]``; the
            Euclidean one by default.

    Example:
        >>> nearest(torch.zeros(1, 1), torch.tensor([[3.0], [1.0], [2.0]]), k=2)
        tensor([[1., 2.]])
    """
    k = min(k, known.size(0))
    measure = distance or (lambda part: torch.cdist(part, known))
    parts = (measure(part) for part in in_blocks(rows, known))
    return torch.cat([part.topk(k, dim=1, largest=False).values for part in parts])


def in_blocks(rows: Tensor, known: Tensor) -> Iterator[Tensor]:
    """Rows, dense, in parts that can be compared with all known rows in bounded memory."""
    if exporting():
        yield rows
        return
    size = max(1, _BLOCK // max(1, *known.shape))
    for part in torch.arange(rows.size(0), device=rows.device).split(size):
        yield take_rows(rows.detach(), part)


def polar(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Directions ``[m, d]`` and lengths ``[m, 1]`` in double precision: near 1, cosines need it.
    Zeros stay."""
    rows = rows.double()
    largest = rows.abs().amax(dim=1, keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)  # squares neither overflow nor vanish
    length = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(length > 0, length, 1.0), length * largest


@torch.no_grad()
def structure_distance(rows: Tensor, known: Tensor) -> Tensor:
    """Mean distance ``[m]`` of rows ``[m, s]`` to the 3 nearest of known rows ``[R, s]``.

    The distance of two rows is their largest difference, so that of logarithms it tells by which
    factor the counts differ.

    Example:
        >>> sizes = torch.tensor([[10.0], [10.0], [10.0], [20.0]]).log()
        >>> structure_distance(torch.tensor([[10.0], [40.0]]).log(), sizes).exp()
        tensor([1.0000, 3.1748], dtype=torch.float64)
    """
    rows, known = rows.double(), known.double()

    def largest(part: Tensor) -> Tensor:
        apart = (part[:, :1] - known[:, 0]).abs()
        for column in range(1, known.size(1)):
            apart = torch.maximum(apart, (part[:, column, None] - known[:, column]).abs())
        return apart

    if exporting():
        return nearest(rows, known, _NEAR, largest).mean(dim=1)
    rows, place = _distinct(rows)  # counts repeat: every structure is compared once
    return nearest(rows, known, _NEAR, largest).mean(dim=1)[place]


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows, and which of them each row is; torch's own way is slow for rows."""
    code = torch.zeros_like(rows[:, 0], dtype=torch.int64)
    for column in rows.T:
        values, number = column.unique(return_inverse=True)
        code = code * len(values) + number
    codes, place = code.unique(return_inverse=True)
    some = torch.empty_like(codes).scatter_(0, place, torch.arange(len(rows), device=rows.device))
    return rows[some], place
