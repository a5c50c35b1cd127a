"""The benchmark's rivals as oracles: every method has one, and ours ends at their NLL."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from gduq.calibration import methods_for
from gduq.metrics import nll

sys.path.insert(0, str(Path(__file__).parents[2] / "reproduction" / "benchmarks"))
bench = importlib.import_module("calibrators")
rivals = importlib.import_module("calibrator_rivals")
sys.path.pop(0)


@pytest.fixture(scope="module")
def p():
    return bench.crooked_logits(300, 4)


def tasks(p):
    graph, train = bench.random_graph(300), torch.arange(300) < 30
    return rivals.same_problem(p, bench.hypotheses(p), graph, train)


def plain(p):
    return [*rivals.plain(p, bench.with_features(150, seed=1)), *rivals._scikit_learn(p)]


def test_every_method_is_in_the_benchmark(p):
    raced = [rival.method for rival in plain(p)]
    known = {cls: name for name, cls in methods_for("classes").items()}
    raced += [known[type(task.calibrator)] for task in [*rivals.published(p), *tasks(p)]]
    assert set(raced) | {"histogram"} == set(methods_for("classes"))  # that one against netcal


@pytest.mark.filterwarnings("ignore:Setting penalty=None|lbfgs failed to converge")
def test_ours_ends_where_plain_ways_end(p):
    for rival in plain(p):
        ours = nll(rival.calibrator.fit(rival.p)(rival.p))
        assert ours == pytest.approx(rival.nll(rival.fit()), abs=1e-3), rival.name


@pytest.mark.parametrize("number", range(4))
def test_adam_finds_nothing_better(p, number):
    task = tasks(p)[number]
    task.calibrator.fit(p if task.name != "anchor_aware" else task.p)
    bench._adam(task, 30)
    with torch.no_grad():
        theirs = float(task.objective())
        task.take(task.calibrator.state())
        assert float(task.objective()) <= theirs + 1e-5
