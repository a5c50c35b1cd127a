"""Limits and partial builds: only what is asked for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.packed import Packed
from gduq.data.subset import build_rows, shrink
from gduq.errors import InputError

KEY = {"name": "toy", "version": 1}


def build(rows: Tensor) -> Packed:
    empty = torch.zeros(2, 0, dtype=torch.long)
    return Packed.pack(
        [Data(x=torch.full((1, 1), float(i)), edge_index=empty, y=i) for i in rows.tolist()]
    )


def numbers(packed: Packed) -> list[int]:
    return [int(graph.y) for graph in packed]


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), share=st.floats(0, 1))
def test_shrink_keeps_proportions(sizes: list[int], share: float) -> None:
    starts = np.cumsum([0, *sizes])
    cut = {str(i): torch.arange(a, b) for i, (a, b) in enumerate(pairwise(starts.tolist()))}
    total = sum(sizes)
    limit = max(len(sizes), round(share * total))
    small = shrink(cut, limit, seed=3)
    assert sum(map(len, small.values())) == limit
    for name, rows in cut.items():
        kept = small[name]
        assert 1 <= len(kept) <= len(rows)
        # parts that get their one row against proportion take it from the others
        assert abs(len(kept) - len(rows) * limit / total) <= len(sizes)
        assert set(kept.tolist()) <= set(rows.tolist())
        assert len(set(kept.tolist())) == len(kept)


def test_shrink_grows_and_depends_on_the_seed_only() -> None:
    cut = {"train": torch.arange(80), "id_test": torch.arange(80, 100)}
    small, large = shrink(cut, 10, seed=1), shrink(cut, 50, seed=1)
    assert all(set(small[n].tolist()) <= set(large[n].tolist()) for n in cut)
    assert torch.equal(shrink(cut, 10, seed=1)["train"], small["train"])
    assert not torch.equal(shrink(cut, 10, seed=2)["train"], small["train"])
    assert torch.equal(shrink(cut, None)["train"], cut["train"])


@pytest.mark.parametrize("limit", [-1, 0, 1, 101])
def test_impossible_limits(limit: int) -> None:
    cut = {"train": torch.arange(80), "id_test": torch.arange(80, 100)}
    with pytest.raises(InputError, match=r"a limit from 2 .* to 100 \(all rows\)"):
        shrink(cut, limit)


@pytest.mark.parametrize("limit", ["10", 10.0, 10.5, True])
def test_limits_are_whole_numbers(limit: object) -> None:
    with pytest.raises(InputError, match="limit as a whole number"):
        shrink({"train": torch.arange(80)}, limit)  # type: ignore[arg-type]


def test_every_limit_is_kept_and_keeps_the_smaller_ones() -> None:
    cut = {str(n): torch.arange(n) for n in (1, 3, 14, 15, 71)}
    before: dict[str, Tensor] = {name: torch.zeros(0).long() for name in cut}
    for limit in range(5, 105):
        kept = shrink(cut, limit)
        assert sum(map(len, kept.values())) == limit
        assert all(set(before[n].tolist()) <= set(kept[n].tolist()) for n in cut)
        before = kept


def test_classes_keep_their_shares_and_training_all_of_them() -> None:
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 9 + [3])
    cut = {"train": torch.arange(100), "id_test": torch.arange(100)}
    kept = shrink(cut, 40, labels=dict.fromkeys(cut, labels))
    counts = {name: torch.bincount(labels[rows], minlength=4) for name, rows in kept.items()}
    assert counts["train"].tolist() == [11, 6, 2, 1]
    assert counts["id_test"].tolist() == [12, 6, 2, 0]
    rare = shrink(cut, 8, labels=dict.fromkeys(cut, labels))
    assert sorted(labels[rare["train"]].tolist()) == [0, 1, 2, 3]


def test_only_the_rows_asked_for_are_built(tmp_path: Path) -> None:
    asked: list[int] = []

    def watched(rows: Tensor) -> Packed:
        asked.extend(rows.tolist())
        return build(rows)

    rows = torch.tensor([7, 3, 5])
    some = build_rows(tmp_path, KEY, rows, 10, watched, shard=2, workers=1)
    assert numbers(some) == [7, 3, 5] == asked
    whole = build_rows(tmp_path, KEY, torch.arange(10).flip(0), 10, watched, shard=4, workers=1)
    assert numbers(whole) == list(range(9, -1, -1))
    assert asked == [7, 3, 5, *range(10)]
    again = build_rows(tmp_path, KEY, torch.tensor([1, 8]), 10, watched, shard=4, workers=1)
    assert numbers(again) == [1, 8]
    assert len(asked) == 13, "the whole set is there already"
