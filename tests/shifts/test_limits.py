"""Limits: rows in proportion."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gduq.errors import InputError
from gduq.shifts.cuts import limit_rows


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), share=st.floats(0, 1))
def test_limit_rows_keeps_proportions(sizes: list[int], share: float) -> None:
    starts = np.cumsum([0, *sizes])
    cut = {str(i): torch.arange(a, b) for i, (a, b) in enumerate(pairwise(starts.tolist()))}
    total = sum(sizes)
    limit = max(len(sizes), round(share * total))
    small = limit_rows(cut, limit, seed=3)
    assert sum(map(len, small.values())) == limit
    for name, rows in cut.items():
        kept = small[name]
        assert 1 <= len(kept) <= len(rows)
        # parts that get their one row against proportion take it from the others
        assert abs(len(kept) - len(rows) * limit / total) <= len(sizes)
        assert set(kept.tolist()) <= set(rows.tolist())
        assert len(set(kept.tolist())) == len(kept)


@pytest.mark.parametrize("limit", [-1, 0, 1, "10", 10.0, True])
def test_impossible_limits(limit: object) -> None:
    cut = {"train": torch.arange(80), "id_test": torch.arange(80, 100)}
    with pytest.raises(InputError):
        limit_rows(cut, limit)  # type: ignore[arg-type]
    assert torch.equal(limit_rows(cut, 101)["train"], cut["train"])  # more than there are


def test_every_limit_is_kept_and_keeps_the_smaller_ones() -> None:
    cut = {str(n): torch.arange(n) for n in (1, 3, 14, 15, 71)}
    before: dict[str, Tensor] = {name: torch.zeros(0).long() for name in cut}
    for limit in range(5, 105):
        kept = limit_rows(cut, limit)
        assert sum(map(len, kept.values())) == limit
        assert all(set(before[n].tolist()) <= set(kept[n].tolist()) for n in cut)
        before = kept


def test_classes_keep_their_shares_and_training_all_of_them() -> None:
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 9 + [3])
    cut = {"train": torch.arange(100), "id_test": torch.arange(100)}
    kept = limit_rows(cut, 40, strata=dict.fromkeys(cut, labels))
    counts = {name: torch.bincount(labels[rows], minlength=4) for name, rows in kept.items()}
    assert counts["train"].tolist() == [11, 6, 2, 1]
    assert counts["id_test"].tolist() == [12, 6, 2, 0]
    rare = limit_rows(cut, 8, strata=dict.fromkeys(cut, labels))
    assert sorted(labels[rare["train"]].tolist()) == [0, 1, 2, 3]
