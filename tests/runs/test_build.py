"""Data and models from configs."""

from __future__ import annotations

import pytest

import gduq
from gduq.errors import InputError
from gduq.runs.build import splits_of
from gduq.runs.config import RunConfig


def limited(limit):
    return splits_of(RunConfig(data={"name": "cbas/color/concept", "limit": limit}))


def sizes(splits):
    return {split: len(view) for split, view in splits}


def test_a_limit_above_the_number_of_rows_means_all_of_them():
    whole = sizes(gduq.data.load("cbas/color/concept"))
    total = sum(whole.values())
    assert sizes(limited(3000)) == sizes(limited(total)) == whole
    assert sum(sizes(limited(total - 1)).values()) == total - 1
    with pytest.raises(InputError, match="a limit from 5"):
        gduq.data.load("cbas/color/concept", limit=3000)  # a person who asks so is told


@pytest.mark.parametrize("limit", [1, 4])
def test_a_limit_that_leaves_a_split_empty_is_a_mistake(limit):
    with pytest.raises(InputError, match="a limit from 5"):
        limited(limit)
