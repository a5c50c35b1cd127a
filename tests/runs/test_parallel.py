"""The same items, whatever happens to some of them."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from gduq.errors import InputError
from gduq.runs.parallel import parallel_map


def work(item):
    """Do what the item says."""
    kind, value = item
    if kind == "raise":
        raise ValueError(value)
    if kind == "threads":
        return torch.get_num_threads()
    return os.getpid() if kind == "pid" else value * 2


ITEMS = [("double", 1), ("raise", "no such luck"), ("double", 2), ("threads", None)]


def check(found):
    assert [o.item for o in found] == ITEMS
    assert [o.value for o in found] == [2, None, 4, 1]
    assert "ValueError: no such luck" in found[1].error
    assert "in work" in found[1].error  # the traceback, not only its last line


@pytest.mark.parametrize("workers", [0, 2])
def test_failures_stay_in_their_items(workers):
    check(parallel_map(work, ITEMS, workers=workers, progress=False))


def test_without_workers_it_is_done_here():
    assert parallel_map(work, [("pid", None)], workers=0, progress=False)[0].value == os.getpid()
    assert parallel_map(work, [], progress=False) == []


@pytest.mark.parametrize(("engine", "workers"), [("dask", None), ("local", -1), ("local", True)])
def test_bad_input(engine, workers):
    with pytest.raises(InputError):
        parallel_map(work, [1], engine=engine, workers=workers)


@pytest.mark.slow
def test_ray_gives_the_same():
    pytest.importorskip("ray")
    check(parallel_map(work, ITEMS, engine="ray", workers=2, progress=False))


def test_ray_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError):
        parallel_map(work, [1], engine="ray", progress=False)
