"""How a user's own rows are cut: a test that differs from training, and a little to validate on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.errors import InputError
from gduq.runs.source import check_enough, moments
from gduq.shifts.cuts import Cut, as_values
from gduq.shifts.groups import scaffold_ranks

__all__ = ["Domain", "cut_rows", "domain_of", "strata_of"]

TEST, HELD = 0.2, 0.1  # shares of all rows: the shifted test; validation, and the test at home
_ENOUGH = 30  # validation rows that a small table gives more than its share for
_BINS = 5  # of values, from which rows are held out alike


class Domain:
    """What the test differs in: one number per row, the highest of which make the test.

    Args:
        name: What it is called.
        values: One number per row ``[n]``.
        labels: What the numbers stand for, one per row, for things that have no order.
    """

    def __init__(self, name: str, values: Tensor, labels: Sequence[str] | None = None) -> None:
        self.name, self.values, self.labels = name, values, labels

    def words(self, rows: Tensor) -> str:
        """What some rows are in this respect."""
        if self.labels is None:
            low, high = (self._shown(v) for v in (self.values[rows].min(), self.values[rows].max()))
            return f"{self.name} {low}" if low == high else f"{self.name} {low} to {high}"
        found = Counter(self.labels[row] for row in rows.tolist())
        if self.name == "scaffold":
            return f"{len(found)} scaffold{'s' * (len(found) != 1)}"
        names = sorted(found, key=lambda one: (-found[one], one))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"{self.name} {', '.join(names[:4])}{more}"

    def _shown(self, value: Tensor) -> str:
        return f"{value.item():g}"


class _Moments(Domain):
    """Moments in seconds, shown as dates."""

    def _shown(self, value: Tensor) -> str:
        return datetime.fromtimestamp(value.item()).isoformat(sep=" ").removesuffix(" 00:00:00")


def domain_of(by: str, graphs: Sequence[Data], fields: Sequence[Any] | None) -> Domain | None:
    """What ``--by`` says of each graph; ``None`` for a random cut.

    Args:
        by: ``"scaffold"``, ``"size"``, ``"group=NAME"``, ``"time=NAME"`` or ``"random"``.
        graphs: The rows.
        fields: For the last two, what each row has under that name.
    """
    kind, _, name = by.partition("=")
    if kind == "random":
        return None
    if kind == "size":
        sizes = torch.tensor([int(graph.num_nodes or 0) for graph in graphs])
        return Domain("atoms" if "smiles" in graphs[0] else "nodes", sizes)
    if kind == "scaffold":
        if "smiles" not in graphs[0]:
            raise InputError(
                "molecules to cut by scaffold", "graphs without SMILES", "Cut by size."
            )
        ranks = scaffold_ranks([graph.smiles for graph in graphs])
        return Domain("scaffold", ranks, [str(rank) for rank in ranks.tolist()])
    assert fields is not None
    if kind == "time":
        values, are_dates = moments(name, fields)
        if are_dates:
            return _Moments(name, torch.tensor(values, dtype=torch.float64))
        return Domain(name, as_values(values))
    texts = [str(field) for field in fields]
    often = Counter(texts)
    rank = {text: i for i, text in enumerate(sorted(often, key=lambda t: (-often[t], t)))}
    return Domain(name, torch.tensor([rank[text] for text in texts]), texts)


def cut_rows(domain: Domain | None, strata: Tensor, seed: int) -> Cut:
    """The rows of each split.

    The fifth of the rows with the highest domain values, or as near to that as equal values allow,
    is ``ood_test``. From the others a tenth each of all rows is drawn for ``id_val`` and
    ``id_test``, of each stratum alike, so that a rare class is in all of them. Without a domain
    there is no ``ood_test`` and ``id_test`` is twice as large.

    Args:
        domain: What the test differs in.
        strata: One number per row ``[n]``, see `strata_of`.
        seed: Of the draw.

    Example:
        >>> cut = cut_rows(Domain("size", torch.arange(100)), torch.zeros(100), seed=0)
        >>> {name: len(rows) for name, rows in cut.items()}
        {'train': 50, 'id_val': 20, 'id_test': 10, 'ood_test': 20}
    """
    n = strata.numel()
    check_enough(n)
    generator = torch.Generator().manual_seed(seed)
    val = max(HELD, min(_ENOUGH, n // 5) / n)
    if domain is None:
        return _held_out(torch.arange(n), strata, (val * n, TEST * n), generator)
    pool, test = _parted(domain)
    cut = _held_out(pool, strata, (val * n, HELD * n), generator)
    return {**cut, "ood_test": test}


def _parted(domain: Domain) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(domain.values, stable=True)
    n = values.numel()
    starts = torch.nonzero(values.diff()).flatten() + 1  # where a new value begins
    inside = starts[(starts >= 0.4 * n) & (starts <= 0.95 * n)]
    if inside.numel() == 0:
        most = int(torch.unique(values, return_counts=True)[1].max())
        raise InputError(
            f"rows that differ enough in {domain.name} to cut by it",
            f"{most} of {n} rows that are alike",
            "Cut in another way with --by: scaffold, size, group=COLUMN, time=COLUMN or random.",
        )
    start = int(inside[(inside - (1 - TEST) * n).abs().argmin()])
    return indices[:start], indices[start:]


def strata_of(kind: str, truth: Tensor) -> Tensor:
    """Groups of rows that are alike in their truth ``[n]``.

    Classes as they are; values in fifths, of several values the first; of labels the rarest one
    that is yes.

    Example:
        >>> strata_of("labels", torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, float("nan")]]))
        tensor([0, 1, 2])
    """
    if kind == "classes":
        return truth.long()
    if kind == "labels":
        yes = torch.nan_to_num(truth.reshape(truth.size(0), -1)) > 0.5
        often = torch.where(yes, yes.sum(dim=0), yes.size(0) + 1)
        return torch.where(yes.any(dim=1), often.argmin(dim=1), yes.size(1))
    first = truth.reshape(truth.size(0), -1)[:, 0].double()
    ranks = first.argsort(stable=True).argsort()
    return ranks * _BINS // max(1, first.numel())


def _held_out(
    pool: Tensor, strata: Tensor, sizes: tuple[float, float], generator: torch.Generator
) -> Cut:
    """Rows for validation and test, of each stratum in proportion; one each if it has three."""
    parts: dict[str, list[Tensor]] = {"train": [], "id_val": [], "id_test": []}
    shares = [size / pool.numel() for size in sizes]
    for stratum in torch.unique(strata[pool]):
        rows = pool[strata[pool] == stratum]
        rows = rows[torch.randperm(rows.numel(), generator=generator)]
        least = 1 if rows.numel() >= 3 else 0
        val, test = (max(least, round(share * rows.numel())) for share in shares)
        for name, part in zip(
            parts, rows.split([rows.numel() - val - test, val, test]), strict=True
        ):
            parts[name].append(part)
    cut = {name: torch.cat(found) for name, found in parts.items()}
    if not all(rows.numel() for rows in cut.values()):
        count = torch.unique(strata[pool]).numel()
        got = f"{count} classes in {pool.numel()} rows"
        raise InputError("classes of a few rows each, to learn and to judge by", got)
    return cut
